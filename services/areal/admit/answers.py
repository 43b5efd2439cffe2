"""Dataset checks before a run: the first row that could be scored by no verifier stops the run, with its place.

Expected answers of the math verifier must be mathematics that equals itself. They are read in processes that are killed
at a deadline, so no row can stall the check, and the whole of it has a budget: what wasn't reached in time is reported,
not refused. Tests of programs are read from the first rows only, for most mistakes are in all rows; what is wrong with
a later one is a fault of its group.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import threading
import time
from collections.abc import Iterable, Mapping
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
from areal.reward.rows import gold_of_row
from areal.reward.scorer_pool.pool import DeadlineHit, KillablePool, Outcome, PoolSize, ScorerAnswer, ScorerCrash
from areal.reward.scorer_pool.process import ScorerCommand
from areal.reward.verifiers.extraction import gold_text, quick_verdict
from areal.reward.verifiers.guards import too_complex
from areal.reward.verifiers.math import SCORER
from areal.spec import Finding, RLJob, Severity

CHECK_S = 10.0  # an answer that needs longer could never be compared within a check's two seconds
_FIRST_ROWS = 2_000  # for a quick look: most mistakes are in all rows
_QUICK_BUDGET_S = 20.0
FULL_BUDGET_S = 300.0  # some 80,000 different answers on two cores
_AT_ONCE = 256  # answers between two looks at the clock, and at most read after the first bad one
_MEMORY_BYTES = 1 << 30
_SHOWN_CHARS = 80
_FIX = "correct it, drop the row, or choose another verifier (exact compares text)"

_SUITE_ROWS = 2_000
_SUITE_BYTES = 64 << 20  # of rows that are read, at most

SuiteRows = Iterable[tuple[str, Mapping[str, Any], int]]
"""Where a row is, for people; the row; its length in bytes."""

Rows = Iterable[tuple[str, Mapping[str, Any]]]
"""Where a row is, for people, and the row."""


@dataclass(frozen=True)
class GoldCount:
    """Count of rows checked, answers parsed, answers left when the budget ended."""

    rows: int
    read: int  # different answers that computer algebra has read
    left: int = 0  # different answers that the budget left unread


def check_golds(rows: Rows, field: str, *, budget_s: float = FULL_BUDGET_S, limit: int | None = None) -> GoldCount:
    """Look at every row's expected answer, or at those of the first `limit` rows.

    Raises:
        DataError: names the first row whose expected answer can't be compared, and how many more there are.
        InfraError: the processes that read answers can't be started.
    """
    known = 0
    places: dict[str, str] = {}  # different answers that need reading → their first place
    for place, row in itertools.islice(rows, limit):
        known += 1
        try:
            gold = gold_text(gold_of_row(row, field))
        except DataError as error:
            raise DataError(f"{place}: {error.message}", fix=error.fix) from None
        if not gold:
            raise DataError(f'{place}: the expected answer in "{field}" is empty', fix=_FIX)
        if quick_verdict(gold, gold):
            continue
        if (why := too_complex(gold, gold)) is not None:
            raise DataError(_unusable(place, field, gold, why), fix=_FIX)
        places.setdefault(gold, place)
    if not places:
        return GoldCount(known, 0)
    golds = list(places)
    bad, read = _in_thread(golds, budget_s)
    if bad:
        (first, why), *more = bad.items()
        words = _unusable(places[first], field, first, why)
        raise DataError(f"{words}, and {len(more)} more answers" if more else words, fix=_FIX)
    return GoldCount(known, read, len(golds) - read)


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
            if verifier == "code":
                check_suites(job, rows)
            else:
                placed = ((place, row) for place, row, _ in rows)
                check_golds(placed, job.spec.reward.answer_field, budget_s=_QUICK_BUDGET_S, limit=_FIRST_ROWS)
            continue
        except DataError as error:
            told: ArealError = error
        except InfraError as error:
            told, severity = error, Severity.WARNING
        rule = "code-suite" if verifier == "code" else "math-answer"
        findings.append(Finding(rule, severity, field, told.message, told.fix, job.where(field)))
    return findings


def installed() -> bool:
    """Whether expected answers can be looked at here."""
    return importlib.util.find_spec("math_verify") is not None


def _unusable(place: str, field: str, gold: str, why: str) -> str:
    shown = gold if len(gold) <= _SHOWN_CHARS else f"{gold[:_SHOWN_CHARS]}…"
    return f'{place}: the expected answer {shown!r} in "{field}" can\'t be compared as mathematics ({why})'


def _in_thread(golds: list[str], budget_s: float) -> tuple[dict[str, str], int]:
    """Runs `_read` to its end wherever the caller is, inside an event loop or not."""
    answer: list[tuple[dict[str, str], int]] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(asyncio.run(_read(golds, budget_s)))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="golds")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return answer[0]


async def _read(golds: list[str], budget_s: float) -> tuple[dict[str, str], int]:
    """Bad answers with what is wrong with them, and how many were read. Stops soon after the first bad one."""
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
            if left_s <= 0 or bad:
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
