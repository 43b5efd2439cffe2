"""The order of the data: a permutation an epoch, the same everywhere."""

from __future__ import annotations

from areal.data.order import row_of
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
