"""Surrogates: values and gradients by formulas and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from areal_trainer.algorithms.policy import Surrogate, surrogate_loss

RATIOS = [0.5, 0.85, 1.0, 1.1, 1.7, 6.0]
CASES = [(u, a) for u in RATIOS for a in (1.5, -0.7)]


def exact(u, a, logprob, o):
    low, high = 1 - o.clip_low, 1 + o.clip_high
    clip = min(max(u, low), high)
    if o.kind == "none":
        return -u * a
    if o.kind == "sapo":
        tau = o.tau_positive if a > 0 else o.tau_negative
        return -(4 / tau) / (1 + math.exp(-tau * (u - 1))) * a
    if o.kind == "cispo":
        return -clip * a * logprob
    loss = -min(u * a, clip * a)
    return min(loss, o.dual_clip * abs(a)) if o.dual_clip is not None and a < 0 else loss


OPTIONS = [
    Surrogate(),
    Surrogate(clip_low=0.2, clip_high=0.28),
    Surrogate(dual_clip=3.0),
    Surrogate("none"),
    Surrogate("sapo"),
    Surrogate("sapo", tau_positive=2.0, tau_negative=3.0),
    Surrogate("cispo", clip_low=1.0, clip_high=4.0),
]


def loss_of(logprob, proximal, advantage, options):
    value = torch.tensor([logprob], dtype=torch.float64, requires_grad=True)
    loss, clipped = surrogate_loss(
        value, torch.exp(value - proximal), torch.tensor([advantage], dtype=torch.float64), options
    )
    loss.sum().backward()
    return float(loss.detach()), float(value.grad), bool(clipped)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_value_and_gradient(options):
    logprob, step = -1.3, 1e-6
    for u, advantage in CASES:
        proximal = logprob - math.log(u)
        loss, gradient, _ = loss_of(logprob, proximal, advantage, options)
        assert loss == pytest.approx(exact(u, advantage, logprob, options), rel=1e-9)
        if options.kind == "cispo":  # its clip is a constant, which a finite difference would move
            clip = min(max(u, 1 - options.clip_low), 1 + options.clip_high)
            assert gradient == pytest.approx(-clip * advantage, rel=1e-12)
            continue
        up, down = (exact(math.exp(logprob + h - proximal), advantage, logprob, options) for h in (step, -step))
        assert gradient == pytest.approx((up - down) / (2 * step), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("tau", [0.5, 1.0, 1.05, 4.0])
def test_sapos_slope_at_one_is_the_advantage_for_every_temperature(tau):
    for advantage in (2.0, -3.0):
        options = Surrogate("sapo", tau_positive=tau, tau_negative=tau)
        loss, gradient, _ = loss_of(-1.0, -1.0, advantage, options)
        assert gradient == pytest.approx(-advantage, rel=1e-12)
        assert loss == pytest.approx(-2 * advantage / tau, rel=1e-12)


@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
def test_on_policy_the_gradient_is_the_advantage(options):
    assert loss_of(-2.0, -2.0, 1.5, options)[1] == pytest.approx(-1.5)


def test_what_a_clip_decided_is_told():
    def clipped(u, advantage, **options):
        return loss_of(-1.0, -1.0 - math.log(u), advantage, Surrogate(**options))[2]

    assert clipped(1.5, 1.0)
    assert not clipped(1.5, -1.0)
    assert clipped(0.5, -1.0)
    assert clipped(4.0, -1.0, dual_clip=3.0)
    assert clipped(9.0, 1.0, kind="cispo", clip_low=1.0, clip_high=4.0)
    assert not clipped(9.0, 1.0, kind="none")
