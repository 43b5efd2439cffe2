"""Every row is used as often as asked, in an order that follows from the seed."""

from __future__ import annotations

from collections import Counter

from areal.data.order import FixedOrder, RowOrder, SourceShare
from areal.spec.supervised import SftTraining


def order_of(*rows: int) -> RowOrder:
    return RowOrder(tuple(SourceShare(count) for count in rows), seed=5)


def test_three_epochs_use_each_row_three_times_and_the_last_step_is_what_is_left() -> None:
    order = FixedOrder.of(SftTraining(name="SFT", batch_size=8, epochs=3), order_of(13))
    spans = [order.span(step) for step in range(order.steps)]
    assert [len(span) for span in spans] == [8, 8, 8, 8, 7]
    used = Counter(order.row(place) for span in spans for place in span)
    assert used == dict.fromkeys(range(13), 3)
    assert order.epoch(order.steps - 1) == 3.0


def test_a_number_of_steps_replaces_epochs() -> None:
    order = FixedOrder.of(SftTraining(name="SFT", batch_size=8, max_steps=4), order_of(13))
    assert (order.steps, order.positions) == (4, 32)
    assert order.row(0) == FixedOrder.of(SftTraining(name="SFT", batch_size=4), order_of(13)).row(0)
