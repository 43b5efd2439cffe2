"""Dataset checks before a run: the first row that could be scored by no verifier stops the run, with its place.

Expected answers of the math verifier must be mathematics that equals itself. They are read in processes that are killed
at a deadline, so no row can stall the check, and the whole of it has a budget: what wasn't reached in time is reported,
not refused. Tests of programs are read from the first rows only, for most mistakes are in all rows; what is wrong with
a later one is a fault of its group.
"""

import asyncio
import importlib.util
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from areal.admit.sources import Sources
from areal.data import Snapshot
from areal.data.adapters.files import read_file
from areal.data.rows import encode
from areal.errors import ArealError, DataError, InfraError
from areal.reward.scorer_pool.pool import DeadlineHit, KillablePool, Outcome, PoolSize, ScorerAnswer, ScorerCrash
from areal.reward.scorer_pool.process import ScorerCommand
from areal.reward.verifier import gold_of_row
from areal.reward.verifiers.extraction import gold_text, quick_verdict
from areal.reward.verifiers.guards import too_complex
from areal.reward.verifiers.math import SCORER
from areal.reward.verifiers.normalisation import SERIES, prose
from areal.spec import Finding, RLJob, Severity

CHECK_S = 10.0  # an answer that needs longer could never be compared within a check's two seconds
_FIRST_ROWS = 2_000  # for a quick look: most mistakes are in all rows
FULL_BUDGET_S = 300.0  # some 80,000 different answers on two cores
_AT_ONCE = 256  # answers between two looks at the clock, and at most read after the first bad one
_MEMORY_BYTES = 1 << 30
_SHOWN_CHARS = 80
_SENTENCE = 2  # words of an answer that can't be read, from which it is prose
_FIX = "correct it, drop the row, or choose another verifier (exact compares text)"

_SUITE_ROWS = 2_000
_SUITE_BYTES = 64 << 20  # of rows that are read, at most

SuiteRows = Iterable[tuple[str, Mapping[str, Any], int]]  # Where a row is, for people; the row; its length in bytes

Rows = Iterable[tuple[str, Mapping[str, Any]]]  # Where a row is, for people, and the row


@dataclass(frozen=True)
class GoldCount:
    """Count of rows checked, answers parsed, answers left when the budget ended."""

    rows: int
    read: int  # different answers that computer algebra has read
    left: int = 0  # different answers that the budget left unread


@dataclass(frozen=True)
class BadGold:
    """An expected answer that nothing can be compared with."""

    place: str  # of its first row
    kind: str  # empty, prose, series, complex, slow or unreadable
    why: str
    fix: str


@dataclass(frozen=True)
class GoldReading:
    """What was found of a dataset's expected answers."""

    count: GoldCount
    bad: dict[str, BadGold]  # by the answer as its rows have it; by "" where they have none


def read_golds(
    rows: Rows, field: str, *, budget_s: float = FULL_BUDGET_S, limit: int | None = None, all_of_them: bool = True
) -> GoldReading:
    """Look at every row's expected answer, or at those of the first `limit` rows.

    Without `all_of_them` it may stop after the first that can't be compared. Raises InfraError when the processes that
    read answers can't be started.
    """
    known = 0
    places: dict[str, str] = {}  # different answers that need reading → their first place
    raw: dict[str, list[str]] = {}  # → as rows have them
    bad: dict[str, BadGold] = {}
    for place, row in itertools.islice(rows, limit):
        known += 1
        written = ""
        try:
            written = gold_of_row(row, field)
            gold = gold_text(written)
            if not gold:
                raise DataError(f'the expected answer in "{field}" is empty', fix=_FIX)
            if not quick_verdict(gold, gold) and (why := too_complex(gold, gold)) is not None:
                raise DataError(_unusable(field, gold, why), fix=_FIX)
        except DataError as error:
            kind = "empty" if not written else kind_of(written, "complex")
            bad.setdefault(written, BadGold(place, kind, error.message, error.fix))
            if not all_of_them:
                return GoldReading(GoldCount(known, 0), bad)
            continue
        if not quick_verdict(gold, gold):
            places.setdefault(gold, place)
            raw.setdefault(gold, []).append(written)
    if not places:
        return GoldReading(GoldCount(known, 0), bad)
    golds = list(places)
    wrong, read = _in_thread(golds, budget_s, all_of_them)
    for gold, why in wrong.items():
        for written in raw[gold]:
            bad[written] = BadGold(places[gold], kind_of(written, why), _unusable(field, gold, why), _FIX)
    return GoldReading(GoldCount(known, read, len(golds) - read), bad)


def kind_of(written: str, why: str) -> str:
    """What an expected answer is that can't be compared: empty, prose, series, complex, slow or unreadable."""
    gold = gold_text(written)
    if not gold:
        return "empty"
    if SERIES.search(gold):
        return "series"
    if prose(gold) >= _SENTENCE:
        return "prose"
    return "complex" if why == "complex" else "slow" if why.startswith("reading it") else "unreadable"


def check_golds(rows: Rows, field: str, *, budget_s: float = FULL_BUDGET_S, limit: int | None = None) -> GoldCount:
    """Look at every row's expected answer, or at those of the first `limit` rows.

    Raises:
        DataError: names the first row whose expected answer can't be compared, and how many more there are.
        InfraError: the processes that read answers can't be started.
    """
    found = read_golds(rows, field, budget_s=budget_s, limit=limit, all_of_them=False)
    if found.bad:
        first, *more = found.bad.values()
        words = f"{first.place}: {first.why}"
        raise DataError(f"{words}, and {len(more)} more answers" if more else words, fix=first.fix)
    return found.count


class BadRows:
    """Leaves rows out of a snapshot that the job's verifier could never use, and lists them."""

    def __init__(self, job: RLJob, kind: Callable[[Mapping[str, Any]], str | None]) -> None:
        self._job = job
        self._kind = kind
        self.listed: list[dict[str, str]] = []  # row, gold, kind

    @classmethod
    def of(cls, job: RLJob, verifier: str | None, snapshot: Snapshot, say: Callable[[str], None]) -> "BadRows | None":
        """For a dataset as it was prepared with all its rows; None where nothing is dropped, or nothing is bad."""
        if job.spec.dataset.bad_rows != "drop":
            return None
        if verifier == "code":
            return cls(job, lambda row: suite_fault(job, row))
        if verifier != "math" or not installed():
            return None
        field = job.spec.reward.answer_field
        rows = ((snapshot.place(index), row) for index, row in enumerate(snapshot))
        found = read_golds(rows, field)
        if found.count.left:
            say(f"{found.count.left} different expected answers were not read in time: their rows stay")
        if not found.bad:
            return None
        return cls(job, lambda row: bad.kind if (bad := found.bad.get(_written(row, field))) else None)

    def __call__(self, place: str, row: Mapping[str, Any]) -> str | None:
        kind = self._kind(row)
        if kind is None:
            return None
        self.listed.append({"row": place, "gold": _written(row, self._job.spec.reward.answer_field), "kind": kind})
        return f"rows that the verifier can't use ({kind})"

    def check_share(self, kept: int) -> None:
        """Raise DataError where more rows were left out than the job allows."""
        most, share = self._job.spec.dataset.max_share, len(self.listed) / max(1, len(self.listed) + kept)
        if share <= most:
            return
        kinds = ", ".join(
            f"{count} {kind}" for kind, count in Counter(one["kind"] for one in self.listed).most_common()
        )
        first = self.listed[0]
        raise DataError(
            f"{len(self.listed)} rows ({share:.1%}) can't be used by the verifier, more than dataset.maxShare {most:g} "
            f"allows ({kinds}; the first is {first['row']})",
            fix="mend the rows, choose another verifier, or raise dataset.maxShare",
        )


def _written(row: Mapping[str, Any], field: str) -> str:
    """A row's expected answer as it has it; empty where it is no text and no number."""
    try:
        return gold_of_row(row, field)
    except DataError:
        return ""


def suite_fault(job: RLJob, row: Mapping[str, Any]) -> str | None:
    """What kind of fault a row's tests have; None for tests that can judge a program."""
    from areal.reward.verifiers.code import look_at_suite  # the judge: only a job of programs waits for its import

    try:
        look_at_suite(row, job.spec.reward.programs)
    except ArealError:
        return "tests"
    return None


def check_snapshot(directory: Path, field: str, *, budget_s: float = FULL_BUDGET_S) -> GoldCount:
    """The same for all rows of a prepared dataset."""
    snapshot = Snapshot(directory)
    try:
        rows = ((snapshot.place(index), row) for index, row in enumerate(snapshot))
        return check_golds(rows, field, budget_s=budget_s)
    finally:
        snapshot.close()


def check_suites(job: RLJob, rows: SuiteRows) -> None:
    """Raise DataError for the first row whose tests could judge no program, when programs are what the job scores."""
    if job.spec.reward.verifier != "code":
        return
    from areal.reward.verifiers.code import look_at_suite  # the judge: only a job of programs waits for its import

    left = _SUITE_BYTES
    for number, (place, row, size) in enumerate(rows):
        left -= size
        if number >= _SUITE_ROWS or left < 0:
            return
        try:
            look_at_suite(row, job.spec.reward.programs)
        except ArealError as error:
            raise DataError(f"{place}: {error.message.removeprefix('row: ')}", fix=error.fix) from None


def rows_of_file(path: Path) -> SuiteRows:
    """The rows of a data file, as `check_suites` takes them, up to one that can't be read: it is told elsewhere."""
    with suppress(DataError):
        for place, row, text in read_file(path, kind=".jsonl"):
            yield place, row, len(encode(row, place) if text is None else text)


def rows_of_snapshot(directory: Path, split: str) -> SuiteRows:
    """The rows of a prepared dataset, the same way; none when there is no such split."""
    if not directory.exists():
        return
    snapshot = Snapshot(directory)
    try:
        for index in range(min(len(snapshot), _SUITE_ROWS)):
            line = snapshot.row_json(index)
            yield f"dataset.{split}, row {index + 1}", orjson.loads(line), len(line)
    finally:
        snapshot.close()


def row_findings(job: RLJob, sources: Sources) -> list[Finding]:
    """What the verifier could never use among the first rows of files: tests of programs, answers of mathematics."""
    verifier = job.spec.reward.verifier
    if verifier == "math" and not installed():
        return []
    findings = []
    for field, source in sources.dataset.named.items():
        if source.jsonl is None or not Path(source.jsonl).is_file():
            continue
        severity = Severity.ERROR
        rows = rows_of_file(Path(source.jsonl))
        try:
            found = _first_suites(job, rows) if verifier == "code" else _first_golds(job, rows)
            if found.bad:
                findings.append(_dropped(job, field, found))
            continue
        except DataError as error:
            told: ArealError = error
        except InfraError as error:
            told, severity = error, Severity.WARNING
        rule = "code-suite" if verifier == "code" else "math-answer"
        findings.append(Finding(rule, severity, field, told.message, told.fix, job.where(field)))
    return findings


def _first_suites(job: RLJob, rows: SuiteRows) -> GoldReading:
    """The tests of the first rows. Raises DataError for bad ones unless the job drops them."""
    if job.spec.dataset.bad_rows != "drop":
        check_suites(job, rows)
        return GoldReading(GoldCount(0, 0), {})
    looked = [(place, suite_fault(job, row)) for place, row, _ in itertools.islice(rows, _SUITE_ROWS)]
    bad = {place: BadGold(place, kind, "its tests can judge no program", "") for place, kind in looked if kind}
    return GoldReading(GoldCount(len(looked), 0), bad)


def _first_golds(job: RLJob, suite_rows: SuiteRows) -> GoldReading:
    """The expected answers of the first rows. Raises DataError for a bad one unless the job drops them."""
    field, rows = job.spec.reward.answer_field, ((place, row) for place, row, _ in suite_rows)
    if job.spec.dataset.bad_rows == "drop":
        return read_golds(rows, field, limit=_FIRST_ROWS)
    return GoldReading(check_golds(rows, field, limit=_FIRST_ROWS), {})


def _dropped(job: RLJob, field: str, found: GoldReading) -> Finding:
    share, most = len(found.bad) / found.count.rows, job.spec.dataset.max_share
    first, kinds = next(iter(found.bad.values())), Counter(bad.kind for bad in found.bad.values())
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    words = f"{len(found.bad)} of the first {found.count.rows} rows can't be used ({told}); {first.place}: "
    severity = Severity.ERROR if share > most else Severity.WARNING
    fix = "raise dataset.maxShare, or mend them" if share > most else "they will be left out, and listed"
    return Finding("math-answer", severity, field, words + first.why, fix, job.where(field))


def installed() -> bool:
    """Whether expected answers can be looked at here."""
    return importlib.util.find_spec("math_verify") is not None


def _unusable(field: str, gold: str, why: str) -> str:
    shown = gold if len(gold) <= _SHOWN_CHARS else f"{gold[:_SHOWN_CHARS]}…"
    return f'the expected answer {shown!r} in "{field}" can\'t be compared as mathematics ({why})'


def _in_thread(golds: list[str], budget_s: float, all_of_them: bool) -> tuple[dict[str, str], int]:
    """Runs `_read` to its end wherever the caller is, inside an event loop or not."""
    answer: list[tuple[dict[str, str], int]] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(asyncio.run(_read(golds, budget_s, all_of_them)))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="golds")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return answer[0]


async def _read(golds: list[str], budget_s: float, all_of_them: bool) -> tuple[dict[str, str], int]:
    """Bad answers with what is wrong with them, and how many were read.

    Unless all of them are asked for it stops soon after the first bad one.
    """
    ends = time.monotonic() + budget_s
    workers = max(1, min(os.cpu_count() or 1, -(-len(golds) // 16)))
    command = ScorerCommand(SCORER, memory_bytes=_MEMORY_BYTES, preloaded=True, confined=True)
    pool = KillablePool(command, PoolSize(least=1, most=workers))
    bad: dict[str, str] = {}
    read = 0
    await pool.start()
    try:
        for start in range(0, len(golds), _AT_ONCE):
            left_s = ends - time.monotonic()
            if left_s <= 0 or (bad and not all_of_them):
                break
            part = golds[start : start + _AT_ONCE]
            deadline_s = min(CHECK_S, left_s)
            payloads = [[gold, gold, True] for gold in part]
            outcomes = await pool.run(payloads, [deadline_s] * len(part), left_s)
            for gold, outcome in zip(part, outcomes, strict=True):
                wrong = _wrong(outcome, deadline_s)
                read += wrong is not None
                if wrong:
                    bad[gold] = wrong
    finally:
        await pool.stop()
    return bad, read


def _wrong(outcome: Outcome, deadline_s: float) -> str | None:
    """What is wrong with an answer; nothing ("") or not known (None)."""
    match outcome:
        case ScorerAnswer(["EQUAL", _]):
            return ""
        case ScorerAnswer(["NOT_EQUAL", _]):
            return "it doesn't equal itself"
        case ScorerAnswer(["GOLD_UNPARSEABLE" | "UNPARSEABLE", _]):
            return "math-verify can't read it"
        case ScorerAnswer([str(status), str(detail)]):
            return f"{status}: {detail}" if detail else status
        case DeadlineHit() if deadline_s >= CHECK_S:
            return f"reading it takes more than {CHECK_S:g} s"
        case ScorerCrash(how):
            return f"reading it ends the process ({how})"
        case _:
            return None
