"""Judges a CallSuite: the program's function is called once a case, its results are compared here."""

import asyncio
import time

from areal.errors import DataError

from areal_judge.judge.codec import CodecError
from areal_judge.judge.equality import same
from areal_judge.judge.program import IN_THREAD_BYTES, CallResult, CaseFailure, EncodedCall, Program, call_of, opened
from areal_judge.judge.record import AttemptRecord
from areal_judge.judge.values import CallCase, CallSuite, CaseResult, Status, Submission
from areal_judge.sandbox.host.runner import Sandbox

_SHOWN_CHARS = 200
_MAX_LOST = 20  # processes that a program may lose before the rest of its cases is skipped


async def judge_calls(sandbox: Sandbox, submission: Submission, suite: CallSuite, record: AttemptRecord) -> None:
    """Adds the cases to the record. Raises DataError for a suite that can't be judged, InfraError."""
    lost = 0
    while not record.over and lost < _MAX_LOST:
        before = len(record.cases)
        left = suite.cases[before:]
        await _session(sandbox, submission, suite, left[:1] if suite.isolate_cases else left, record)
        lost += not suite.isolate_cases


async def _session(
    sandbox: Sandbox, submission: Submission, suite: CallSuite, cases: tuple[CallCase, ...], record: AttemptRecord
) -> None:
    """One process, until its cases are through or it is lost."""
    calls = _encoded(cases, len(record.cases))
    if record.left_s <= 0:
        record.out_of_time()
        return
    async with opened(
        sandbox, submission.source, suite.entry_point, suite.prelude, suite.limits,
        calls=len(cases), left_s=record.left_s, longest=max(len(call.frame) for call in calls), numpy=suite.needs_numpy,
    ) as program:  # fmt: skip
        alive = await program.loaded(suite.limits, record)
        for case, call in zip(cases, calls, strict=True):
            if not alive or record.over:
                break
            alive = await _case(program, suite, case, call, record)
        if alive and record.may_pass and (failure := await program.leave()):
            record.flags |= failure.flags
            record.fail_last(failure.case)
        record.ended_with(await program.end())


async def _case(program: Program, suite: CallSuite, case: CallCase, call: EncodedCall, record: AttemptRecord) -> bool:
    """Runs one case; whether the program can go on."""
    if record.left_s <= 0:
        record.out_of_time()
        return False
    outcome = await program.call(call, min(suite.limits.wall_s, record.left_s))
    if isinstance(outcome, CaseFailure):
        record.spent_s += outcome.case.wall_s
        record.flags |= outcome.flags
        record.add(outcome.case)
        return outcome.alive
    record.spent_s += outcome.wall_s
    started = time.monotonic()
    record.add(await _compared(outcome, suite, case, len(call.frame), record))
    record.judge_s += time.monotonic() - started
    return True


async def _compared(
    answer: CallResult, suite: CallSuite, case: CallCase, size: int, record: AttemptRecord
) -> CaseResult:
    try:
        if max(size, answer.size) > IN_THREAD_BYTES:
            right = await asyncio.to_thread(_right, answer.value, case.expected, suite)
        else:
            right = _right(answer.value, case.expected, suite)
    except CodecError as error:
        raise DataError(f"an expected value can't be compared: {error}", fix="use plain builtin values") from None
    if right:
        return CaseResult(0, Status.PASSED, wall_s=answer.wall_s)
    detail = f"wrong result {_shown(answer.value)}"
    if record.options.reveal:
        detail += f", expected {_shown(case.expected)}, arguments {_shown(case.arguments)}"
    return CaseResult(0, Status.WRONG_ANSWER, wall_s=answer.wall_s, detail=detail)


def _right(value: object, expected: object, suite: CallSuite) -> bool:
    if same(value, expected, suite.checker):
        return True
    wrapped = suite.unwrap_single and type(expected) is list and len(expected) == 1
    return wrapped and same(value, expected[0], suite.checker)  # type: ignore[index]


def _encoded(cases: tuple[CallCase, ...], first: int) -> list[EncodedCall]:
    calls = []
    for index, case in enumerate(cases, first):
        try:
            calls.append(call_of(case.arguments, case.keywords))
        except CodecError as error:
            raise DataError(
                f"case {index}: arguments can't be carried: {error}", fix="use plain builtin values"
            ) from None
    return calls


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"a long {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
