"""The verdict on a canary."""

from __future__ import annotations

import math

import pytest
from areal.weights.manifest import Canary, Difference, difference, problem


def of(tolerance: float, mean_tolerance: float | None = None) -> Canary:
    return Canary(token_ids=(1, 2), logprobs=(0.0, -1.0), tolerance=tolerance, mean_tolerance=mean_tolerance)


def test_differences_are_absolute():
    found = difference([-1.0, -2.0, -3.0], (-1.5, -1.75, -3.0))
    assert found == Difference(mean=0.25, worst=0.5)


@pytest.mark.parametrize("scored", [[], [-1.0], [-1.0, math.nan], [-1.0, -math.inf], [-1.0, -2.0, -3.0]])
def test_what_cant_be_compared_never_passes(scored):
    found = difference(scored, (-1.0, -2.0))
    assert found.worst == math.inf
    assert problem(of(1e9), found) is not None
    assert problem(of(1e9, 1e9), found) is not None


def test_the_mean_decides_where_it_is_bounded_and_the_worst_always():
    single = Difference(mean=0.01, worst=0.6)
    assert problem(of(1.0, 0.02), single) is None
    assert "0.6, more than 0.001" in str(problem(of(1e-3), single))
    everywhere = Difference(mean=0.05, worst=0.06)
    assert "0.05 in the mean, more than 0.02" in str(problem(of(1.0, 0.02), everywhere))
    assert problem(of(1.0), everywhere) is None
    assert "1.5, more than 1" in str(problem(of(1.0, 0.02), Difference(mean=0.01, worst=1.5)))


def test_a_manifest_without_a_bound_on_the_mean_is_read():
    old = {"token_ids": [1, 2], "logprobs": [0.0, -1.0], "tolerance": 0.1}
    assert Canary.model_validate(old).mean_tolerance is None
