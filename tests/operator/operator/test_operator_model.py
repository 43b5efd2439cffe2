"""Whatever goes wrong, in whatever order: the operator's promises hold, and the job comes to the end it deserves.

`AREAL_OPERATOR_SCHEDULES` is the number of schedules: `make nightly` tries four hundred, `make chaos` four thousand.
"""

from __future__ import annotations

import asyncio
import os
from types import FunctionType

import operator_mutants
import pytest
from operator_schedules import Schedule

SCHEDULES = int(os.environ.get("AREAL_OPERATOR_SCHEDULES", "100"))
PARTS = 10
SEARCHED = 150
"""Schedules within which a broken rule must show."""

FOUND_AT = {
    "status_is_written_over_whatever_is_there": 108,
    "things_are_done_though_the_status_was_refused": 5,
    "epochs_are_written_with_the_next_figures": 23,
    "a_failure_is_counted_each_time_it_is_seen": 58,
    "a_servers_failure_is_counted_each_time_it_is_seen": 29,
    "a_gang_forms_of_those_who_are_there": 14,
    "a_gang_that_never_worked_is_judged": 1,
    "an_epoch_that_is_over_fails_again": 103,
    "sleepers_are_not_asked_to_save": 23,
    "a_sleeping_job_keeps_its_fleet": 7,
    "all_servers_are_replaced_at_once": 14,
    "pods_are_deleted_by_name": 14,
    "everybody_restarts_with_the_trainers": 1,
    "restarts_have_no_limit": 22,
    "the_runtime_is_followed": 1,
    "a_dead_machine_is_waited_for": 38,
    "failures_of_others_are_counted": 58,
    "a_number_is_taken_for_a_step": 28,
    "a_gang_is_given_up_without_a_word": 130,
    "what_no_rule_excludes_is_progress": 1,
}
"""Schedules that showed a broken rule last time, tried first. A stale number costs time, not a pass."""

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

    first = FOUND_AT.get(mutant.__name__, 0)

    async def live() -> None:
        for turn in range(SEARCHED):
            await Schedule((first + turn) % SEARCHED).run()

    with pytest.raises(AssertionError):
        asyncio.run(live())


def test_there_are_enough_broken_rules() -> None:
    assert len(MUTANTS) >= 8
