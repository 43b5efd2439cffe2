"""Generalised advantage estimation against a loop written from its definition."""

from __future__ import annotations

import numpy as np
import pytest
from areal_trainer.algorithms.advantages import gae


def reference(rewards, values, gamma, lam, after):
    """One sequence of nothing but steps."""
    advantages, following, next_value = [0.0] * len(rewards), 0.0, after
    for k in reversed(range(len(rewards))):
        delta = rewards[k] + gamma * next_value - values[k]
        following = delta + gamma * lam * following
        advantages[k] = following
        next_value = values[k]
    return advantages


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (1.0, 0.0), (0.9, 1.0)])
def test_packed_equals_each_sequence_alone_and_skips_what_is_no_step(gamma, lam):
    random = np.random.default_rng(1)
    lengths = [7, 1, 5, 3]
    offsets = np.cumsum([0, *lengths])
    total = int(offsets[-1])
    actions = random.random(total) < 0.6
    actions[[0, 7]] = [False, False]
    rewards, values = random.normal(size=total), random.normal(size=total)
    after = random.normal(size=len(lengths))
    advantages, returns = gae(rewards, values, actions, offsets, gamma=gamma, lam=lam, bootstrap=after)
    for s in range(len(lengths)):
        place = np.flatnonzero(actions[offsets[s] : offsets[s + 1]]) + offsets[s]
        expected = reference(rewards[place], values[place], gamma, lam, after[s])
        np.testing.assert_allclose(advantages[place], expected, rtol=1e-12)
        np.testing.assert_allclose(returns[place], np.array(expected) + values[place], rtol=1e-12)
    assert not advantages[~actions].any()
    assert not returns[~actions].any()


def test_without_values_and_discount_every_token_has_the_outcome():
    rewards = np.array([0.0, 0.0, 3.0, 0.0, -2.0])
    advantages, _ = gae(rewards, None, np.array([0, 1, 1, 1, 1], bool), np.array([0, 3, 5]))
    assert advantages.tolist() == [0.0, 3.0, 3.0, -2.0, -2.0]


def test_a_cut_episode_counts_on_the_value_after_it_and_an_ended_one_does_not():
    rewards, values = np.zeros(4), np.array([0.5, 0.5, 0.5, 0.5])
    cut, _ = gae(rewards, values, np.ones(4, bool), np.array([0, 2, 4]), bootstrap=np.array([0.8, 0.0]))
    np.testing.assert_allclose(cut, [0.3, 0.3, -0.5, -0.5])


def test_lambda_may_be_of_the_sequence():
    random = np.random.default_rng(2)
    rewards, values, offsets = random.normal(size=6), random.normal(size=6), np.array([0, 3, 6])
    both, _ = gae(rewards, values, np.ones(6, bool), offsets, lam=np.array([0.5, 1.0]))
    half, _ = gae(rewards, values, np.ones(6, bool), offsets, lam=0.5)
    whole, _ = gae(rewards, values, np.ones(6, bool), offsets, lam=1.0)
    np.testing.assert_allclose(both, [*half[:3], *whole[3:]], rtol=1e-12)


def test_a_batch_without_any_step_has_no_advantage():
    advantages, returns = gae(np.ones(3), None, np.zeros(3, bool), np.array([0, 1, 3]))
    assert not advantages.any()
    assert not returns.any()
