"""The order of the data: a permutation an epoch, the same everywhere."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from areal.data.order import RoundsOrder, RowOrder, SourceShare, by_rounds, row_of
from hypothesis import given
from hypothesis import strategies as st


@given(size=st.integers(1, 300), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 5))
def test_every_epoch_visits_every_row_once(size: int, seed: int, epoch: int) -> None:
    visited = [row_of(epoch * size + position, size, seed) for position in range(size)]
    assert sorted(visited) == list(range(size))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first, second = ([row_of(epoch * 100 + p, 100, 7) for p in range(100)] for epoch in (0, 1))
    other = [row_of(p, 100, 8) for p in range(100)]
    assert first != second
    assert first != other
    assert first != list(range(100))


def test_the_order_is_pinned_so_that_a_resumed_run_meets_the_same_prompts() -> None:
    assert [row_of(g, 10, 0) for g in range(20)] == PINNED_SMALL
    assert [row_of(g, 1_000_003, 42) for g in (0, 1, 999_999, 1_000_003, 10**12)] == PINNED_LARGE


def test_no_row_prefers_a_place() -> None:
    size, seeds = 8, 4000
    counts = [[0] * size for _ in range(size)]
    for seed in range(seeds):
        for position in range(size):
            counts[position][row_of(position, size, seed)] += 1
    expected = seeds / size
    worst = max(abs(count - expected) for row in counts for count in row)
    assert worst < 5 * expected**0.5  # five standard deviations


PINNED_SMALL = [0, 3, 6, 2, 8, 7, 5, 9, 1, 4, 4, 7, 3, 2, 5, 9, 6, 0, 8, 1]
PINNED_LARGE = [783137, 249900, 955716, 864911, 828725]


def test_rounds_put_alike_answers_together_and_leave_alone_what_nobody_knows() -> None:
    assert by_rounds([math.inf] * 5, 2, 1) == (0, 1, 2, 3, 4)
    expected = [5.0, 900.0, 6.0, 800.0, 7.0, math.inf, 4.0, 850.0]
    found = by_rounds(expected, 4, 3)
    assert {frozenset(found[:4]), frozenset(found[4:])} == {frozenset({1, 3, 5, 7}), frozenset({0, 2, 4, 6})}


def test_rounds_of_a_window_follow_each_other_by_the_seed() -> None:
    expected = [float(place) for place in range(64)]
    firsts = {by_rounds(expected, 8, seed)[0] for seed in range(20)}
    assert len(firsts) > 3


@given(st.lists(st.integers(1, 40), max_size=6), st.randoms(use_true_random=False))
def test_windows_of_rounds_keep_each_row_of_an_epoch_once(sizes: list[int], draw: random.Random) -> None:
    order, first = RowOrder((SourceShare(17),), 5), 0
    rounds = RoundsOrder(order)
    for size in sizes:
        first += draw.randrange(4)  # what no window has stays where it is
        places = list(range(size))
        draw.shuffle(places)
        rounds.arrange(first, places)
        rounds.arrange(first, places)
        first += size
    groups = first + 5
    assert Counter(map(rounds.row, range(groups))) == Counter(map(order.row, range(groups)))


@pytest.mark.parametrize(("first", "places"), [(4, [0, 1]), (0, [1, 0, 2]), (9, [0, 0]), (9, [1, 2])])
def test_a_window_that_loses_a_row_is_refused(first: int, places: list[int]) -> None:
    rounds = RoundsOrder(RowOrder((SourceShare(17),), 5))
    rounds.arrange(0, [2, 1, 0, 4, 3])
    with pytest.raises(ValueError, match="window of group"):
        rounds.arrange(first, places)
