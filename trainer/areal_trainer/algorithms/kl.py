"""Estimators of KL(π‖π_ref) from tokens sampled by π (Schulman, "Approximating KL divergence", 2020)."""

import math
from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]

_STEEPEST = 10.0  # of a loss: an unlikely token pulls back as hard as this and no harder


def kl(logprobs: Tensor, reference: Tensor, estimator: Estimator) -> Tensor:
    """Per token, [tokens], with Δ = log π − log π_ref.

    k1 = Δ is unbiased and may be negative; k2 = Δ²/2 is biased and of low variance;
    k3 = e^{−Δ} − 1 + Δ is unbiased and never negative.
    """
    delta = logprobs - reference
    if estimator == "k1":
        return delta
    if estimator == "k2":
        return 0.5 * delta * delta
    return torch.expm1(-delta) + delta


def kl_loss(logprobs: Tensor, reference: Tensor, estimator: Literal["k2", "k3"]) -> Tensor:
    """k2 or k3 as a loss, per token, [tokens]: beyond a slope of ±10 it goes on as a straight line.

    k3 is linear below Δ = −ln 11, k2 beyond |Δ| = 10. k3 of an impossible token, e^20 at Δ = −20, would outweigh the
    batch; a value that is cut has no gradient just where the pull is needed.
    """
    delta = logprobs - reference
    near = delta.clamp(min=-math.log1p(_STEEPEST)) if estimator == "k3" else delta.clamp(-_STEEPEST, _STEEPEST)
    slope = -torch.expm1(-near) if estimator == "k3" else near
    return kl(near, torch.zeros_like(near), estimator) + slope.detach() * (delta - near)
