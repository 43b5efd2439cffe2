"""Published values of DPPO, MaxRL, GSPO-token and GAE by turn, in float64: loss and gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from areal.errors import DataError
from areal_trainer.algorithms.advantages import (
    AdvantageOptions,
    RewardKL,
    TokenColumns,
    estimate_advantages,
    gae,
    turn_gae,
)
from areal_trainer.algorithms.baseline import BaselineOptions, normalised_rewards
from areal_trainer.algorithms.policy import PolicyOptions, Surrogate, policy_loss
from areal_trainer.algorithms.rejection import DPPOOptions, coin_kl, dppo_loss
from support.trainer_parts import batch


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


THETA, BEHAVIOUR = column(-0.2, -1.5, -0.05, -3, -0.7, -2), column(-0.6, -1.4, -0.9, -1.2, -0.7, -0.4)
SIGNS = column(1, 1, 1, -1, -1, -1)


def mean_and_gradient(options: DPPOOptions) -> tuple[float, list[float], list[bool]]:
    theta = THETA.clone().requires_grad_(True)
    loss, dropped, _ = dppo_loss(theta, BEHAVIOUR, SIGNS, options)
    loss.mean().backward()
    return float(loss.mean().detach()), theta.grad.tolist(), dropped.tolist()


def test_dppo_by_total_variation():
    mean, gradient, dropped = mean_and_gradient(DPPOOptions())
    assert mean == pytest.approx(0.0158604303, abs=1e-10)
    assert gradient == pytest.approx([0, -0.150806236, 0, 0, 0.166666667, 0], abs=1e-9)
    assert dropped == [True, False, True, True, False, True]


def test_dppos_quadratic_term_holds_masked_tokens_too():
    mean, gradient, _ = mean_and_gradient(DPPOOptions(quadratic=1e-3))
    assert mean == pytest.approx(0.016975847, abs=1e-9)
    expected = [0.000133333, -0.150839570, 0.000283333, -0.0006, 0.166666667, -0.000533333]
    assert gradient == pytest.approx(expected, abs=1e-9)


def test_dppo_by_the_kl_of_two_coins():
    found = coin_kl(BEHAVIOUR.exp(), THETA.exp())
    golden = [0.191914661, 0.00155094554, 1.13727517, 0.327397313, 0, 0.754628242]
    assert found.tolist() == pytest.approx(golden, rel=1e-8, abs=1e-12)
    _, _, dropped = mean_and_gradient(DPPOOptions("binaryKl"))
    assert dropped == [False, False, True, True, False, True], "the first moved by .27 in probability, and .19 in KL"


def test_dppo_lets_a_token_come_back_and_has_a_bound_for_each_side():
    back = dppo_loss(THETA, BEHAVIOUR, -SIGNS, DPPOOptions())[1]
    assert not back.any(), "what pulls toward the behaviour policy is never dropped"
    assert dppo_loss(THETA, BEHAVIOUR, SIGNS, DPPOOptions(low=1.0))[1].tolist() == [True, False, True, *[False] * 3]
    assert dppo_loss(THETA, BEHAVIOUR, SIGNS, DPPOOptions(high=1.0))[1].tolist() == [*[False] * 3, True, False, True]


def test_dppo_keeps_a_token_that_moved_by_just_its_bound():
    up, down = (float((THETA.exp() - BEHAVIOUR.exp())[at].abs()) for at in (0, 5))
    assert dppo_loss(THETA, BEHAVIOUR, SIGNS, DPPOOptions(high=up))[1].tolist()[:3] == [False, False, True]
    assert dppo_loss(THETA, BEHAVIOUR, SIGNS, DPPOOptions(low=down))[1].tolist()[3:] == [False, False, False]


def test_the_policys_loss_takes_dppo_from_the_behaviour_policy_whatever_the_proximal_one_is():
    theta = THETA.clone().requires_grad_(True)
    made = torch.cat([BEHAVIOUR[:5], column(-math.inf)])
    terms = policy_loss(theta, made, made, SIGNS, torch.arange(6), PolicyOptions(DPPOOptions()))
    terms.loss.sum().backward()
    assert terms.loss.tolist() == pytest.approx([0, -math.exp(-0.1), 0, 0, 1, 0], rel=1e-12)
    assert terms.clipped.tolist() == [True, False, True, True, False, False]
    assert terms.rejected.tolist() == [*[False] * 5, True]
    assert torch.isfinite(theta.grad).all()


def outcomes(rewards: list[float], groups: list[int] | None = None, **options: object) -> list[float]:
    given, count = np.array(rewards, float), len(rewards)
    group_ids = np.zeros(count, int) if groups is None else np.array(groups)
    chosen = BaselineOptions(std="mean", **options)  # type: ignore[arg-type]
    return normalised_rewards(given, group_ids, np.arange(count), np.ones(count, bool), chosen).values.tolist()


@pytest.mark.parametrize(
    ("rewards", "golden"),
    [
        ([1, 0, 0, 0], [3, -1, -1, -1]),
        ([1, 1, 1, 0], [1 / 3, 1 / 3, 1 / 3, -1]),
        ([0.5, 0.25, 0, 0.25], [1, 0, -1, 0]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
        ([7], [0]),
    ],
)
def test_maxrl(rewards, golden):
    assert outcomes(rewards, mask_zero_variance=False) == pytest.approx(golden, rel=1e-12, abs=1e-15)


def test_maxrl_needs_rewards_from_zero_on_and_says_whose_are_not():
    with pytest.raises(DataError, match=r"sample 3 of group 9 has the shaped reward -0\.5"):
        outcomes([1, 0, 0, -0.5], [4, 4, 9, 9])


THETA_S, PROXIMAL_S, ADVANTAGES_S = column(-0.5, -1, -0.2), column(-0.6, -0.8, -0.4), column(2, -1, 0.5)


def gspo(advantages: torch.Tensor) -> tuple[float, list[float], float]:
    theta = THETA_S.clone().requires_grad_(True)
    options = PolicyOptions(Surrogate(clip_low=0.2, clip_high=0.2), importance="sequence")
    terms = policy_loss(theta, PROXIMAL_S, PROXIMAL_S, advantages, torch.zeros(3, dtype=torch.int64), options)
    terms.loss.mean().backward()
    return float(terms.loss.mean().detach()), theta.grad.tolist(), float(terms.ratio[0])


def test_gspo_keeps_the_advantage_of_each_token():
    loss, gradient, ratio = gspo(ADVANTAGES_S)
    assert ratio == pytest.approx(1.03389511, rel=1e-8)
    assert loss == pytest.approx(-0.516947557, abs=1e-9)
    assert gradient == pytest.approx([-0.689263409, 0.344631705, -0.172315852], abs=1e-9)


def test_gspo_with_one_advantage_a_sequence_has_the_gradient_of_the_sequences_ratio():
    _, gradient, _ = gspo(torch.full((3,), float(ADVANTAGES_S.mean()), dtype=torch.float64))
    assert gradient == pytest.approx([-0.172315852] * 3, abs=1e-9)
    theta = THETA_S.clone().requires_grad_(True)
    whole = -torch.exp((theta - PROXIMAL_S).mean()) * ADVANTAGES_S.mean()
    whole.backward()
    assert gradient == pytest.approx(theta.grad.tolist(), rel=1e-12)


def test_gspo_clips_each_token_by_its_own_sign():
    theta, proximal = column(0.0, 0.0), column(-0.5, -0.5)
    options = PolicyOptions(Surrogate(clip_low=0.2, clip_high=0.2), importance="sequence")
    terms = policy_loss(theta, proximal, proximal, column(1, -1), torch.zeros(2, dtype=torch.int64), options)
    assert terms.clipped.tolist() == [True, False]


TURNS, VALUES = np.array([0, 0, 1, 1, 1, 2]), np.array([0.5, 0.4, 0.3, 0.2, 0.6, 0.1])
REWARDS = np.array([0, 0, 0, 0.25, 0, 1.0])
ONE, ALL = np.array([0, 6]), np.ones(6, bool)


def test_gae_by_turn_of_an_episode_that_ended():
    advantages, returns = turn_gae(REWARDS, VALUES, ALL, ONE, TURNS, gamma=0.9, lam=0.8)
    np.testing.assert_allclose(advantages, np.array([0.26536, 0.688, 0.9])[TURNS], atol=1e-12)
    np.testing.assert_allclose(returns, np.array([0.76536, 0.988, 1.0])[TURNS], atol=1e-12)


def test_gae_by_turn_of_one_that_was_cut():
    cut, _ = turn_gae(REWARDS, VALUES, ALL, ONE, TURNS, gamma=0.9, lam=0.8, bootstrap=np.array([0.7]))
    np.testing.assert_allclose(cut, np.array([0.591952, 1.1416, 1.53])[TURNS], atol=1e-12)


def test_gae_by_token_of_the_same_rewards():
    found, _ = gae(REWARDS, VALUES, ALL, ONE, gamma=0.9, lam=0.8)
    golden = [-0.038505759, 0.140964224, 0.3763392, 0.68936, 0.138, 0.9]
    np.testing.assert_allclose(found, golden, atol=1e-9)


def test_gae_by_turn_skips_prompts_and_keeps_sequences_apart():
    mask = np.array([0, 1, 1, 0, 1, 1, 1, 1, 0, 1], bool)
    turns, offsets = np.array([1, 2, 2, 2, 3, 3, 3, 3, 4, 5]), np.array([0, 8, 10])
    rewards, values = np.zeros(10), np.zeros(10)
    rewards[mask], values[mask] = [0, 0, 0, 0, 0.25, 1.0, 9.0], [0.5, 0.4, 0.3, 0.2, 0.6, 0.1, 2.0]
    advantages, returns = turn_gae(rewards, values, mask, offsets, turns, gamma=0.9, lam=0.8)
    alone, _ = turn_gae(
        rewards[:8][mask[:8]], values[:8][mask[:8]], ALL, ONE, np.array([0, 0, 1, 1, 1, 1]), gamma=0.9, lam=0.8
    )
    np.testing.assert_allclose(advantages[:8][mask[:8]], alone, rtol=1e-12)
    assert (advantages[9], returns[9]) == (7.0, 9.0)
    assert not advantages[~mask].any()


def test_a_turn_is_a_stretch_of_tokens_that_the_policy_made():
    tokens = batch(1, 2)
    versions = np.full(tokens.tokens, -1)
    versions[[1, 2, 4]] = [3, 4, 4]
    length = int(tokens.lengths[0])
    turns = replace(tokens, versions=versions).turns
    assert turns[:5].tolist() == [1, 2, 2, 2, 3][:5]
    assert turns[length] > turns[length - 1], "a sequence begins a turn of its own"


def test_by_turn_the_penalty_is_each_tokens_own_and_the_critic_does_not_learn_it():
    tokens = batch(2, 2, seed=1)
    proximal = tokens.behaviour_logprobs
    reference = (proximal - np.arange(tokens.tokens) % 3 * 0.1).astype(np.float32)
    columns = TokenColumns(proximal=proximal, reference=reference, values=np.full(tokens.tokens, 0.25))
    plain = AdvantageOptions(gamma=0.9, lam=0.8, by_turn=True)
    without = estimate_advantages(tokens, plain, columns)
    found = estimate_advantages(tokens, replace(plain, kl=RewardKL(0.5)), columns)
    gap = np.where(tokens.trainable(), 0.5 * (proximal.astype(float) - reference.astype(float)), 0.0)
    np.testing.assert_allclose(found.tokens, without.tokens - gap, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(found.returns, without.returns)
