"""Difficulty pools: which rows are left out, when they come back, and that an order follows from what is told."""

from __future__ import annotations

from collections import Counter

import pytest
from areal.data.order import PooledOrder, RowOrder, SourceShare
from areal.spec.sources import DifficultyPools
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

ORDER = RowOrder((SourceShare(8),), seed=5)
RULE = {"min_tries": 4}


def pooled(order: RowOrder = ORDER, **rule: float) -> PooledOrder:
    return PooledOrder(order, DifficultyPools(**{**RULE, **rule}))


def measure(made: PooledOrder, groups: range, passes: dict[int, int]) -> None:
    """Four samples of each group; `passes` by row, all of them unless it says otherwise."""
    for group in groups:
        made.measured(group, passes.get(made.row(group), 4), 4)


def test_without_a_judgement_the_order_is_the_sources() -> None:
    made = pooled()
    assert [made.row(group) for group in range(24)] == [ORDER.row(group) for group in range(24)]


def test_easy_and_hard_rows_are_left_out_from_the_group_on_that_is_named() -> None:
    made = pooled(hard_up_to=0.25)
    before = [made.row(group) for group in range(10)]
    measure(made, range(8), {1: 1, 2: 2, 3: 3, **dict.fromkeys((4, 5, 6, 7), 2)})
    made.judge(8, from_group=10)
    assert made.counts() == {"easy": 1, "hard": 1}
    assert [made.row(group) for group in range(10)] == before
    later = Counter(made.row(group) for group in range(10, 10 + 60))
    assert set(later) == {2, 3, 4, 5, 6, 7}
    assert max(later.values()) - min(later.values()) <= 2  # both ends lie within an epoch


def test_what_a_checkpoint_does_not_hold_is_judged_at_the_next_one() -> None:
    made = pooled()
    measure(made, range(8), dict.fromkeys(range(8), 2) | {ORDER.row(7): 4})
    made.judge(7, from_group=8)
    assert made.counts() == {}
    made.judge(8, from_group=9)
    assert made.counts() == {"easy": 1}


def test_a_row_is_judged_by_enough_samples_and_anew_by_new_ones() -> None:
    made = pooled(min_tries=8, revisit_epochs=2)
    for epoch, passes in enumerate((4, 4, 0, 0, 0, 0)):
        measure(made, range(8 * epoch, 8 * epoch + 8), {row: 2 if row else passes for row in range(8)})
        made.judge(8 * epoch + 8, from_group=8 * epoch + 8)
        assert made.counts() == ({"easy": 1} if epoch in (1, 2) else {}), epoch


def test_left_out_rows_come_back_in_each_so_many_th_epoch() -> None:
    made = pooled(revisit_epochs=3)
    measure(made, range(8), dict.fromkeys(range(2, 8), 2))
    made.judge(8, from_group=8)
    rows = [made.row(group) for group in range(8, 8 + 6 + 6 + 8 + 6)]
    assert [{0, 1} <= set(rows[start:end]) for start, end in ((0, 6), (6, 12), (12, 20), (20, 26))] == [0, 0, 1, 0]


def test_some_rows_stay_in_when_all_are_learned_those_left_out_longest_ago_first() -> None:
    order = RowOrder((SourceShare(40),), seed=1)
    made = pooled(order)
    measure(made, range(40), {})
    made.judge(40, from_group=40)
    assert made.counts() == {"easy": 37}
    assert {made.row(group) for group in range(40, 80)} == {order.row(group) for group in range(3)}


def test_each_source_has_pools_of_its_own_and_keeps_its_share() -> None:
    order = RowOrder((SourceShare(4, 1.0), SourceShare(4, 3.0)), seed=1)
    made = pooled(order)
    measure(made, range(32), dict.fromkeys(range(1, 8), 2))
    made.judge(32, from_group=32)
    used = Counter(made.row(group) for group in range(32, 32 + 48))
    assert used[0] == 0
    assert sum(used[row] for row in range(4)) == 12
    assert sum(used[row] for row in range(4, 8)) == 36


def test_pools_never_change_for_groups_that_have_their_row() -> None:
    made = pooled()
    made.judge(0, from_group=20)
    with pytest.raises(ValueError, match="forwards"):
        made.judge(8, from_group=19)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_whoever_is_told_the_same_has_the_same_order_whenever_it_asked(data: st.DataObject) -> None:
    """One process asks for rows as it goes, another one is told everything first: a restart changes no row."""
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=3))
    weights = data.draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=len(sizes), max_size=len(sizes)))
    order = RowOrder(tuple(SourceShare(*each) for each in zip(sizes, weights, strict=True)), seed=7)
    revisit = data.draw(st.sampled_from([None, 2, 3]))
    live = pooled(order, hard_up_to=0.25, revisit_epochs=revisit)
    told: list[tuple[str, tuple[int, ...]]] = []
    seen: dict[int, int] = {}
    committed = admitted = 0
    for _ in range(data.draw(st.integers(1, 6))):
        for group in range(admitted, admitted := admitted + data.draw(st.integers(0, 40))):
            seen[group] = live.row(group)
            live.row(group + data.draw(st.integers(0, 3)))  # looks ahead: no promise
        for group in range(committed, committed := data.draw(st.integers(committed, admitted))):
            counts = (group, data.draw(st.integers(0, 4)), 4)
            live.measured(*counts)
            told.append(("measured", counts))
        live.judge(committed, admitted)
        told.append(("judge", (committed, admitted)))
    again = pooled(order, hard_up_to=0.25, revisit_epochs=revisit)
    for name, values in told:
        getattr(again, name)(*values)
    assert {group: again.row(group) for group in seen} == seen
    assert [again.row(group) for group in range(admitted, admitted + 50)] == [
        live.row(group) for group in range(admitted, admitted + 50)
    ]
