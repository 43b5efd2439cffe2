"""Ticks of the report's charts are numbers that people count in."""

from __future__ import annotations

import pytest
from areal.stage.curves import nice_ticks


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 2, [0, 0.5, 1, 1.5, 2]),
        (0, 2.1, [0, 0.5, 1, 1.5, 2, 2.5]),
        (0, 0.93, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 137, [0, 50, 100, 150]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (3, 3, [3, 3.2, 3.4, 3.6, 3.8, 4]),
    ],
)
def test_ticks_are_round_and_reach_the_top(low, high, ticks):
    assert nice_ticks(low, high) == ticks
