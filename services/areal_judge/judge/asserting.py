"""Judges an AssertSuite: trusted test code in one cell calls a program in another; this module is the bridge.

The tester says which calls to make and which asserts held; the program is asked for values and nothing else.
"""

import os
import time
from dataclasses import dataclass, replace
from typing import Any

from areal.errors import DataError, InfraError

from areal_judge.judge import codec
from areal_judge.judge.codec import CodecError
from areal_judge.judge.drivers import TESTER
from areal_judge.judge.drivers.cases import BROKEN, PASSED, PROGRAM
from areal_judge.judge.drivers.wire import REQUEST_BYTES, REQUEST_NODES
from areal_judge.judge.program import (
    PREPARE_FIX,
    PREPARE_S,
    CallResult,
    CaseFailure,
    Program,
    call_of,
    case_of,
    is_line,
    leave_s,
    of_output,
    of_silence,
    opened,
)
from areal_judge.judge.record import AttemptRecord
from areal_judge.judge.values import AssertSuite, CaseResult, Flag, Status, Submission
from areal_judge.sandbox.host.runner import Pair, Sandbox
from areal_judge.sandbox.host.session import CellSession, FrameError
from areal_judge.sandbox.values import Driver, Ending, Limits, ProgramRun

LONGEST_FRAME = 16 << 20  # the tester is ours: inputs that it makes may be long
_OWN_S = 10.0  # what the test code may take by itself between two calls
_GRACE_S = 2.0
_MEMORY_BYTES = 1 << 30
_GONE = ("error", "ProgramError", "the program is gone", "Exception")


@dataclass
class _CaseOutcome:
    """What happened to the program within one case of the tests."""

    calls: int = 0
    wall_s: float = 0.0
    failure: CaseFailure | None = None  # that no test code may forgive
    raised: CaseFailure | None = None  # the last exception, which a test may expect


async def judge_asserts(pair: Pair, submission: Submission, suite: AssertSuite, record: AttemptRecord) -> None:
    """Adds the cases to the record. Raises DataError for a suite that can't be judged, InfraError."""
    whole_s = record.options.total_s + _OWN_S
    limits = Limits(wall_s=whole_s, cpu_s=whole_s, memory_bytes=max(_MEMORY_BYTES, suite.limits.memory_bytes))
    given = ("bridged", suite.prelude, suite.test, suite.entry_point, suite.updates_arguments)
    payload = codec.encode(given, max_bytes=REQUEST_BYTES, max_nodes=REQUEST_NODES)
    run = ProgramRun(Driver(TESTER, payload), limits=limits, numpy=suite.needs_numpy)
    async with pair.session(run, LONGEST_FRAME) as tester:
        kind, *said = await _told(tester, PREPARE_S) or await _silent(tester)
        if kind != "cases" or not said[0]:
            words = ": ".join(map(str, said)) or "no cases"
            raise DataError(f"the suite's tests can't run: {words}", fix="mend the suite's test code")
        record.total = said[0]
        async with opened(
            pair, submission.source, suite.entry_point, suite.prelude, suite.limits,
            calls=record.total, left_s=record.left_s, longest=LONGEST_FRAME, numpy=suite.needs_numpy,
        ) as program:  # fmt: skip
            await _Bridge(tester, program, suite, record).run()
            record.ended_with(await program.end())


class _Bridge:
    """Between a tester and a program that are both there."""

    def __init__(self, tester: CellSession, program: Program, suite: AssertSuite, record: AttemptRecord) -> None:
        self._tester = tester
        self._program = program
        self._limits = suite.limits
        self._record = record
        self._case = _CaseOutcome()
        self._calls = 0
        self._alive = True

    async def run(self) -> None:
        record = self._record
        if not await self._program.loaded(self._limits, record):
            return
        await self._send("go", record.runs_all)
        while not record.over:
            await self._step()
        if self._calls == 0:
            raise DataError("the suite's tests never call the program", fix="mend the suite's test code")
        if self._alive and record.may_pass and (extra := await self._program.leave()):
            record.flags |= extra.flags
            record.fail_last(extra.case)

    async def _step(self) -> None:
        """One thing that the tester says."""
        kind, *given = await _told(self._tester, _OWN_S + self._limits.wall_s) or ("gone",)
        if kind == "call":
            await self._send(*await self._called(*given))
        elif kind == "case":
            self._close(*given[1:])
        else:
            await self._tester_gone()

    async def _called(self, arguments: Any, keywords: Any, bring_back: bool) -> tuple[Any, ...]:
        """Makes one call for the tester."""
        case = self._case
        case.calls += 1
        self._calls += 1
        left_s = min(self._limits.wall_s, self._record.left_s) - case.wall_s
        if left_s <= 0 and self._alive:
            late = CaseResult(0, Status.TIME_LIMIT, detail="the calls of this case together took too long")
            case.failure = case.failure or CaseFailure(late)
        if left_s <= 0 or not self._alive:
            return _GONE
        try:
            call = call_of(arguments, keywords, bring_back=bring_back)
        except CodecError as error:
            if self._calls == 1:  # later ones may be made of what the program returned
                raise DataError(f"arguments of a test can't be carried: {error}", fix="use smaller inputs") from None
            bad = CaseResult(0, Status.BAD_RESULT_TYPE, detail=f"the tests can't pass its result on: {error}")
            case.failure = case.failure or CaseFailure(bad)
            return _GONE
        outcome = await self._program.call(call, left_s)
        if isinstance(outcome, CallResult):
            case.wall_s += outcome.wall_s
            return "result", outcome.value, outcome.arguments
        case.wall_s += outcome.case.wall_s
        self._record.flags |= outcome.flags
        self._alive = outcome.alive
        if outcome.raised is None:
            case.failure = case.failure or outcome
            return _GONE
        case.raised = outcome
        return "error", *outcome.raised

    def _close(self, verdict: str, name: str, message: str, line: int | None) -> None:
        """The tester is through with a case."""
        case, self._case = self._case, _CaseOutcome()
        record = self._record
        record.spent_s += case.wall_s
        if case.failure is not None:
            record.add(replace(case.failure.case, wall_s=case.wall_s))
        elif verdict == PASSED:
            record.add(CaseResult(0, Status.PASSED, wall_s=case.wall_s))
        elif verdict == PROGRAM and case.raised is not None:
            record.add(replace(case.raised.case, wall_s=case.wall_s))
        elif verdict == BROKEN:
            raise DataError(f"the suite's tests raised {name}: {message}", fix="mend the suite's test code")
        else:
            detail = f"the tests refused its result (line {line})"
            if record.options.reveal:
                detail += f": {name}: {message}"
            record.add(CaseResult(0, Status.WRONG_ANSWER, wall_s=case.wall_s, detail=detail))
        if not self._alive:
            record.skip_rest()

    async def _tester_gone(self) -> None:
        """Test code that does not end, or ends badly: over what the program gave it, or by itself."""
        ended = await self._tester.finish(_GRACE_S)
        status, detail = of_output(ended)
        if not self._calls:
            raise DataError(
                f"the suite's tests ended early: {detail or 'exit code 0'}", fix="mend the suite's test code"
            )
        if status in (Status.PASSED, Status.RUNTIME_ERROR):
            status = Status.WRONG_ANSWER
        elif status is Status.PROTOCOL_VIOLATION:
            status = Status.TIME_LIMIT
        case = self._case.failure.case if self._case.failure else CaseResult(0, status)
        self._record.add(replace(case, detail=case.detail or "the tests could not cope with its result"))
        self._record.skip_rest()

    async def _send(self, *frame: Any) -> None:
        await self._tester.send(codec.encode(frame, max_bytes=LONGEST_FRAME, max_nodes=REQUEST_NODES))


async def _silent(tester: CellSession) -> tuple[Any, ...]:
    """Why tests say nothing before anything of the program has run. Raises InfraError when they were only too slow."""
    ended = await tester.finish()
    if ended.ending in (Ending.CANCELLED, Ending.WALL_LIMIT):
        raise InfraError(f"the suite's tests were not ready within {PREPARE_S:g} s", fix=PREPARE_FIX)
    return "gone", of_output(ended)[1] or "they ended early"


async def _told(tester: CellSession, timeout_s: float) -> tuple[Any, ...] | None:
    """The tester's next frame; None when it is gone, or takes too long."""
    try:
        data = await tester.receive(timeout_s)
    except (TimeoutError, FrameError):
        return None
    if data is None:
        return None
    try:
        frame = codec.decode(data, max_bytes=LONGEST_FRAME, max_nodes=REQUEST_NODES)
    except CodecError as error:
        raise InfraError(f"a tester sent what is no frame: {error}", fix="try again") from None
    return frame if isinstance(frame, tuple) else None


# ---- Judges an AssertSuite whose tests need the program's own classes: tests and program share one process
# What comes out can be forged by a program that sets its mind to it; the judgement says so (`Integrity.IN_PROCESS`).


_TOKEN_BYTES = 16
_FAILED = {"refused": Status.COMPILE_ERROR, "raised": Status.RUNTIME_ERROR, "exited": Status.RUNTIME_ERROR,
           "missing": Status.RUNTIME_ERROR}  # fmt: skip
_SIGNS = {"exited": Flag.EXITED_EARLY, "missing": Flag.NO_ENTRY_POINT}
_VERDICTS = {PASSED: Status.PASSED, PROGRAM: Status.RUNTIME_ERROR}


async def judge_together(sandbox: Sandbox, submission: Submission, suite: AssertSuite, record: AttemptRecord) -> None:
    """Adds the cases to the record. Raises DataError for a suite that can't be judged, InfraError."""
    token = os.urandom(_TOKEN_BYTES)
    given = ("together", token, suite.prelude, suite.test, suite.entry_point, submission.source, record.runs_all)
    whole_s = record.options.total_s
    limits = replace(suite.limits, wall_s=PREPARE_S + whole_s + leave_s(suite.limits), cpu_s=whole_s)
    run = ProgramRun(
        Driver(TESTER, codec.encode(given, max_bytes=REQUEST_BYTES)), limits=limits, numpy=suite.needs_numpy
    )
    async with sandbox.session(run) as session:
        try:
            first = await _told_together(session, token, PREPARE_S)
        except TimeoutError:
            raise InfraError(f"the suite's prelude took over {PREPARE_S:g} s", fix=PREPARE_FIX) from None
        if first is None or first[0] != "cases" or not first[2]:
            words = ": ".join(map(str, first[2:])) if first else "no answer"
            raise DataError(f"the suite's tests can't run: {words}", fix="mend the suite's test code")
        record.total = first[2]
        alive = True
        while alive and not record.over:
            alive = await _step(session, token, suite, record)
        await _leave(session, token, record, alive, leave_s(suite.limits))


async def _step(session: CellSession, token: bytes, suite: AssertSuite, record: AttemptRecord) -> bool:
    """One case; whether there may be more."""
    started = time.monotonic()
    try:
        frame = await _told_together(session, token, min(suite.limits.wall_s, record.left_s))
    except TimeoutError:
        session.kill()
        ended = await session.finish()
        record.add(case_of(Status.TIME_LIMIT, "the tests took too long", ended))
        record.skip_rest()
        return False
    wall_s = time.monotonic() - started
    record.spent_s += wall_s
    if frame is None:
        ended = await session.finish(leave_s(suite.limits))
        status, detail, flags = of_silence(ended)
        record.flags |= flags
        record.add(case_of(status, detail, ended))
        record.skip_rest()
        return False
    if frame[0] == "failed" and len(frame) == 6 and type(frame[2]) is str and frame[2] in _FAILED and _says(*frame[3:]):
        record.flags |= {_SIGNS[frame[2]]} if frame[2] in _SIGNS else set()
        record.add(CaseResult(0, _FAILED[frame[2]], wall_s=wall_s, detail=f"{frame[3]}: {frame[4]} (line {frame[5]})"))
        record.skip_rest()
        return False
    told = frame[0] == "case" and len(frame) == 7 and type(frame[3]) is str and _says(*frame[4:])
    if not told or frame[2] != len(record.cases):
        record.add(CaseResult(0, Status.PROTOCOL_VIOLATION, detail="a frame of the wrong kind"))
        record.skip_rest()
        return False
    _, _, _, verdict, name, message, line = frame
    shown = f": {name}: {message}" if record.options.reveal or verdict in (PROGRAM, BROKEN) else ""
    detail = f"the tests failed (line {line}){shown}" if verdict != PASSED else ""
    record.add(CaseResult(0, _VERDICTS.get(verdict, Status.WRONG_ANSWER), wall_s=wall_s, detail=detail))
    return True


async def _leave(session: CellSession, token: bytes, record: AttemptRecord, alive: bool, within_s: float) -> None:
    """After the last case nothing but the end may come."""
    ended = None
    if alive and all(case.status is Status.PASSED for case in record.cases):
        try:
            done = await _told_together(session, token, within_s)
            extra = await session.receive(within_s) if done is not None and done[0] == "done" else b""
        except (TimeoutError, FrameError):
            extra = b""
        ended = await session.finish(within_s if extra is None else 0.0)
        if extra is not None or not ended.clean:
            record.flags.add(Flag.EXTRA_FRAMES)
            record.fail_last(case_of(Status.PROTOCOL_VIOLATION, "more after the last case, or no clean end", ended))
    if ended is None:
        session.kill()
        ended = await session.finish()
    record.ended_with(ended)


def _says(name: Any, message: Any, line: Any) -> bool:
    """Whether that is what a driver says of an exception."""
    return type(name) is str and type(message) is str and is_line(line)


async def _told_together(session: CellSession, token: bytes, timeout_s: float) -> tuple[Any, ...] | None:
    """The next frame that carries the token; one without, or a broken one, is like none."""
    try:
        data = await session.receive(timeout_s)
        frame = codec.decode(data) if data is not None else None
    except (FrameError, CodecError):
        return ("forged",)
    if frame is None:
        return None
    return frame if type(frame) is tuple and len(frame) > 2 and frame[1] == token else ("forged",)
