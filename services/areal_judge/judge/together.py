"""Judges an AssertSuite whose tests need the program's own classes: tests and program share one process.

What comes out can be forged by a program that sets its mind to it. The judgement says so (`Integrity.IN_PROCESS`), and
who asks for more is refused before anything runs.
"""

import os
import time
from dataclasses import replace
from typing import Any

from areal.errors import DataError, InfraError

from areal_judge.judge import codec
from areal_judge.judge.codec import CodecError
from areal_judge.judge.drivers import TESTER
from areal_judge.judge.drivers.cases import BROKEN, PASSED, PROGRAM
from areal_judge.judge.drivers.wire import REQUEST_BYTES
from areal_judge.judge.program import PREPARE_FIX, PREPARE_S, case_of, is_line, leave_s, of_silence
from areal_judge.judge.record import AttemptRecord
from areal_judge.judge.values import AssertSuite, CaseResult, Flag, Status, Submission
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.host.session import CellSession, FrameError
from areal_judge.sandbox.values import Driver, ProgramRun

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
            first = await _told(session, token, PREPARE_S)
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
        frame = await _told(session, token, min(suite.limits.wall_s, record.left_s))
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
            done = await _told(session, token, within_s)
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


async def _told(session: CellSession, token: bytes, timeout_s: float) -> tuple[Any, ...] | None:
    """The next frame that carries the token; one without, or a broken one, is like none."""
    try:
        data = await session.receive(timeout_s)
        frame = codec.decode(data) if data is not None else None
    except (FrameError, CodecError):
        return ("forged",)
    if frame is None:
        return None
    return frame if type(frame) is tuple and len(frame) > 2 and frame[1] == token else ("forged",)
