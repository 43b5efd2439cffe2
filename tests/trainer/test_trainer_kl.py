"""KL estimators: their means, and the gradient that each gives when it is a loss or a reward."""

from __future__ import annotations

import math

import pytest
import torch
from areal_trainer.algorithms.policy import KLLoss, PolicyOptions, policy_loss
from areal_trainer.algorithms.ratio import kl, kl_loss


def test_estimators_agree_with_the_exact_divergence_on_average():
    generator = torch.Generator().manual_seed(0)
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    draws = torch.multinomial(p, 200_000, replacement=True, generator=generator)
    exact = float((p * (p / q).log()).sum())
    for estimator, tolerance in (("k1", 2e-3), ("k3", 2e-3), ("k2", 4e-3)):
        mean = float(kl(p.log()[draws], q.log()[draws], estimator).mean())
        assert mean == pytest.approx(exact, abs=tolerance)
    assert bool((kl(p.log()[draws], q.log()[draws], "k3") >= 0).all())


def gradients(estimator):
    """The expected gradient of an estimator as a loss over a vocabulary of five, and the exact one's."""
    torch.manual_seed(3)
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.randn(5, dtype=torch.float64), -1)
    logprobs = torch.log_softmax(logits, -1)
    p = logprobs.detach().exp()
    if estimator == "exact":
        value = (logprobs.exp() * (logprobs - reference)).sum()
    elif estimator == "k1 as reward":
        value = (p * (logprobs - reference).detach() * logprobs).sum()
    elif estimator == "k1 as loss":
        value = (p * kl(logprobs, reference, "k1")).sum()
    else:
        zero = torch.zeros(5, dtype=torch.float64)
        behaviour = logprobs.detach()
        options = PolicyOptions(kl=KLLoss(1.0, estimator))
        terms = policy_loss(logprobs, behaviour, behaviour, zero, torch.arange(5), options, reference=reference)
        value = (p * terms.regulariser).sum()
    (gradient,) = torch.autograd.grad(value, logits)
    return gradient


@pytest.mark.parametrize("estimator", ["k2", "k3u", "k1 as reward"])
def test_these_have_the_exact_gradient_on_average(estimator):
    torch.testing.assert_close(gradients(estimator), gradients("exact"), rtol=1e-9, atol=1e-12)


def test_k1_as_a_loss_has_no_gradient_on_average_and_k3_another():
    assert float(gradients("k1 as loss").abs().max()) < 1e-12
    assert float((gradients("k3") - gradients("exact")).norm()) > 0.05 * float(gradients("exact").norm())


@pytest.mark.parametrize(
    ("estimator", "delta", "value", "slope"),
    [
        ("k3", 0.5, math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)),
        ("k3", -2.0, math.exp(2) - 3, 1 - math.exp(2)),
        ("k3", -math.log(11), 7.602104727, -10.0),
        ("k3", -20.0, 183.623152, -10.0),
        ("k3", -1e4, 7.602104727 + 10 * (1e4 - math.log(11)), -10.0),
        ("k3", 1e4, 9999.0, 1.0),
        ("k2", 3.0, 4.5, 3.0),
        ("k2", 10.0, 50.0, 10.0),
        ("k2", 200.0, 1950.0, 10.0),
        ("k2", -200.0, 1950.0, -10.0),
    ],
)
def test_as_a_loss_it_goes_on_straight_where_it_is_steep_and_never_loses_its_pull(estimator, delta, value, slope):
    logprobs = torch.tensor([delta], dtype=torch.float64, requires_grad=True)
    found = kl_loss(logprobs, torch.zeros(1, dtype=torch.float64), estimator)
    found.sum().backward()
    assert float(found.detach()) == pytest.approx(value, rel=1e-6)
    assert float(logprobs.grad) == pytest.approx(slope, rel=1e-9)


def test_an_impossible_tokens_loss_is_finite_in_single_precision():
    logprobs = torch.tensor([-1e4, -1.0], requires_grad=True)
    made = logprobs.detach()
    options = PolicyOptions(kl=KLLoss(0.1, "k3"))
    terms = policy_loss(
        logprobs, made, made, torch.zeros(2), torch.arange(2), options, reference=torch.tensor([-1.0, -1.0])
    )
    terms.regulariser.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.0, 0.0])
