"""Deadline order: nothing is trained too late, nothing is thrown away, nothing stands still."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from areal.ledger.gate import WaitingGroup, choose, grant, in_time
from hypothesis import given
from hypothesis import strategies as st

from tests.ledger.order_schedule import MUTANTS, Law, play

_groups = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=7).map(
    lambda drawn: [WaitingGroup(index, due, complete) for index, (due, complete) in enumerate(drawn)]
)


@pytest.mark.parametrize("first", range(0, 150, 50))
def test_every_schedule_keeps_every_bound(first: int) -> None:
    assert [words for seed in range(first, first + 50) if (words := play(seed))] == []


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_law_is_noticed(name: str) -> None:
    law: Law = MUTANTS[name]
    assert any(play(seed, law) for seed in range(70))


def _order_exists(groups: list[WaitingGroup], step: int, batch: int) -> bool:
    return all(group.due >= step + place // batch for place, group in enumerate(sorted(groups, key=lambda g: g.due)))


@given(_groups, st.integers(1, 3))
def test_halls_condition_is_that_some_order_is_in_time(groups: list[WaitingGroup], batch: int) -> None:
    assert in_time(Counter(group.due for group in groups), 0, batch) == _order_exists(groups, 0, batch)


@given(_groups, st.integers(1, 3))
def test_it_waits_only_when_every_choice_would_break_the_bound(groups: list[WaitingGroup], batch: int) -> None:
    if not _order_exists(groups, 0, batch):
        return
    complete = [group for group in groups if group.complete]
    possible = [
        picked
        for picked in combinations(complete, batch)
        if _order_exists([group for group in groups if group not in picked], 1, batch)
    ]
    chosen = choose(groups, 0, batch)
    assert (chosen is not None) == bool(possible)
    if chosen is not None:
        assert _order_exists([group for group in groups if group.index not in chosen], 1, batch)


@given(_groups, st.integers(1, 3), st.integers(0, 3), st.integers(0, 2), st.integers(0, 2))
def test_a_group_is_granted_exactly_when_all_stay_in_time(
    groups: list[WaitingGroup], batch: int, bound: int, oldest: int, more: int
) -> None:
    if not _order_exists(groups, 0, batch):
        return
    versions = range(oldest, oldest + more + 1)
    fits = [floor for floor in versions if _order_exists([*groups, WaitingGroup(99, floor + bound, False)], 0, batch)]
    due = Counter(group.due for group in groups)
    assert grant(due, 0, batch, bound, versions) == min(fits, default=None)


@given(_groups, st.integers(1, 3))
def test_admission_order_takes_the_first_or_waits(groups: list[WaitingGroup], batch: int) -> None:
    loose = [WaitingGroup(group.index, 10, group.complete) for group in groups]
    chosen = choose(loose, 0, batch, by_index=True)
    ready = len(loose) >= batch and all(group.complete for group in loose[:batch])
    assert chosen == (tuple(range(batch)) if ready else None)


def test_admission_order_gives_way_where_what_it_leaves_would_be_too_old() -> None:
    assert choose([WaitingGroup(0, 5, True), WaitingGroup(1, 0, True)], 0, 1, by_index=True) == (1,)


def test_without_staleness_a_batch_is_what_its_version_admitted() -> None:
    assert grant({3: 2}, 3, 2, 0, range(3, 4)) is None
    assert grant({3: 1}, 3, 2, 0, range(3, 4)) == 3
    assert grant({3: 2}, 3, 2, 0, range(3, 5)) == 4
