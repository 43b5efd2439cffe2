"""Bounds of the queue, the drain rate's hints, and memory."""

from __future__ import annotations

import pytest
from areal_judge.judge.dispatch.scheduler import Bounds, DrainRate, MemoryBudget


def test_either_bound_refuses_and_says_which() -> None:
    bounds = Bounds(items=2, code_bytes=3 << 20)
    assert bounds.exceeded(2, 3 << 20) == ""
    assert "2 requests" in bounds.exceeded(3, 0)
    assert "3 MB" in bounds.exceeded(1, (3 << 20) + 1)


def test_the_hint_follows_the_measured_rate() -> None:
    rate = DrainRate(0.0)
    assert rate.retry_after_s(1000, 0.0) == 1.0  # nothing is known yet
    for finished in range(1, 3001):
        rate.finished(finished / 100)  # 100 a second
    assert rate.per_s(30.0) == pytest.approx(100, rel=0.05)
    assert rate.retry_after_s(1000, 30.0) == pytest.approx(1.0, rel=0.1)
    assert rate.retry_after_s(4000, 30.0) == pytest.approx(4.0, rel=0.1)
    assert rate.per_s(60.0) < 6  # it stands still


def test_the_hint_is_never_none_and_never_forever() -> None:
    rate = DrainRate(0.0)
    rate.finished(0.1)
    assert rate.retry_after_s(1, 0.1) >= 0.05
    assert rate.retry_after_s(10**9, 20.0) == 30.0


def test_memory_of_all_limits_stays_within_the_budget_but_one_alone_may_have_the_pod() -> None:
    memory = MemoryBudget(1000)
    assert memory.budget_bytes == 800
    assert memory.possible(1000)
    assert not memory.possible(1001)
    assert memory.fits(1000)
    memory.take(500)
    assert memory.fits(300)
    assert not memory.fits(301)
    memory.give(500)
    assert memory.fits(900)
