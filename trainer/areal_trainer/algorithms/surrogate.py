"""Surrogate objectives of a policy gradient, per token, to be minimised: PPO's band, none, SAPO's gate, CISPO.

Pure. The advantage is a constant everywhere; the behaviour weight is applied by the caller.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["ppo", "none", "sapo", "cispo"]


@dataclass(frozen=True)
class Surrogate:
    """Which objective, and its constants."""

    kind: Kind = "ppo"
    clip_low: float = 0.2  # ε below 1
    clip_high: float = 0.2  # ε above 1
    dual_clip: float | None = None  # c > 1: the loss of a negative advantage is at most c·|A|
    tau_positive: float = 1.0  # SAPO's temperatures, by the sign of the advantage
    tau_negative: float = 1.05


def surrogate_loss(logprobs: Tensor, ratio: Tensor, advantages: Tensor, options: Surrogate) -> tuple[Tensor, Tensor]:
    """The loss with gradient and where a clip decided, [tokens] each.

    ppo     −min(uA, clip(u, 1−ε_l, 1+ε_h)A); for A < 0 at most c|A| with dual clip    (1707.06347, 1912.09729)
    none    −uA
    sapo    −(4/τ)·σ(τ(u − 1))·A                                                       (2511.20347)
    cispo   −sg(clip(u, 1−ε_l, 1+ε_h))·A·ℓ                                             (2506.13585)
    """
    low, high = 1.0 - options.clip_low, 1.0 + options.clip_high
    if options.kind == "none":
        return -ratio * advantages, torch.zeros_like(advantages, dtype=torch.bool)
    if options.kind == "sapo":
        positive = torch.full_like(ratio, options.tau_positive)
        tau = torch.where(advantages > 0, positive, torch.full_like(ratio, options.tau_negative))
        gate = 4.0 / tau * torch.sigmoid(tau * (ratio - 1.0))
        return -gate * advantages, torch.zeros_like(advantages, dtype=torch.bool)
    limited = ratio.clamp(low, high)
    if options.kind == "cispo":
        return -limited.detach() * advantages * logprobs, (limited != ratio).detach()
    unclipped = ratio * advantages
    bounded = limited * advantages
    loss = -torch.minimum(unclipped, bounded)
    clipped = (bounded < unclipped).detach()
    if options.dual_clip is not None:
        most = options.dual_clip * advantages.abs()
        beyond = (advantages < 0) & (loss > most)
        loss = torch.where(beyond, most, loss)
        clipped = clipped | beyond.detach()
    return loss, clipped
