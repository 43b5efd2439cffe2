"""Estimators of KL(π‖π_ref) from tokens sampled by π (Schulman, "Approximating KL divergence", 2020)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]


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
