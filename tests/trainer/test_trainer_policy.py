"""The policy's loss put together: weights, rejection, regularisers, gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from areal_trainer.algorithms.policy import KLLoss, PolicyOptions, Surrogate, policy_loss
from areal_trainer.algorithms.ratio import WeightTruncation
from areal_trainer.algorithms.rejection import RejectionRule


def tensors(*rows):
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def terms_of(theta, prox, behaviour, advantages, sequence=None, options=None, **more):
    sequence = torch.arange(len(theta)) if sequence is None else torch.tensor(sequence)
    return policy_loss(theta, prox, behaviour, advantages, sequence, options or PolicyOptions(), **more)


def test_decoupled_loss_equals_the_formula_token_by_token():
    theta, prox, behaviour, adv = tensors(
        [-1.0, -2.0, -0.5, -3.0], [-1.2, -1.5, -0.6, -3.0], [-1.0, -1.9, -0.9, -3.1], [1.0, -2.0, 0.5, -0.3]
    )
    options = PolicyOptions(Surrogate(clip_low=0.1, clip_high=0.15))
    terms = terms_of(theta, prox, behaviour, adv, options=options)
    for i in range(4):
        u = math.exp(float(theta[i] - prox[i]))
        a = float(adv[i])
        objective = min(u * a, min(max(u, 0.9), 1.15) * a)
        weight = math.exp(float(prox[i] - behaviour[i]))
        assert float(terms.loss[i]) == pytest.approx(-weight * objective, rel=1e-12)
    assert terms.clipped.tolist() == [True, True, False, False]


def test_gspo_equals_its_formula():
    theta, prox, adv = tensors([-1.0, -2.0, -0.5], [-1.001, -2.002, -0.4], [1.0, 2.0, -1.0])
    options = PolicyOptions(Surrogate(clip_low=3e-4, clip_high=4e-4), importance="sequence")
    terms = terms_of(theta, prox, prox, adv, [5, 5, 6], options)
    u = math.exp((0.001 + 0.002) / 2)
    first, second = (-min(u * a, min(max(u, 1 - 3e-4), 1 + 4e-4) * a) for a in (1.0, 2.0))
    u = math.exp(-0.1)
    third = -min(-u, -min(max(u, 1 - 3e-4), 1 + 4e-4))
    assert terms.loss.tolist() == pytest.approx([first, second, third], rel=1e-12)


def test_the_behaviour_factor_is_applied_without_rejection_and_has_no_gradient():
    theta, prox, behaviour, adv = tensors([-1.0, -2.0], [-1.0, -2.0], [-1.5, -1.0], [1.0, 1.0])
    theta.requires_grad_(True)
    prox.requires_grad_(True)
    terms_of(theta, prox, behaviour, adv).loss.sum().backward()
    np.testing.assert_allclose(theta.grad.numpy(), [-math.exp(0.5), -math.exp(-1.0)], rtol=1e-12)
    assert prox.grad is None


def test_with_one_update_the_gradient_is_the_weighted_policy_gradient():
    theta, behaviour, adv = tensors([-1.0, -2.0, -0.7], [-1.1, -1.9, -0.7], [1.0, -1.0, 0.5])
    theta.requires_grad_(True)
    terms = terms_of(theta, theta.detach(), behaviour, adv)
    terms.loss.sum().backward()
    expected = -torch.exp(theta.detach() - behaviour) * adv
    torch.testing.assert_close(theta.grad, expected, rtol=1e-12, atol=0)
    assert terms.ratio.tolist() == [1.0, 1.0, 1.0]


def test_a_clipped_token_has_no_gradient_and_an_unclipped_one_has():
    theta, prox, adv = tensors([-1.0, -1.0, -1.0, -1.0], [-1.5, -1.5, -0.5, -0.5], [1.0, -1.0, 1.0, -1.0])
    theta.requires_grad_(True)
    terms_of(theta, prox, prox, adv).loss.sum().backward()
    assert [bool(g) for g in theta.grad != 0] == [False, True, True, False]


def test_rejected_tokens_add_nothing_and_change_no_other_tokens_gradient():
    theta, behaviour, adv = tensors([0.0, 0.0, 0.0], [-math.log(5.0), -math.log(5.1), -math.inf], [1.0, 1.0, 1.0])
    theta.requires_grad_(True)
    weight = torch.exp(theta - behaviour).detach()
    options = PolicyOptions(rejection=(RejectionRule(upper=float(weight[0])),))
    terms = terms_of(theta, theta.detach(), behaviour, adv, options=options)
    terms.loss.sum().backward()
    assert terms.rejected.tolist() == [False, True, True]
    assert terms.loss.tolist() == [-float(weight[0]), 0.0, 0.0]
    assert theta.grad.tolist() == [-float(weight[0]), 0.0, 0.0]


def test_with_proximal_equal_to_behaviour_it_is_ppo():
    theta, prox, adv = tensors([-1.0, -2.0, -0.1], [-1.3, -1.8, -0.1], [1.0, -1.0, 2.0])
    terms = terms_of(theta, prox, prox, adv)
    u = torch.exp(theta - prox)
    expected = -torch.minimum(u * adv, u.clamp(0.8, 1.2) * adv)
    torch.testing.assert_close(terms.loss, expected, rtol=0, atol=0)
    assert terms.behaviour_weight.tolist() == [1.0, 1.0, 1.0]


def test_truncation_and_sequence_weights_reach_the_loss():
    theta, behaviour, adv = tensors([-1.0, -1.0], [-2.0, -0.5], [1.0, 1.0])
    capped = terms_of(theta, theta, behaviour, adv, options=PolicyOptions(truncate=WeightTruncation(upper=2.0)))
    assert capped.behaviour_weight.tolist() == pytest.approx([2.0, math.exp(-0.5)])
    mean = terms_of(theta, theta, behaviour, adv, [0, 0], PolicyOptions(weight="sequenceMean"))
    assert mean.behaviour_weight.tolist() == pytest.approx([math.exp(0.25)] * 2)


def test_the_regulariser_is_weighted_kl_less_entropy():
    theta, behaviour, reference = tensors([-1.0, -2.0], [-1.5, -2.0], [-1.2, -1.0])
    entropy = torch.tensor([0.3, 0.6], dtype=torch.float64)
    options = PolicyOptions(kl=KLLoss(0.1, "k2"), entropy_coefficient=0.01)
    terms = terms_of(
        theta, theta, behaviour, torch.zeros(2).double(), options=options, reference=reference, entropy=entropy
    )
    expected = [0.1 * math.exp(0.5) * 0.2**2 / 2 - 0.003, 0.1 * 1.0**2 / 2 - 0.006]
    assert terms.regulariser.tolist() == pytest.approx(expected, rel=1e-12)
    assert terms.reference_kl.tolist() == pytest.approx([0.02, 0.5], rel=1e-12)


def test_what_a_coefficient_needs_must_be_there():
    (theta,) = tensors([-1.0])
    with pytest.raises(ValueError, match="reference"):
        terms_of(theta, theta, theta, theta, options=PolicyOptions(kl=KLLoss(0.1)))
    with pytest.raises(ValueError, match="entropies"):
        terms_of(theta, theta, theta, theta, options=PolicyOptions(entropy_coefficient=0.1))


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("behaviour", [-math.inf, -400.0])
def test_an_impossible_behaviour_spoils_no_gradient(behaviour, same):
    """`same`: the trust region is around the behaviour policy itself."""
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    made = torch.tensor([-1.0, behaviour])
    terms = terms_of(logprobs, made if same else logprobs.detach(), made, torch.tensor([1.0, 1.0]))
    terms.loss.sum().backward()
    assert terms.loss[0] == -1.0
    assert logprobs.grad.tolist() == [-1.0, 0.0]


def test_an_impossible_behaviour_changes_no_weight_of_its_sequence():
    theta, behaviour, adv = tensors([-1.0, -1.0], [-1.5, -math.inf], [1.0, 1.0])
    for level, expected in (("sequenceMean", math.exp(0.25)), ("sequenceProduct", math.exp(0.5))):
        terms = terms_of(theta, theta, behaviour, adv, [0, 0], PolicyOptions(weight=level))
        assert terms.behaviour_weight.tolist() == pytest.approx([expected, 0.0])
