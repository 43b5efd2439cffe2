"""The judge's end of a conversation with a program in a cell (`drivers.calls`).

Owns what may be believed: one answer for each request, after the request, with the request's nonce, within its time,
of a plain value; nothing after the last one; a clean end. Everything else fails the case, and ends the program.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from areal.errors import DataError, InfraError

from areal_judge.judge import codec
from areal_judge.judge.codec import CodecError
from areal_judge.judge.drivers import CALLS
from areal_judge.judge.drivers.wire import REQUEST_BYTES, REQUEST_NODES
from areal_judge.judge.record import LIMITS, AttemptRecord, head
from areal_judge.judge.values import CaseResult, Flag, Status
from areal_judge.sandbox.host.runner import Pair, Sandbox
from areal_judge.sandbox.host.session import CellSession, FrameError
from areal_judge.sandbox.values import Driver, Ending, Limits, ProgramRun, RunEnding

FRAME_BYTES = 1 << 20
PREPARE_S = 10.0  # for what is the suite's own: its imports take their time on a busy machine
SLACK_S = 2.0  # beyond what the judge allows by itself: the runner's limits are the second line
_LEAVE_S = (0.5, 5.0)  # least and most for the end of a program that has answered everything
IN_THREAD_BYTES = 64 << 10  # a longer frame is decoded beside the event loop
_NONCE_BYTES = 12
_LINE_BITS = 32
PREPARE_FIX = "try again; when it is always so, make the suite's prelude faster"

_RAISED = {"raised": Status.RUNTIME_ERROR, "exited": Status.RUNTIME_ERROR, "refused": Status.COMPILE_ERROR,
           "missing": Status.RUNTIME_ERROR, "foreign": Status.BAD_RESULT_TYPE, "posing": Status.BAD_RESULT_TYPE,
           "too_big": Status.BAD_RESULT_TYPE}  # fmt: skip
_SIGNS = {"exited": Flag.EXITED_EARLY, "missing": Flag.NO_ENTRY_POINT, "posing": Flag.FOREIGN_TYPE}
_TO_PREPARE = frozenset({"prelude_failed", "prepared"})
_TO_LOAD = frozenset({"refused", "parsed"})  # sent before the program's first instruction
_TO_START = frozenset({"loaded", "missing", "raised", "exited"})
_TO_CALL = frozenset({"result", "raised", "exited", "foreign", "posing", "too_big"})


def leave_s(limits: Limits) -> float:
    """How long a program may take to end once it has answered everything: as long as for a call, within bounds."""
    least, most = _LEAVE_S
    return min(most, max(least, limits.wall_s))


@dataclass(frozen=True)
class CaseFailure:
    """A case that did not pass. `alive`: the program goes on and may be called again."""

    case: CaseResult
    flags: frozenset[Flag] = frozenset()
    alive: bool = False
    raised: tuple[str, str, str] | None = None  # the exception's type, message and nearest builtin type


@dataclass(frozen=True)
class CallResult:
    """What a call returned, and what it left in its arguments where that was asked for."""

    value: Any
    arguments: Any
    wall_s: float
    size: int  # bytes in which it came


@dataclass(frozen=True)
class EncodedCall:
    """A request, encoded once."""

    frame: bytes
    nonce: bytes


def call_of(arguments: tuple[Any, ...], keywords: Mapping[str, Any], *, bring_back: bool = False) -> EncodedCall:
    """Raises CodecError when the arguments can't be carried."""
    nonce = os.urandom(_NONCE_BYTES)
    return EncodedCall(_request("call", nonce, arguments, dict(keywords), bring_back), nonce)


class Program:
    """A program in a cell, loaded and called. Made by `opened`."""

    def __init__(self, session: CellSession, nonce: bytes, leave_s: float) -> None:
        """`leave_s`: how long it may take to end."""
        self._session = session
        self._nonce = nonce
        self._leave_s = leave_s
        self._ended: RunEnding | None = None
        self._size = 0  # bytes of the last frame

    async def load(self, timeout_s: float) -> CaseFailure | None:
        """Waits until the program is ready to be called. Raises as `_prepared`."""
        await self._prepared()
        first = await self._receive(self._nonce, _TO_LOAD, timeout_s)
        if isinstance(first, CaseFailure):
            return first
        if first[0] == "parsed":
            first = await self._receive(self._nonce, _TO_START, timeout_s)
            if isinstance(first, CaseFailure):
                return first
        return None if first[0] == "loaded" else replace(await self._failure(first), alive=False)

    async def loaded(self, limits: Limits, record: AttemptRecord) -> bool:
        """`load`, timed for the record; a failure goes into it, and the program would not load the next time either."""
        started = time.monotonic()
        failure = await self.load(min(limits.wall_s, record.left_s))
        record.spent_s += time.monotonic() - started
        if failure is None:
            return True
        record.flags |= failure.flags
        record.add(failure.case)
        record.skip_rest()
        return False

    async def _prepared(self) -> None:
        """Waits for the prelude. That is before any instruction of the program, which is to blame for nothing of it.

        Raises DataError when it fails, InfraError when it doesn't come to an end.
        """
        first = await self._receive(self._nonce, _TO_PREPARE, PREPARE_S)
        if isinstance(first, CaseFailure):
            if first.case.status is Status.MEMORY_LIMIT:
                raise DataError("the suite's prelude takes more memory than its programs may", fix="raise that limit")
            raise InfraError(f"a program could not be prepared: {first.case.detail}", fix=PREPARE_FIX)
        if first[0] == "prelude_failed":
            await self.end()
            raise DataError(f"the suite's prelude raised {first[2]}: {first[3]}", fix="mend the suite's prelude")

    async def call(self, call: EncodedCall, timeout_s: float) -> CallResult | CaseFailure:
        """One call."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                await self._session.send(call.frame)
        except TimeoutError:
            return await self._late(timeout_s)
        left_s = max(0.0, timeout_s - (time.monotonic() - started))
        answer = await self._receive(call.nonce, _TO_CALL, left_s)
        wall_s = time.monotonic() - started
        if isinstance(answer, CaseFailure):
            return replace(answer, case=replace(answer.case, wall_s=wall_s))
        if answer[0] == "result":
            return CallResult(answer[2], answer[3], wall_s, self._size)
        failure = await self._failure(answer)
        return replace(failure, case=replace(failure.case, wall_s=wall_s))

    async def leave(self) -> CaseFailure | None:
        """Says bye. A failure when the program says anything more, or doesn't end cleanly."""
        until = time.monotonic() + self._leave_s
        await self._session.send(_request("bye", b""))
        try:
            extra = await self._session.receive(self._leave_s)
        except TimeoutError:
            return await self._violation("the program did not end")
        except FrameError:
            extra = b""
        if extra is not None:
            return await self._violation("frames after the last answer", Flag.EXTRA_FRAMES)
        ended = await self.end(max(0.0, until - time.monotonic()))
        if ended.clean:
            return None
        status, detail, flags = of_silence(ended)
        return CaseFailure(case_of(status, detail, ended), flags)

    async def end(self, grace_s: float = 0.0) -> RunEnding:
        """Ends the program, at once unless it gets some grace. May be called again."""
        if self._ended is None:
            self._ended = await self._session.finish(grace_s)
        return self._ended

    async def _receive(self, nonce: bytes, kinds: frozenset[str], timeout_s: float) -> tuple[Any, ...] | CaseFailure:
        """The answer to a request: a frame that is what it has to be."""
        try:
            data = await self._session.receive(timeout_s)
        except TimeoutError:
            return await self._late(timeout_s)
        except FrameError as error:
            return await self._violation(f"no frame: {error.message}", Flag.EXTRA_FRAMES)
        if data is None:
            ended = await self.end(self._leave_s)
            status, detail, flags = of_silence(ended)
            return CaseFailure(case_of(status, detail, ended), flags)
        self._size = len(data)
        try:
            frame = await asyncio.to_thread(codec.decode, data) if len(data) > IN_THREAD_BYTES else codec.decode(data)
        except CodecError as error:
            return await self._violation(f"a frame that holds no value: {error}", Flag.EXTRA_FRAMES)
        if type(frame) is not tuple or len(frame) < 2 or frame[1] != nonce:
            return await self._violation("a frame that answers no request", Flag.EXTRA_FRAMES)
        if type(frame[0]) is not str or frame[0] not in kinds or not _well_formed(frame):
            return await self._violation("a frame of the wrong kind")
        return frame

    async def _failure(self, frame: tuple[Any, ...]) -> CaseFailure:
        """From an answer that is no result. The program goes on."""
        kind, _, name, message, line, family = frame
        where = f" (line {line})" if line is not None else ""
        detail = f"{name}: {message}{where}" if kind in ("raised", "refused", "exited") else message
        flags = frozenset({_SIGNS[kind]}) if kind in _SIGNS else frozenset()
        raised = (name, message, family) if kind in ("raised", "exited") else None
        status = Status.MEMORY_LIMIT if kind == "raised" and name == "MemoryError" else _RAISED[kind]
        return CaseFailure(CaseResult(0, status, detail=detail), flags, alive=True, raised=raised)

    async def _late(self, timeout_s: float) -> CaseFailure:
        self._session.kill()
        ended = await self.end()
        case = case_of(Status.TIME_LIMIT, f"no answer within {timeout_s:.3g} s", ended)
        return CaseFailure(replace(case, signal=None, exit_code=None), flags_of(ended))

    async def _violation(self, detail: str, *flags: Flag) -> CaseFailure:
        self._session.kill()
        ended = await self.end()
        return CaseFailure(case_of(Status.PROTOCOL_VIOLATION, detail, ended), frozenset(flags) | flags_of(ended))


@asynccontextmanager
async def opened(
    sandbox: Sandbox | Pair,
    source: str,
    entry_point: str,
    prelude: str,
    limits: Limits,
    *,
    calls: int,
    left_s: float,
    longest: int = 0,
    numpy: bool = False,
) -> AsyncIterator[Program]:
    """A cell with the program in it. `limits` are of one call, `longest` is the length of the longest request."""
    nonce = os.urandom(_NONCE_BYTES)
    payload = codec.encode((nonce, prelude, source, entry_point), max_bytes=REQUEST_BYTES)
    whole = replace(
        limits,
        wall_s=PREPARE_S + min((calls + 1) * limits.wall_s, left_s + limits.wall_s) + SLACK_S,
        cpu_s=min((calls + 1) * limits.cpu_s, left_s + limits.cpu_s),
    )
    run = ProgramRun(Driver(CALLS, payload), limits=whole, numpy=numpy, writable=True)
    async with sandbox.session(run, max(FRAME_BYTES, longest)) as session:
        program = Program(session, nonce, leave_s(limits))
        try:
            yield program
        finally:
            await program.end()


def _request(*frame: Any) -> bytes:
    return codec.encode(frame, max_bytes=REQUEST_BYTES, max_nodes=REQUEST_NODES)


def _well_formed(frame: tuple[Any, ...]) -> bool:
    kind = frame[0]
    if kind in ("prepared", "parsed", "loaded"):
        return len(frame) == 2
    if kind == "result":
        return len(frame) == 4
    if len(frame) != 6 or not is_line(frame[4]):
        return False
    return all(type(part) is str for part in (frame[2], frame[3], frame[5]))


def is_line(value: Any) -> bool:
    """Whether it may stand for a line in a message: a longer integer can't even be printed."""
    return value is None or (type(value) is int and value.bit_length() <= _LINE_BITS)


# ---- Maps the end of a run to a case's status. Pure


_STAYED = (Status.PROTOCOL_VIOLATION, "the program closed its line and went on")


def of_output(ended: RunEnding, *, ignore_exit_code: bool = False) -> tuple[Status, str]:
    """Status and detail of a program that runs to its end; PASSED: its output is to be looked at.

    A run that is cancelled never gets here; `CANCELLED` is a program that had to be ended after it closed its line.
    """
    if ended.ending in LIMITS:
        return LIMITS[ended.ending]
    if ended.ending is Ending.CANCELLED:
        return _STAYED
    if ended.ending is Ending.SIGNALED:
        return Status.RUNTIME_ERROR, f"ended by signal {ended.signal}"
    if ended.exit_code and not ignore_exit_code:
        return Status.RUNTIME_ERROR, _last_words(ended) or f"exit code {ended.exit_code}"
    return Status.PASSED, ""


def of_silence(ended: RunEnding) -> tuple[Status, str, frozenset[Flag]]:
    """The same for a program that ended when an answer was due."""
    status, detail = of_output(ended)
    flags = {Flag.EXITED_EARLY} if ended.ending is Ending.EXITED else set()
    if status is Status.PASSED:
        status, detail = Status.PROTOCOL_VIOLATION, "the program ended instead of answering"
    return status, detail, frozenset(flags | flags_of(ended))


def flags_of(ended: RunEnding) -> frozenset[Flag]:
    """Signs that any ending can show."""
    return frozenset({Flag.OUTPUT_CAP} if ended.ending is Ending.OUTPUT_LIMIT else ())


def case_of(status: Status, detail: str, ended: RunEnding, *, wall_s: float | None = None) -> CaseResult:
    """A case with what its run shows."""
    return CaseResult(
        index=0,
        status=status,
        wall_s=ended.wall_s if wall_s is None else wall_s,
        cpu_s=ended.cpu_s,
        max_rss_bytes=max(ended.max_rss_bytes, ended.memory_peak_bytes or 0),  # the peak has unwaited children
        exit_code=ended.exit_code,
        signal=ended.signal,
        stdout_head=head(ended.stdout),
        stderr_head=head(ended.stderr),
        detail=detail,
    )


def _last_words(ended: RunEnding) -> str:
    """The last line of what a program wrote to its standard error: a Python traceback ends with what was raised."""
    lines = ended.stderr[-4096:].decode("utf-8", "replace").strip().splitlines()
    return f"exit code {ended.exit_code}: {lines[-1][:400]}" if lines else ""
