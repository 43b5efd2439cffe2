"""Divergence proximal policy optimisation (DPPO, arXiv 2602.04879): a mask by how far a token's probability moved.

Pure. A ratio says little of an unlikely token: 1e-4 to 1e-3 is a ratio of 10 and a thousandth of probability. The mask
looks at the total variation or the KL of two coins instead, against the policy that *made* the token.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from areal_trainer.algorithms.ratio import LIMIT
from areal_trainer.algorithms.rejection import coin_kl

Divergence = Literal["tv", "binaryKl"]


@dataclass(frozen=True)
class DPPOOptions:
    """Divergence of the mask, its bounds, and Kimi's quadratic term (arXiv 2602.02276)."""

    divergence: Divergence = "tv"
    low: float = 0.2  # δ of a token that a negative advantage has made less likely
    high: float = 0.2  # δ of one that a positive advantage has made likelier
    quadratic: float = 0.0  # τ


def dppo_loss(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, options: DPPOOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """−r·A·mask + τ(ℓ − b)² with r = e^{ℓ−b}; where the mask left a token out; and r. [tokens] each.

    The mask, a constant, drops a token where A > 0 and p > q by more than δ_high, or A < 0 and p < q by more than
    δ_low, with p = e^ℓ and q = e^b: `tv` measures |p − q|, `binaryKl` q·ln(q/p) + (1−q)·ln((1−q)/(1−p)). The quadratic
    term holds masked tokens, too.
    """
    ratio = torch.exp((logprobs - behaviour).clamp(-LIMIT, LIMIT))
    ours, theirs = logprobs.detach().exp(), behaviour.exp()
    moved = ours - theirs
    far = moved.abs() if options.divergence == "tv" else coin_kl(theirs, ours)
    beyond = ((advantages > 0) & (moved > 0) & (far > options.high)) | (
        (advantages < 0) & (moved < 0) & (far > options.low)
    )
    loss = torch.where(beyond, torch.zeros_like(ratio), -ratio * advantages)
    if options.quadratic:
        loss = loss + options.quadratic * (logprobs - behaviour).clamp(-LIMIT, LIMIT).square()
    return loss, beyond, ratio
