"""SQLite index of a recording: where each sample, step and token lies in the segments, and the figures to list them by.

Owns no truth: it is built from the headers of the segments, follows them while they grow, forgets segments that
retention deleted, and is built anew when it is missing, damaged or of another version. What a reader can't wait for is
taken in by a thread beside it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from areal.record.segment import OUTCOMES, SUFFIX, Frame, FrameKind, frames, read
from areal.v1 import record_pb2 as record

_VERSION = 2
_RARE = 20_000  # samples that are found by an index and then sorted
_PATIENCE_S = 0.1  # for what a reader waits before a thread goes on
_SLICE_S = 0.03  # of that thread, between which readers are served
_TABLES = """
CREATE TABLE files(file TEXT PRIMARY KEY, done INTEGER);
CREATE TABLE samples(g INTEGER, i INTEGER, reward REAL, tokens INTEGER, version INTEGER, outcome INTEGER,
  evaluation TEXT, file TEXT, offset INTEGER);
CREATE INDEX samples_by_key ON samples(evaluation, g, i);
CREATE INDEX samples_by_reward ON samples(evaluation, outcome, reward);
CREATE TABLE counts(file TEXT, evaluation TEXT, outcome INTEGER, rows INTEGER, reward REAL);
CREATE TABLE steps(step INTEGER, fence INTEGER, reward REAL, tokens INTEGER, file TEXT, offset INTEGER);
CREATE INDEX steps_by_step ON steps(step, fence);
CREATE TABLE groups(g INTEGER, step INTEGER, fence INTEGER, samples INTEGER, mean REAL, low REAL, high REAL,
  tokens INTEGER, age INTEGER, mismatch REAL, file TEXT);
CREATE INDEX groups_by_group ON groups(g);
CREATE INDEX groups_by_step ON groups(step, fence);
CREATE TABLE tokens(step INTEGER, fence INTEGER, first INTEGER, last INTEGER, file TEXT, offset INTEGER);
CREATE INDEX tokens_by_step ON tokens(step, fence);
"""


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
    """The index of the segments in `directories`, in the file `path`. Safe from any thread."""

    def __init__(self, path: Path, directories: Sequence[Path]) -> None:
        self._path = path
        self._directories = {directory.name: directory for directory in directories}
        self._lock = threading.Lock()
        self._db = self._open()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._behind = 0

    def refresh(self, patience_s: float = _PATIENCE_S) -> RecordIndex:
        """Take in what was written since the last call; what takes longer than `patience_s` goes on beside."""
        with self._lock:
            if self._thread is None and not self._slice(patience_s):
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
        where = "evaluation = ? AND g = ? ORDER BY i, rowid"
        return self._samples(where, evaluation, group)

    def find(
        self,
        *,
        outcome: str | None = None,
        low: float | None = None,
        high: float | None = None,
        limit: int = 200,
    ) -> list[SampleRow]:
        """The newest training samples of this outcome and with rewards from `low` to `high`."""
        rare = outcome is not None and self.outcomes().get(outcome, 0) < _RARE
        # Without the plus SQLite sorts all that the index finds; what is common is found soon from the newest on.
        where, values = ["evaluation = ''" if rare else "+evaluation = ''"], []
        for condition, value in (
            ("outcome = ?", None if outcome is None else OUTCOMES.index(outcome)),
            ("reward >= ?", low),
            ("reward <= ?", high),
        ):
            if value is not None:
                where.append(condition)
                values.append(value)
        return self._samples(f"{' AND '.join(where)} ORDER BY rowid DESC LIMIT {int(limit)}", *values)

    def outcomes(self) -> dict[str, int]:
        """Number of training episodes by outcome."""
        rows = self._rows("SELECT outcome, SUM(rows) FROM counts WHERE evaluation = '' GROUP BY outcome")
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
                return db
        db.close()
        self._path.unlink(missing_ok=True)
        db = sqlite3.connect(self._path, check_same_thread=False)
        db.executescript(f"PRAGMA synchronous=OFF; {_TABLES} PRAGMA user_version = {_VERSION};")
        return db

    def _go_on(self) -> None:
        while not self._closing:
            time.sleep(_SLICE_S / 4)  # a lock is not fair
            with self._lock:
                done = True
                try:
                    done = self._slice(_SLICE_S)
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
        self._behind = sum(max(0, size - known.get(file, 0)) for file, size in there.items())
        return not late

    def _forget(self, file: str) -> None:
        for table in ("files", "samples", "counts", "steps", "groups", "tokens"):
            self._db.execute(f"DELETE FROM {table} WHERE file = ?", (file,))

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
                    fence = head.index
                    row = (head.step, fence, _signed(head.group), head.version, *place)
                    self._db.execute("INSERT INTO tokens VALUES (?,?,?,?,?,?)", row)
            if time.monotonic() > until:
                late = True
                break
        self._db.executemany("INSERT INTO samples VALUES (?,?,?,?,?,?,?,?,?)", samples)
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

    def _samples(self, where: str, *values: Any) -> list[SampleRow]:
        columns = "g, i, reward, tokens, version, outcome, evaluation, file, offset"
        rows = self._rows(f"SELECT {columns} FROM samples WHERE {where}", *values)
        return [
            SampleRow(g, i, reward, tokens, version, OUTCOMES[outcome], evaluation, RecordPlace(file, offset))
            for g, i, reward, tokens, version, outcome, evaluation, file, offset in rows
        ]

    def _groups(self, where: str, *values: Any) -> list[RecordedGroup]:
        columns = "g, step, samples, mean, low, high, tokens, age, mismatch"
        return [RecordedGroup(*row) for row in self._rows(f"SELECT {columns} FROM groups WHERE {where}", *values)]


def _evaluation(path: Path, frame: Frame) -> str:
    """The evaluation that a row belongs to; only the record itself names it."""
    if frame.header.kind is FrameKind.SAMPLE:
        return ""
    raw = read(path, frame.offset)
    return record.SampleRecord.FromString(raw).evaluation_id if raw is not None else "?"


def _signed(group: int) -> int:
    """SQLite's integers have a sign; no admission index comes near it."""
    return min(group, 2**63 - 1)
