"""Rejection: every metric and aggregate against its formula, bounds, lists."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from areal_trainer.algorithms.rejection import RejectionRule, rejected

BEHAVIOUR = torch.tensor([-1.0, -2.0, -0.5, -3.0], dtype=torch.float64)
PROXIMAL = torch.tensor([-0.8, -2.6, -0.5, -1.0], dtype=torch.float64)
SEQUENCE = torch.tensor([0, 0, 1, 1])
DISTANCE = [0.2, -0.6, 0.0, 2.0]


def binary_kl(p, b):
    x, y = math.exp(p), math.exp(b)
    one = x * math.log(x / y) + (1 - x) * math.log((1 - x) / (1 - y))
    return max(one, y * math.log(y / x) + (1 - y) * math.log((1 - y) / (1 - x)))


VALUES = {
    "ratio": [math.exp(d) for d in DISTANCE],
    "k1": DISTANCE,
    "k2": [d * d / 2 for d in DISTANCE],
    "k3": [math.exp(d) - 1 - d for d in DISTANCE],
    "binaryKl": [binary_kl(float(p), float(b)) for p, b in zip(PROXIMAL, BEHAVIOUR, strict=True)],
}


def check(rule, values):
    """Between any two neighbouring values, exactly those beyond the bound are rejected."""
    ordered = sorted(set(values))
    for low, high in pairwise(ordered):
        bound = (low + high) / 2
        above = rejected(PROXIMAL, BEHAVIOUR, SEQUENCE, [RejectionRule(**rule, upper=bound)])
        below = rejected(PROXIMAL, BEHAVIOUR, SEQUENCE, [RejectionRule(**rule, lower=bound)])
        assert above.tolist() == [value > bound for value in values]
        assert below.tolist() == [value < bound for value in values]


@pytest.mark.parametrize("metric", VALUES)
def test_a_token_is_judged_by_its_metric(metric):
    check({"metric": metric}, VALUES[metric])


@pytest.mark.parametrize("metric", VALUES)
@pytest.mark.parametrize("aggregate", ["mean", "sum", "max", "min"])
def test_a_sequence_is_judged_as_a_whole_and_a_ratio_in_log_space(metric, aggregate):
    combine = {"mean": lambda a, b: (a + b) / 2, "sum": lambda a, b: a + b, "max": max, "min": min}[aggregate]
    values = DISTANCE if metric == "ratio" else VALUES[metric]
    first, second = combine(*values[:2]), combine(*values[2:])
    if metric == "ratio":
        first, second = math.exp(first), math.exp(second)
    check({"metric": metric, "level": "sequence", "aggregate": aggregate}, [first, first, second, second])


def test_a_value_equal_to_a_bound_is_kept():
    bound = float(torch.exp(PROXIMAL - BEHAVIOUR)[3])
    assert not rejected(PROXIMAL, BEHAVIOUR, SEQUENCE, [RejectionRule(upper=bound)]).any()


def test_all_rules_of_a_list_must_pass():
    rules = [RejectionRule(upper=5.0), RejectionRule(metric="k1", lower=-0.5)]
    assert rejected(PROXIMAL, BEHAVIOUR, SEQUENCE, rules).tolist() == [False, True, False, True]


@pytest.mark.parametrize("behaviour", [-math.inf, math.nan])
def test_a_distance_that_is_not_finite_is_rejected_without_any_rule(behaviour):
    found = rejected(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, behaviour]), torch.tensor([0, 1]), [])
    assert found.tolist() == [False, True]
