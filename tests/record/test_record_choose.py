"""Which groups are kept, and how much of a step."""

from __future__ import annotations

from areal.record.writer import StepBudget, in_share


def test_a_share_keeps_about_its_part_of_the_groups():
    for share in (0.0, 0.1, 0.5, 1.0):
        kept = sum(in_share(group, share) for group in range(10_000))
        assert abs(kept / 10_000 - share) < 0.01


def test_a_larger_share_keeps_what_a_smaller_one_did():
    small = {group for group in range(1_000) if in_share(group, 0.2)}
    large = {group for group in range(1_000) if in_share(group, 0.6)}
    assert small < large


def test_a_step_keeps_no_more_than_its_budget_and_the_next_begins_anew():
    budget = StepBudget(100)
    assert [budget.take(0, 40) for _ in range(4)] == [True, True, False, False]
    assert budget.take(0, 20)
    assert budget.take(1, 100)
    assert not budget.take(0, 1)
