"""A service that answers no call is told from one that takes its time."""

from __future__ import annotations

from areal.observe.waits import LostService, WaitRegistry


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def made() -> tuple[Clock, LostService, WaitRegistry]:
    clock = Clock()
    waits = WaitRegistry("w", clock)
    return clock, LostService(waits, "reward", "r:1 to score", deadline_s=120.0, clock=clock), waits


def told(waits: WaitRegistry) -> list[tuple[str, str, float, float]]:
    return [(wait.name, wait.waits_for, wait.age_s, wait.deadline_s) for wait in waits.list()]


def test_a_call_that_takes_long_is_no_loss() -> None:
    clock, lost, waits = made()
    lost.asked()
    clock.now += 300.0
    assert told(waits) == []


def test_a_failed_call_is_one_since_it_began_and_an_answer_ends_it() -> None:
    clock, lost, waits = made()
    began = lost.asked()
    clock.now += 7.0
    lost.failed(began)
    clock.now += 2.0
    lost.failed(began + 8.0)
    assert told(waits) == [("reward.lost", "r:1 to score", 9.0, 120.0)]
    lost.answered()
    assert told(waits) == []
    lost.failed(clock.now)
    clock.now += 1.0
    assert [wait.age_s for wait in waits.list()] == [1.0]


def test_a_failure_says_nothing_after_the_answer_to_a_later_call() -> None:
    clock, lost, waits = made()
    began = lost.asked()
    clock.now += 5.0
    lost.answered()
    lost.failed(began)
    assert told(waits) == []


def test_when_nobody_asks_any_more_nothing_is_waited_for() -> None:
    _, lost, waits = made()
    first, second = lost.asked(), lost.asked()
    lost.failed(first)
    lost.left()
    assert len(told(waits)) == 1
    lost.left()
    assert told(waits) == []
    lost.failed(second)  # the last caller has left: its failed call is nobody's
    assert told(waits) == []
