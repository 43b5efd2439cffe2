"""Whatever a program writes to its channel is an answer or its own failure, never an error of the judge."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Any, cast

import pytest
from areal.errors import DataError, InfraError
from areal_judge.judge import codec
from areal_judge.judge.calling import same
from areal_judge.judge.program import CallResult, CaseFailure, EncodedCall, Program, leave_s
from areal_judge.judge.values import Checker, Status
from areal_judge.sandbox.host.session import CellSession
from areal_judge.sandbox.values import Ending, Limits, RunEnding
from hypothesis import example, given
from hypothesis import strategies as st

NONCE = b"nonce"
LEAVES = st.sampled_from(
    [0, -1, True, None, math.nan, math.inf, -0.0, 2 + 3j, "", "\ud800", "\0", "x" * 1000, b"", NONCE,
     "raised", "result", "SystemExit", {1, 2}, frozenset({3})]
) | st.builds(lambda: 1 << 16_000)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda each: st.lists(each, max_size=4) | st.tuples(each, each) | st.dictionaries(st.integers(), each)
)
KINDS = st.sampled_from(
    ["prepared", "parsed", "loaded", "prelude_failed", "refused", "missing", "raised", "exited", "foreign", "posing",
     "too_big", "result"]
)  # fmt: skip
FRAMES = st.tuples(KINDS | VALUES, st.just(NONCE) | VALUES, st.lists(VALUES, max_size=5)).map(
    lambda parts: (parts[0], parts[1], *parts[2])
)


class Written:
    """A session whose program has written these frames, and ended."""

    def __init__(self, frames: Iterable[Any], ending: Ending = Ending.EXITED) -> None:
        self._frames = [codec.encode(frame) for frame in frames]
        self._ending = ending

    async def send(self, data: bytes) -> None:
        pass

    async def receive(self, timeout_s: float) -> bytes | None:
        return self._frames.pop(0) if self._frames else None

    async def finish(self, grace_s: float = 0.0) -> RunEnding:
        return RunEnding(self._ending, exit_code=0)

    def kill(self) -> None:
        pass


def program(*frames: Any) -> Program:
    return Program(cast(CellSession, Written(frames)), NONCE, 1.0)


@given(FRAMES)
@example(([], NONCE, 1, None))
@example(("raised", NONCE, "E", "m", 1 << 16_000, "E"))
def test_any_frame_is_an_answer_or_the_program_s_failure(frame: Any) -> None:
    outcome = asyncio.run(program(frame).call(EncodedCall(b"", NONCE), 1.0))
    if isinstance(outcome, CallResult):
        assert frame[:2] == ("result", NONCE)
        for checker in (Checker(), Checker(unordered=True, absolute=0.1), Checker(relative=0.5, nan_equal=True)):
            same(outcome.value, [1, "x"], checker)
    else:
        assert outcome.case.status is not Status.PASSED


@given(FRAMES, st.booleans())
def test_any_frame_of_a_program_that_is_loaded_is_a_start_or_a_failure(frame: Any, parsed: bool) -> None:
    begun = [("prepared", NONCE), ("parsed", NONCE)] if parsed else [("prepared", NONCE)]
    outcome = asyncio.run(program(*begun, frame).load(1.0))
    assert isinstance(outcome, CaseFailure) or frame[:2] == ("loaded" if parsed else "parsed", NONCE)


@pytest.mark.parametrize(
    ("frames", "ended", "error"),
    [
        ([("prelude_failed", NONCE, "E", "m", 1, "Exception")], Ending.EXITED, DataError),
        ([], Ending.MEMORY_LIMIT, DataError),
        ([], Ending.WALL_LIMIT, InfraError),
        ([], Ending.SIGNALED, InfraError),
    ],
)
def test_what_ends_before_the_program_begins_is_no_failure_of_it(
    frames: list[Any], ended: Ending, error: type[Exception]
) -> None:
    with pytest.raises(error):
        asyncio.run(Program(cast(CellSession, Written(frames, ended)), NONCE, 1.0).load(1.0))


class Staying(Written):
    """A session whose program has answered everything and stays."""

    def __init__(self) -> None:
        super().__init__(())
        self.waited_s: list[float] = []

    async def receive(self, timeout_s: float) -> bytes | None:
        self.waited_s.append(timeout_s)
        raise TimeoutError

    async def finish(self, grace_s: float = 0.0) -> RunEnding:
        self.waited_s.append(grace_s)
        return RunEnding(Ending.CANCELLED)


@pytest.mark.parametrize(("wall_s", "within_s"), [(0.01, 0.5), (2.0, 2.0), (60.0, 5.0)])
def test_a_program_that_stays_holds_its_slot_as_long_as_a_call_may_take(wall_s: float, within_s: float) -> None:
    session = Staying()
    staying = Program(cast(CellSession, session), NONCE, leave_s(Limits(wall_s=wall_s)))
    failure = asyncio.run(staying.leave())
    assert failure is not None
    assert failure.case.status is Status.PROTOCOL_VIOLATION
    assert session.waited_s == [within_s, 0.0]
