"""Formulas against hand calculations in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from areal_trainer.algorithms.advantages import AdvantageOptions, group_advantages
from areal_trainer.algorithms.kl import kl
from areal_trainer.algorithms.ppo import PPOOptions, Rejection, policy_loss
from areal_trainer.algorithms.statistics import LossStatistics

EPS = 1e-6


def advantages(rewards, groups, counted=None, samples=None, **options):
    counted = np.ones(len(rewards), bool) if counted is None else np.array(counted)
    samples = np.arange(len(rewards)) if samples is None else np.array(samples)
    return group_advantages(np.array(rewards, float), np.array(groups), samples, counted, AdvantageOptions(**options))


def test_grpo_normalises_each_group_by_its_own_mean_and_deviation():
    result = advantages([1, 0, 0, 0, 5, 7], [3, 3, 3, 3, 9, 9])
    mean, std = 0.25, math.sqrt(0.25 * 0.75)
    expected = [(1 - mean) / (std + EPS), *[-mean / (std + EPS)] * 3, -1 / (1 + EPS), 1 / (1 + EPS)]
    np.testing.assert_allclose(result.values, expected, rtol=1e-12)
    assert result.trained.all()


def test_a_group_that_lost_a_sample_shifts_no_other_group():
    whole = advantages([1, 0, 1, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1])
    partial = advantages([1, 0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(whole.values[4:], partial.values[3:])


def test_interleaved_groups_are_told_apart_by_id():
    result = advantages([1, 10, 0, 20], [7, 2, 7, 2], std="none")
    np.testing.assert_allclose(result.values, [0.5, -5, -0.5, 5])


def test_a_group_without_variance_is_masked_and_counted():
    result = advantages([1, 1, 0, 1], [0, 0, 1, 1])
    assert result.trained.tolist() == [False, False, True, True]
    assert result.zero_variance_groups == 1
    assert result.values[:2].tolist() == [0.0, 0.0]


def test_rounding_does_not_turn_equal_rewards_into_a_signal():
    result = advantages([0.1] * 3, [0] * 3, mask_zero_variance=False)
    assert result.values.tolist() == [0.0, 0.0, 0.0]


def test_leave_one_out_compares_with_the_others_only():
    result = advantages([3, 0, 6, 9], [0, 0, 0, 1], std="none", leave_one_out=True)
    np.testing.assert_allclose(result.values, [0.0, -4.5, 4.5, 0.0])
    assert result.trained.tolist() == [True, True, True, False]


def test_batch_levels_use_all_counted_sequences():
    rewards = np.array([0.0, 1.0, 2.0, 5.0])
    result = advantages(rewards, [0, 0, 1, 1], mean="batch", std="batch", mask_zero_variance=False)
    np.testing.assert_allclose(result.values, (rewards - 2.0) / (rewards.std() + EPS), rtol=1e-12)


def test_a_sequence_cut_at_the_deadline_enters_no_mean():
    result = advantages([1, 0, 100], [0, 0, 0], counted=[True, True, False], std="none")
    np.testing.assert_allclose(result.values, [0.5, -0.5, 0.0])
    assert not result.trained[2]


def test_an_episode_of_many_sequences_weighs_as_much_as_an_episode_of_one():
    """Sample 0 has three turns of reward 1, samples 1 and 2 one of 0: the mean is 1/3, not 3/5."""
    result = advantages([1, 1, 1, 0, 0], [0] * 5, samples=[0, 0, 0, 1, 2])
    std = math.sqrt((4 / 9 + 1 / 9 + 1 / 9) / 3)
    expected = [2 / 3 / (std + EPS)] * 3 + [-1 / 3 / (std + EPS)] * 2
    np.testing.assert_allclose(result.values, expected, rtol=1e-12)
    batch = advantages([1, 1, 1, 0, 0], [0, 0, 0, 0, 1], samples=[0, 0, 0, 1, 0], mean="batch", std="batch")
    np.testing.assert_allclose(batch.values[:3], 2 / 3 / (std + EPS), rtol=1e-12)


def test_leave_one_out_leaves_out_all_sequences_of_a_sample():
    result = advantages([4, 2, 6, 9], [0] * 4, samples=[0, 0, 1, 2], std="none", leave_one_out=True)
    np.testing.assert_allclose(result.values, [4 - 7.5, 2 - 7.5, 6 - 6.0, 9 - 4.5])


def test_without_a_group_mean_groups_that_earned_the_same_are_trained_unless_masked():
    kept = advantages([1, 1, 0, 0], [0, 0, 1, 1], mean="batch", std="none", mask_zero_variance=False)
    np.testing.assert_allclose(kept.values, [0.5, 0.5, -0.5, -0.5])
    assert kept.trained.all()
    masked = advantages([1, 1, 0, 0], [0, 0, 1, 1], mean="batch", std="none")
    assert not masked.trained.any()


def tensors(*rows):
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def test_decoupled_loss_equals_the_formula_token_by_token():
    theta, prox, behaviour, adv = tensors(
        [-1.0, -2.0, -0.5, -3.0], [-1.2, -1.5, -0.6, -3.0], [-1.0, -1.9, -0.9, -3.1], [1.0, -2.0, 0.5, -0.3]
    )
    terms = policy_loss(theta, prox, behaviour, adv, PPOOptions(clip_low=0.1, clip_high=0.15))
    for i in range(4):
        u = math.exp(float(theta[i] - prox[i]))
        a = float(adv[i])
        objective = min(u * a, min(max(u, 0.9), 1.15) * a)
        weight = math.exp(float(prox[i] - behaviour[i]))
        assert float(terms.loss[i]) == pytest.approx(-weight * objective, rel=1e-12)
    assert terms.clipped.tolist() == [True, True, False, False]


def test_the_behaviour_factor_is_applied_without_rejection_and_has_no_gradient():
    theta, prox, behaviour, adv = tensors([-1.0, -2.0], [-1.0, -2.0], [-1.5, -1.0], [1.0, 1.0])
    theta.requires_grad_(True)
    prox.requires_grad_(True)
    policy_loss(theta, prox, behaviour, adv, PPOOptions()).loss.sum().backward()
    np.testing.assert_allclose(theta.grad.numpy(), [-math.exp(0.5), -math.exp(-1.0)], rtol=1e-12)
    assert prox.grad is None


def test_a_clipped_token_has_no_gradient_and_an_unclipped_one_has():
    theta, prox, adv = tensors([-1.0, -1.0, -1.0, -1.0], [-1.5, -1.5, -0.5, -0.5], [1.0, -1.0, 1.0, -1.0])
    theta.requires_grad_(True)
    policy_loss(theta, prox, prox, adv, PPOOptions()).loss.sum().backward()
    assert [bool(g) for g in theta.grad != 0] == [False, True, True, False]


def test_rejected_tokens_add_nothing_and_the_bound_itself_is_kept():
    theta, behaviour, adv = tensors([0.0, 0.0, 0.0], [-math.log(5.0), -math.log(5.1), -math.inf], [1.0, 1.0, 1.0])
    weight = torch.exp(theta - behaviour)
    terms = policy_loss(theta, theta, behaviour, adv, PPOOptions(rejection=Rejection(upper=float(weight[0]))))
    assert terms.rejected.tolist() == [False, True, True]
    assert terms.loss.tolist() == [-float(weight[0]), 0.0, 0.0]


def test_with_proximal_equal_to_behaviour_it_is_ppo():
    theta, prox, adv = tensors([-1.0, -2.0, -0.1], [-1.3, -1.8, -0.1], [1.0, -1.0, 2.0])
    decoupled = policy_loss(theta, prox, prox, adv, PPOOptions())
    plain = policy_loss(theta, prox, prox, adv, PPOOptions(decoupled=False))
    torch.testing.assert_close(decoupled.loss, plain.loss, rtol=0, atol=0)


def test_kl_estimators_agree_with_the_exact_divergence_on_average():
    generator = torch.Generator().manual_seed(0)
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    draws = torch.multinomial(p, 200_000, replacement=True, generator=generator)
    exact = float((p * (p / q).log()).sum())
    for estimator, tolerance in (("k1", 2e-3), ("k3", 2e-3), ("k2", 4e-3)):
        mean = float(kl(p.log()[draws], q.log()[draws], estimator).mean())
        assert mean == pytest.approx(exact, abs=tolerance)
    assert bool((kl(p.log()[draws], q.log()[draws], "k3") >= 0).all())


def test_figures_are_means_over_tokens_not_means_of_means():
    statistics = LossStatistics(torch.device("cpu"))
    for values in ([1.0, 2.0, 3.0], [10.0]):
        (theta,) = tensors(values)
        zero = torch.zeros_like(theta)
        terms = policy_loss(zero, zero, zero, theta, PPOOptions())
        statistics.add(terms, zero, zero, zero, theta, torch.zeros_like(theta, dtype=torch.bool))
    figures = statistics.figures()
    assert figures.tokens == 4
    assert figures.entropy == pytest.approx(4.0)
    assert figures.loss == pytest.approx(-4.0)
    assert figures.logprob_mismatch is None


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("behaviour", [-float("inf"), -400.0])
def test_a_token_with_an_impossible_behaviour_is_rejected_without_spoiling_the_gradient(behaviour, decoupled):
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    terms = policy_loss(
        logprobs,
        torch.tensor([-1.0, -2.0]),
        torch.tensor([-1.0, behaviour]),
        torch.tensor([1.0, 1.0]),
        PPOOptions(decoupled=decoupled),
    )
    terms.loss.sum().backward()
    assert terms.rejected.tolist() == [False, True]
    assert terms.loss.tolist() == [-1.0, 0.0]
    assert logprobs.grad.tolist() == [-1.0, 0.0]
