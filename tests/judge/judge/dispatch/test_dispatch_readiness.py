"""The self-test's rhythm and what is made of its outcomes, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from areal.errors import InfraError
from areal_judge.judge.dispatch.meters import Readiness, SelfTestFinding
from support import virtual_time

HELD = SelfTestFinding(True, "held")
LOST = SelfTestFinding(False, "an attack won", breach=True)


def play(
    outcomes: list[SelfTestFinding | Callable[[], SelfTestFinding] | None], for_s: float
) -> tuple[list[tuple[float, bool]], str]:
    """Runs self-tests with these outcomes (None hangs); when each was heard, and the last words."""

    async def body() -> tuple[list[tuple[float, bool]], str]:
        began = virtual_time.now()
        heard: list[tuple[float, bool]] = []

        async def test() -> SelfTestFinding:
            outcome = outcomes.pop(0)
            if outcome is None:
                await asyncio.Event().wait()
            assert outcome is not None
            return outcome if isinstance(outcome, SelfTestFinding) else outcome()

        async def changed(ready: bool) -> None:
            heard.append((virtual_time.now() - began, ready))

        readiness = Readiness(test, changed)
        assert not readiness.ready
        await readiness.check()
        keeping = asyncio.create_task(readiness.keep())
        await asyncio.sleep(for_s)
        keeping.cancel()
        return heard, readiness.words

    return virtual_time.run(body())


def test_it_is_ready_while_the_test_passes_once_a_minute() -> None:
    heard, words = play([HELD] * 4, 200)
    assert heard == [(0.0, True), (60.0, True), (120.0, True), (180.0, True)]
    assert words == "held"


def test_one_failure_is_enough_and_it_is_tried_again_soon() -> None:
    heard, _ = play([HELD, LOST, HELD], 70)
    assert heard == [(0.0, True), (60.0, False), (65.0, True)]


def fails(error: Exception) -> Callable[[], SelfTestFinding]:
    def outcome() -> SelfTestFinding:
        raise error

    return outcome


@pytest.mark.parametrize(("outcome", "words"), [
    (None, "30 s"), (fails(InfraError("a zygote was lost")), "a zygote was lost"), (fails(ValueError("oops")), "oops"),
])  # fmt: skip
def test_a_test_that_can_not_be_made_is_a_failure_that_says_why(
    outcome: Callable[[], SelfTestFinding] | None, words: str
) -> None:
    heard, said = play([outcome], 1)
    assert [ready for _, ready in heard] == [False]
    assert words in said
