"""SQLite index of a recording: where each sample, step and token lies in the segments, and the figures to list them by.

Owns no truth: it is built from the headers of the segments, follows them while they grow, forgets segments that
retention deleted, and is built anew when it is missing, damaged or of another version. What a reader can't wait for is
taken in by a thread beside it: first the headers, then, for lists and the full-text search, text and figures.
"""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from areal.record.segment import OUTCOMES, SUFFIX, Frame, FrameKind, frames, read
from areal.v1 import record_pb2 as record
from areal.workflow.episode import is_figure_name

from areal_view.index.sample_query import CHUNK, COLUMNS, WINDOW, SampleQuery, walk_of
from areal_view.index.sample_text import TOKENIZER, searchable, texts_of

_VERSION = 3
_FIGURES = 64  # of one sample, and of a run
_LOOK_S = 0.06  # of processor time, for one page of a list
_PATIENCE_S = 0.1  # for what a reader waits before a thread goes on
_SLICE_S = 0.03  # of that thread, between which readers are served
_SETTINGS = "PRAGMA synchronous = OFF; PRAGMA cache_size = -32768"  # KiB
_TEXT_SLICE = 200  # samples whose text is taken in at once: each commit of the full-text index costs
_STALE = 10_000  # samples in the full-text index that are gone, before it is made anew
_TABLES = resources.files("areal_view.index").joinpath("tables.sql").read_text("utf-8").format(TOKENIZER=TOKENIZER)


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where a record lies."""

    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A recorded sample, row of an evaluation or failure, without its tokens."""

    group: int
    index: int
    reward: float
    tokens: int
    version: int  # newest of its tokens; −1 without any
    outcome: str
    evaluation: str
    place: RecordPlace
    figures: Mapping[str, float] = field(default_factory=dict)  # of the reward and the workflow; once they are indexed


@dataclass(frozen=True)
class FoundSamples:
    """A page of a list. `after`: the place that the next page begins after; None where this one is the last."""

    rows: Sequence[SampleRow]
    after: Sequence[float] | None


@dataclass(frozen=True)
class IndexProgress:
    """How much of a recording is indexed: bytes of its segments, and samples whose text can be searched."""

    taken: int
    size: int
    texts: int
    samples: int

    @property
    def listed(self) -> bool:
        """Whether every record that was there at the last look is found; its text may follow."""
        return self.taken >= self.size

    @property
    def complete(self) -> bool:
        """Whether their text can be searched, too."""
        return self.listed and self.texts >= self.samples


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A trained group."""

    group: int
    step: int
    samples: int
    mean: float
    low: float
    high: float
    tokens: int
    age: int  # of its oldest token, in versions
    mismatch: float  # mean |log π_trainer − log π_sampled| of its sequences

    @property
    def teaches(self) -> bool:
        """Whether any sample was better than another."""
        return self.high > self.low


class RecordIndex:
    """The index of the segments in `directories`, in the file `path`. Safe from any thread.

    With `texts` also of what the samples say and of their figures, for `page`; the rest does without.
    """

    def __init__(self, path: Path, directories: Sequence[Path], *, texts: bool = False) -> None:
        self._path = path
        self._texts = texts
        self._directories = {directory.name: directory for directory in directories}
        self._lock = threading.Lock()
        self._db = self._open()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._behind = self._size = 0

    def refresh(self, patience_s: float = _PATIENCE_S) -> "RecordIndex":
        """Take in what was written since the last call; what takes longer than `patience_s` goes on beside."""
        with self._lock:
            if self._thread is None and (not self._slice(patience_s) or self._texts_left()):
                self._thread = threading.Thread(target=self._go_on, name="record index", daemon=True)
                self._thread.start()
        return self

    def wait(self, seconds: float) -> None:
        """Give what goes on beside so much time to end."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    @property
    def behind(self) -> int:
        """Bytes of the segments that are still to be taken in; 0 once it is up to date."""
        return self._behind if self._thread is not None else 0

    @property
    def progress(self) -> IndexProgress:
        """How far it is."""
        ((samples,),) = self._rows("SELECT COALESCE(MAX(id), 0) FROM samples")
        ((texts,),) = self._rows("SELECT COALESCE(MAX(sample), 0) FROM contents")
        return IndexProgress(self._size - self.behind, self._size, texts if self._texts else samples, samples)

    def close(self) -> None:
        """Give the file back."""
        self._closing = True
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._db.close()

    # ---- what is there

    def samples(self, group: int, *, evaluation: str = "") -> list[SampleRow]:
        """All records of a group, failures and repetitions included, in the order of samples, the newest last."""
        return self._samples("evaluation = ? AND g = ? ORDER BY i, id", evaluation, group)

    def find(
        self, *, outcome: str | None = None, low: float | None = None, high: float | None = None, limit: int = 200
    ) -> list[SampleRow]:
        """The newest training samples of this outcome and with rewards from `low` to `high`."""
        return self.listed(SampleQuery(outcome=outcome, reward=(low, high)), limit)

    def listed(self, query: SampleQuery, limit: int) -> list[SampleRow]:
        """The first samples of a query, however long it takes to find them."""
        rows = (row for _, row in self._walk(query, None) if row is not None)
        return [row for row, _ in zip(rows, range(limit), strict=False)]

    def page(self, query: SampleQuery, limit: int, after: Sequence[float] | None = None) -> FoundSamples:
        """At most `limit` samples after a place; fewer where the next are not found in good time."""
        rows, until = list[SampleRow](), time.thread_time() + _LOOK_S
        for place, row in self._walk(query, after):
            if row is not None:
                rows.append(row)
            if len(rows) == limit or time.thread_time() > until:
                return FoundSamples(rows, place)
        return FoundSamples(rows, None)

    def figures(self, evaluation: str = "") -> dict[str, tuple[float, float]]:
        """The figures of samples by name: the least and the greatest of each."""
        found = dict[str, tuple[float, float]]()
        name = ""
        for _ in range(_FIGURES):
            where = "FROM figure_values WHERE evaluation = ? AND name"
            ((name,),) = self._rows(f"SELECT MIN(name) {where} > ?", evaluation, name)
            if name is None:
                break
            ((low,),) = self._rows(f"SELECT MIN(value) {where} = ?", evaluation, name)
            ((high,),) = self._rows(f"SELECT MAX(value) {where} = ?", evaluation, name)
            found[name] = low, high
        return found

    def outcomes(self, evaluation: str = "") -> dict[str, int]:
        """Number of episodes by outcome, of training unless given."""
        rows = self._rows("SELECT outcome, SUM(rows) FROM counts WHERE evaluation = ? GROUP BY outcome", evaluation)
        return {OUTCOMES[outcome]: count for outcome, count in rows}

    def evaluations(self) -> list[tuple[str, int, float]]:
        """Recorded evaluations: id, rows, mean score."""
        query = "SELECT evaluation, SUM(rows), SUM(reward) FROM counts WHERE evaluation != '' GROUP BY evaluation"
        return [(str(name), int(rows), float(total) / rows) for name, rows, total in self._rows(query)]

    def evaluated(self, evaluation: str, limit: int = 1_000) -> list[SampleRow]:
        """The rows of an evaluation."""
        return self._samples(f"evaluation = ? ORDER BY g LIMIT {int(limit)}", evaluation)

    def sample(self, place: RecordPlace) -> record.SampleRecord | None:
        """The record at `place`; None when it is gone or damaged."""
        raw = self._read(place)
        return None if raw is None else record.SampleRecord.FromString(raw)

    def group(self, group: int) -> RecordedGroup | None:
        """The step that trained a group, and its figures; the newest trainer counts."""
        rows = self._groups("g = ? ORDER BY fence DESC LIMIT 1", group)
        return rows[0] if rows else None

    def groups(self, step: int) -> list[RecordedGroup]:
        """The groups of a step, as its newest trainer trained them."""
        return self._groups(
            "step = ? AND fence = (SELECT MAX(fence) FROM groups WHERE step = ?) ORDER BY g", step, step
        )

    def step(self, step: int) -> record.StepRecord | None:
        """A step as its newest trainer recorded it."""
        rows = self._rows("SELECT file, offset FROM steps WHERE step = ? ORDER BY fence DESC LIMIT 1", step)
        raw = self._read(RecordPlace(*rows[0])) if rows else None
        return None if raw is None else record.StepRecord.FromString(raw)

    def tokens(self, step: int, fence: int, group: int) -> list[record.TokenRecord]:
        """The chunks of token columns that may hold a group."""
        where = "step = ? AND fence = ? AND first <= ? AND last >= ?"
        rows = self._rows(f"SELECT file, offset FROM tokens WHERE {where}", step, fence, group, group)
        found = [self._read(RecordPlace(*row)) for row in rows]
        return [record.TokenRecord.FromString(raw) for raw in found if raw is not None]

    # ---- inside

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self._path, check_same_thread=False)
        with contextlib.suppress(sqlite3.DatabaseError):
            if db.execute("PRAGMA user_version").fetchone()[0] == _VERSION:
                db.executescript(_SETTINGS)
                return db
        db.close()
        self._path.unlink(missing_ok=True)
        db = sqlite3.connect(self._path, check_same_thread=False)
        db.executescript(f"{_SETTINGS}; {_TABLES} PRAGMA user_version = {_VERSION};")
        return db

    def _go_on(self) -> None:
        while not self._closing:
            time.sleep(_SLICE_S / 4)  # a lock is not fair
            with self._lock:
                done = True
                try:
                    done = self._slice(_SLICE_S) and self._take_texts(_SLICE_S)
                finally:
                    if done:  # or failed: the next `refresh` meets the error itself
                        self._thread = None
                if done:
                    return

    def _slice(self, seconds: float) -> bool:
        """Take in for about `seconds`; whether that was all."""
        until = time.monotonic() + seconds
        try:
            with self._db:
                return self._follow(until)
        except sqlite3.DatabaseError:  # damaged: nothing is lost by building it again
            self._db.close()
            self._path.unlink(missing_ok=True)
            self._db = self._open()
            with self._db:
                return self._follow(until)

    def _follow(self, until: float) -> bool:
        known = dict(self._db.execute("SELECT file, done FROM files"))
        there: dict[str, int] = {}
        for name, directory in self._directories.items():
            for path in sorted(directory.glob(f"*{SUFFIX}")):
                with contextlib.suppress(OSError):
                    there[f"{name}/{path.name}"] = path.stat().st_size
        for file in known:
            if there.get(file, -1) < known[file]:
                self._forget(file)
                known[file] = 0
        late = False
        for file, size in there.items():
            done = known.get(file, 0)
            if size > done and not late:
                known[file], late = self._take(file, done, until)
                self._db.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", (file, known[file]))
        self._size = sum(there.values())
        self._behind = sum(max(0, size - known.get(file, 0)) for file, size in there.items())
        return not late

    def _texts_left(self) -> list[tuple[int, str, str, int]]:
        """The next samples whose text is not taken in: id, evaluation and place."""
        if not self._texts:
            return []
        where = f"id > (SELECT COALESCE(MAX(sample), 0) FROM contents) ORDER BY id LIMIT {_TEXT_SLICE}"
        return self._db.execute(f"SELECT id, evaluation, file, offset FROM samples WHERE {where}").fetchall()

    def _take_texts(self, seconds: float) -> bool:
        """Take in the text of samples for about `seconds` of processor time; whether that was all."""
        until = time.thread_time() + seconds
        with self._db:
            while left := self._texts_left():
                for sample, evaluation, file, offset in left:
                    self._take_text(sample, evaluation, self.sample(RecordPlace(file, offset)))
                if time.thread_time() > until:
                    return False
        return True

    def _take_text(self, sample: int, evaluation: str, made: record.SampleRecord | None) -> None:
        told = dict(made.sample.verdict.figures) if made is not None else {}
        figures = {name: value for name, value in told.items() if is_figure_name(name) and isfinite(value)}
        names = sorted(figures)[:_FIGURES]
        kept = orjson.dumps({name: figures[name] for name in names}).decode()
        self._db.execute("INSERT INTO contents VALUES (?, ?)", (sample, kept))
        rows = [(evaluation, name, figures[name], sample) for name in names]
        self._db.executemany("INSERT INTO figure_values VALUES (?, ?, ?, ?)", rows)
        if made is not None and made.texts:
            words = map(searchable, texts_of(made))
            self._db.execute("INSERT INTO words(rowid, question, answer) VALUES (?, ?, ?)", (sample, *words))

    def _forget(self, file: str) -> None:
        """Forget a file's records. Their words stay, found by nobody, until there are more of them than of the rest."""
        mine = "sample IN (SELECT id FROM samples WHERE file = ?)"
        for table in ("contents", "figure_values") if self._texts else ():
            self._db.execute(f"DELETE FROM {table} WHERE {mine}", (file,))
        for table in ("files", "samples", "counts", "steps", "groups", "tokens"):
            self._db.execute(f"DELETE FROM {table} WHERE file = ?", (file,))
        ((kept,),) = self._db.execute("SELECT COUNT(*) FROM contents")
        ((indexed,),) = self._db.execute("SELECT COUNT(*) FROM words_docsize")
        if indexed > 2 * kept + _STALE:
            self._db.executescript(
                "INSERT INTO words(words) VALUES ('delete-all'); DELETE FROM contents; DELETE FROM figure_values;"
            )

    def _take(self, file: str, offset: int, until: float) -> tuple[int, bool]:
        """Index the frames of a file from `offset` on; returns where they end, and whether time ended first."""
        samples: list[tuple[Any, ...]] = []
        counts: dict[tuple[str, int], tuple[int, float]] = {}
        late = False
        path = self._where(file)
        for frame in frames(path, offset):
            head, place = frame.header, (file, frame.offset)
            offset = frame.end
            match head.kind:
                case FrameKind.SAMPLE | FrameKind.EVALUATION:
                    figures = (head.reward, head.tokens, head.version, head.outcome)
                    evaluation = _evaluation(path, frame)
                    samples.append((_signed(head.group), head.index, *figures, evaluation, *place))
                    rows, total = counts.get((evaluation, head.outcome), (0, 0.0))
                    counts[evaluation, head.outcome] = (rows + 1, total + head.reward)
                case FrameKind.STEP:
                    row = (head.step, head.version, head.reward, head.tokens, *place)
                    self._db.execute("INSERT INTO steps VALUES (?,?,?,?,?,?)", row)
                    self._take_groups(path, frame, file)
                case FrameKind.TOKENS:
                    row = (head.step, head.index, _signed(head.group), head.version, *place)
                    self._db.execute("INSERT INTO tokens VALUES (?,?,?,?,?,?)", row)
            if time.monotonic() > until:
                late = True
                break
        self._db.executemany("INSERT INTO samples VALUES (NULL,?,?,?,?,?,?,?,?,?)", samples)
        told = [(file, *key, *figures) for key, figures in counts.items()]
        self._db.executemany("INSERT INTO counts VALUES (?,?,?,?,?)", told)
        return offset, late

    def _take_groups(self, path: Path, frame: Frame, file: str) -> None:
        raw = read(path, frame.offset)
        if raw is None:
            return
        step = record.StepRecord.FromString(raw)
        groups = np.frombuffer(step.groups, "<u8").astype(np.int64)
        if not len(groups):
            return
        names, places, count = np.unique(groups, return_inverse=True, return_counts=True)
        rewards = np.frombuffer(step.rewards, "<f8")
        low, high = np.full(len(names), np.inf), np.full(len(names), -np.inf)
        np.minimum.at(low, places, rewards)
        np.maximum.at(high, places, rewards)
        oldest = np.full(len(names), -1)
        np.maximum.at(oldest, places, np.frombuffer(step.ages, "<i4"))
        columns = (
            names, np.full(len(names), step.step), np.full(len(names), step.fence), count,
            np.bincount(places, rewards) / count, low, high,
            np.bincount(places, np.frombuffer(step.tokens, "<u4")).astype(np.int64), oldest,
            np.bincount(places, np.frombuffer(step.mismatch, "<f4")) / count,
        )  # fmt: skip
        rows = zip(*(column.tolist() for column in columns), [file] * len(names), strict=True)
        self._db.executemany("INSERT INTO groups VALUES (?,?,?,?,?,?,?,?,?,?,?)", rows)

    def _where(self, file: str) -> Path:
        directory, _, name = file.partition("/")
        return self._directories[directory] / name

    def _read(self, place: RecordPlace) -> bytes | None:
        return read(self._where(place.file), place.offset)

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def _walk(
        self, query: SampleQuery, after: Sequence[float] | None
    ) -> Iterator[tuple[Sequence[float], SampleRow | None]]:
        """The places of the query's index from one on, each with its sample where the filters let it pass."""
        found, filters, values = walk_of(query)
        ((first, last),) = self._rows("SELECT COALESCE(MIN(id), 0), COALESCE(MAX(id), 0) FROM samples")
        while True:
            window = (after[0] if after else last + 1) - WINDOW
            where, more = (("words.rowid >= ?",), (window,)) if query.text else ((), ())
            statement = found.statement(filters, after, where)
            rows = self._rows(statement, *values, *found.values, *more, *(after or ()))
            for *row, passes, place in ((*row[:12], row[12:]) for row in rows):
                yield place, _row(row) if passes else None
            if len(rows) == CHUNK:
                after = rows[-1][12:]
            elif query.text and window > first:
                after = (window,)
                yield after, None
            else:
                return

    def _samples(self, where: str, *values: Any) -> list[SampleRow]:
        tables = "samples s LEFT JOIN contents c ON c.sample = s.id"
        return [_row(row) for row in self._rows(f"SELECT {COLUMNS} FROM {tables} WHERE {where}", *values)]

    def _groups(self, where: str, *values: Any) -> list[RecordedGroup]:
        columns = "g, step, samples, mean, low, high, tokens, age, mismatch"
        return [RecordedGroup(*row) for row in self._rows(f"SELECT {columns} FROM groups WHERE {where}", *values)]


def _evaluation(path: Path, frame: Frame) -> str:
    """The evaluation that a row belongs to; only the record itself names it."""
    if frame.header.kind is FrameKind.SAMPLE:
        return ""
    raw = read(path, frame.offset)
    return record.SampleRecord.FromString(raw).evaluation_id if raw is not None else "?"


def _row(row: Sequence[Any]) -> SampleRow:
    _, group, index, reward, tokens, version, outcome, evaluation, file, offset, figures = row
    told = orjson.loads(figures) if figures else {}
    return SampleRow(
        group, index, reward, tokens, version, OUTCOMES[outcome], evaluation, RecordPlace(file, offset), told
    )


def _signed(group: int) -> int:
    """SQLite's integers have a sign; no admission index comes near it."""
    return min(group, 2**63 - 1)
