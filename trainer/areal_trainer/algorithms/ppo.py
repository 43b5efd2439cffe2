"""The policy-gradient loss per token: PPO with a proximal policy of its own (decoupled PPO).

Pure. Returns terms a token; who calls it sums them and divides by the global count of trained tokens, which is the
count *before* rejection: a rejected token adds nothing, and it does not make the others louder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rejection:
    """Tokens whose π_prox/π_behav exceeds `upper` are left out. A token exactly at the bound is kept."""

    upper: float = 5.0
    metric: Literal["ratio"] = "ratio"


@dataclass(frozen=True)
class PPOOptions:
    """ε below and above 1, and what to do with tokens of an older policy."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    decoupled: bool = True
    rejection: Rejection | None = None


@dataclass(frozen=True)
class PPOTerms:
    """All [tokens]. Only `loss` carries a gradient."""

    loss: Tensor  # 0 where rejected
    ratio: Tensor  # u
    behaviour_weight: Tensor  # the constant factor in front; 0 where rejected
    clipped: Tensor  # bool: the clipped branch decided
    rejected: Tensor  # bool


def policy_loss(
    logprobs: Tensor, proximal: Tensor, behaviour: Tensor, advantages: Tensor, options: PPOOptions
) -> PPOTerms:
    """−(π_prox/π_behav) · min(u·A, clip(u, 1−ε_low, 1+ε_high)·A) with u = π_θ/π_prox (arXiv 2505.24298, eq. 5).

    The first factor carries no gradient and is always applied; rejection is separate. Without `decoupled` it is
    plain PPO against the behaviour policy: u = π_θ/π_behav and no factor. With π_prox = π_behav both are the same.

    Args:
        logprobs: of π_θ, with gradient, [tokens]
        proximal, behaviour, advantages: constants, [tokens]
    """
    proximal = proximal.detach()
    log_weight = proximal - behaviour
    weight = torch.exp(log_weight)
    rejected = ~torch.isfinite(weight)
    if options.rejection is not None:
        rejected = rejected | (weight > options.rejection.upper)
    weight = torch.where(rejected, torch.zeros_like(weight), weight)  # inf · 0 would put NaN into the gradient
    centre = torch.where(rejected, logprobs.detach(), proximal if options.decoupled else behaviour)
    ratio = torch.exp(logprobs - centre)
    unclipped = ratio * advantages
    limited = torch.clamp(ratio, 1.0 - options.clip_low, 1.0 + options.clip_high) * advantages
    objective = torch.minimum(unclipped, limited)
    if options.decoupled:
        objective = objective * weight
    loss = torch.where(rejected, torch.zeros_like(objective), -objective)
    return PPOTerms(
        loss=loss,
        ratio=ratio.detach(),
        behaviour_weight=weight,
        clipped=(limited < unclipped).detach() & ~rejected,
        rejected=rejected,
    )
