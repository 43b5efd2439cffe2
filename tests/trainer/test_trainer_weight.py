"""Behaviour weights by level, and truncation."""

from __future__ import annotations

import math

import pytest
import torch
from areal_trainer.algorithms.ratio import WeightTruncation, behaviour_weight

SEQUENCE = torch.tensor([0, 0, 1])
DISTANCE = torch.tensor([0.5, -0.1, 2.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("level", "exponents"),
    [("token", [0.5, -0.1, 2.0]), ("sequenceMean", [0.2, 0.2, 2.0]), ("sequenceProduct", [0.4, 0.4, 2.0])],
)
def test_each_level_has_its_exponent(level, exponents):
    found = behaviour_weight(DISTANCE, SEQUENCE, level)
    assert found.tolist() == pytest.approx([math.exp(value) for value in exponents], rel=1e-12)


def test_truncation_bounds_both_ways_and_an_infinite_bound_does_nothing():
    found = behaviour_weight(DISTANCE, SEQUENCE, "token", WeightTruncation(upper=2.0, lower=1.0))
    assert found.tolist() == pytest.approx([math.exp(0.5), 1.0, 2.0])
    free = behaviour_weight(DISTANCE, SEQUENCE, "token", WeightTruncation(upper=math.inf))
    torch.testing.assert_close(free, behaviour_weight(DISTANCE, SEQUENCE, "token"), rtol=0, atol=0)
