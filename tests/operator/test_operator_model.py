"""Whatever goes wrong, in whatever order: the operator's promises hold, and the job comes to the end it deserves.

`AREAL_OPERATOR_SCHEDULES` is the number of schedules: `make chaos` tries four thousand.
"""

from __future__ import annotations

import asyncio
import os
from types import FunctionType

import operator_mutants
import pytest
from operator_schedules import Schedule

SCHEDULES = int(os.environ.get("AREAL_OPERATOR_SCHEDULES", "400"))
PARTS = 10
SEARCHED = 150
"""Schedules within which a broken rule must show. The rarest needs a few dozen."""

MUTANTS = [
    thing
    for thing in vars(operator_mutants).values()
    if isinstance(thing, FunctionType) and thing.__module__ == operator_mutants.__name__
]


@pytest.mark.parametrize("part", range(PARTS))
def test_a_job_keeps_every_promise_under_any_schedule(part: int) -> None:
    async def live() -> list[int]:
        lived = []
        for seed in range(part, SCHEDULES, PARTS):
            await Schedule(seed).run()  # asserts each promise at each step
            lived.append(seed)
        return lived

    assert len(asyncio.run(live())) == SCHEDULES // PARTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_breaks_a_promise(mutant: operator_mutants.Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)

    async def live() -> None:
        for seed in range(SEARCHED):
            await Schedule(seed).run()

    with pytest.raises(AssertionError):
        asyncio.run(live())


def test_there_are_enough_broken_rules() -> None:
    assert len(MUTANTS) >= 8
