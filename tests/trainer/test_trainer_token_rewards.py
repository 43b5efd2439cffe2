"""Rewards by token: where the outcome sits and what a penalty adds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from areal_trainer.algorithms.advantages import kl_penalty, last_actions, token_rewards

OFFSETS = np.array([0, 4, 6, 9])
ACTIONS = np.array([0, 1, 1, 0, 0, 0, 0, 1, 1], bool)  # the first ends with a tool's message, the second has none


def test_the_outcome_sits_on_the_last_action_token():
    assert last_actions(ACTIONS, OFFSETS).tolist() == [2, -1, 8]
    assert token_rewards(np.array([5.0, 6.0, 7.0]), ACTIONS, OFFSETS).tolist() == [0, 0, 5, 0, 0, 0, 0, 0, 7]


def test_a_penalty_falls_on_action_tokens_only():
    penalty = np.arange(9, dtype=float)
    found = token_rewards(np.array([5.0, 6.0, 7.0]), ACTIONS, OFFSETS, penalty, 0.1)
    np.testing.assert_allclose(found, [0, -0.1, 5 - 0.2, 0, 0, 0, 0, -0.7, 7 - 0.8])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_penalty_is_the_estimators_value_within_ten(estimator):
    ours, theirs = [-1.0, -0.5, -30.0, 0.0], [-1.5, -0.2, 0.0, -60.0]
    found = kl_penalty(np.array(ours, np.float32), np.array(theirs, np.float32), estimator)
    for value, p, f in zip(found, ours, theirs, strict=True):
        x = p - f
        exact = {"k1": x, "k2": x * x / 2, "k3": math.exp(-x) - 1 + x}[estimator]
        assert value == pytest.approx(min(max(exact, -10.0), 10.0), rel=1e-6)


def test_an_outcome_may_sit_on_the_very_first_token_and_one_without_actions_sits_nowhere():
    found = token_rewards(np.array([5.0, 6.0]), np.array([True, False, False]), np.array([0, 2, 3]))
    assert found.tolist() == [5.0, 0.0, 0.0]
