"""Masks of the loss: tokens or sequences whose policy moved too far since they were sampled are left out of it.

Pure. A list, all of which must pass. What is rejected adds nothing, and it makes nothing else louder: the count that a
loss is divided by stays. A value equal to a bound is kept; a distance that is not finite is always rejected.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.algorithms.ratio import LIMIT, sequence_mean, sequence_sum

Metric = Literal["ratio", "k1", "k2", "k3", "binaryKl"]

_SMALLEST = 1e-8  # of a coin's probability


@dataclass(frozen=True)
class RejectionRule:
    """Keep lower ≤ x ≤ upper of `metric`, a token's or its sequence's; a bound that is None doesn't bind."""

    metric: Metric = "ratio"
    level: Literal["token", "sequence"] = "token"
    aggregate: Literal["mean", "sum", "max", "min"] = "mean"  # of a sequence's tokens
    upper: float | None = None
    lower: float | None = None


def rejected(proximal: Tensor, behaviour: Tensor, sequence: Tensor, rules: Sequence[RejectionRule]) -> Tensor:
    """True where any rule refuses the token, or its distance d = p − b is not finite. [tokens] bool."""
    distance = proximal - behaviour
    out = ~torch.isfinite(torch.exp(distance))
    for rule in rules:
        values = _metric(rule.metric, proximal, behaviour)
        if rule.level == "sequence":
            values = _of_sequence(values, sequence, rule)
        if rule.metric == "ratio":
            values = torch.exp(values)
        if rule.upper is not None:
            out = out | ~(values <= rule.upper)
        if rule.lower is not None:
            out = out | ~(values >= rule.lower)
    return out


def _metric(metric: Metric, proximal: Tensor, behaviour: Tensor) -> Tensor:
    """By token. A ratio is given by its logarithm, in which it is aggregated: its mean is the geometric one."""
    distance = proximal - behaviour
    if metric in ("ratio", "k1"):
        return distance
    if metric == "k2":
        return 0.5 * distance * distance
    if metric == "k3":  # of e^d: tokens come from the behaviour policy, so its mean there is KL(behaviour‖proximal)
        return torch.expm1(distance) - distance
    ours, theirs = proximal.exp(), behaviour.exp()
    return torch.maximum(coin_kl(ours, theirs), coin_kl(theirs, ours))


def coin_kl(x: Tensor, y: Tensor) -> Tensor:
    """KL of two coins that show heads with probability x and y, in nats."""
    x, y = (values.clamp(_SMALLEST, 1.0 - _SMALLEST) for values in (x, y))
    return x * (x / y).log() + (1.0 - x) * ((1.0 - x) / (1.0 - y)).log()


def _of_sequence(values: Tensor, sequence: Tensor, rule: RejectionRule) -> Tensor:
    if rule.aggregate == "mean":
        return sequence_mean(values, sequence)
    if rule.aggregate == "sum":
        return sequence_sum(values, sequence)
    _, member = torch.unique(sequence, return_inverse=True)
    farthest = torch.zeros(int(member.max()) + 1 if member.numel() else 0, dtype=values.dtype, device=values.device)
    return farthest.scatter_reduce(0, member, values, f"a{rule.aggregate}", include_self=False)[member]


# ---- The second-moment mask of M2PO (arXiv 2510.01161): leaves out the most off-policy tokens
# Pure, in float64. Taken once over all tokens of a mini-batch, of every rank, so that it doesn't depend on packing.


def second_moment_mask(
    proximal: NDArray[np.float32], behaviour: NDArray[np.float32], threshold: float
) -> NDArray[np.bool_]:
    """Which tokens stay, [tokens]: z = (b − p)²; the largest go until the mean of the rest is below `threshold`.

    At least one token stays. Of equal values the later in the batch stays longer. A distance that is not finite goes.

    Args:
        proximal, behaviour: log-probabilities of the mini-batch's trained tokens, [tokens]
    """
    with np.errstate(invalid="ignore"):
        moment = np.square(np.asarray(behaviour, np.float64) - np.asarray(proximal, np.float64))
    finite = np.flatnonzero(np.isfinite(moment))
    kept = np.zeros(len(moment), np.bool_)
    if not finite.size:
        return kept
    order = finite[np.argsort(-moment[finite], kind="stable")]
    rest = np.cumsum(moment[order][::-1])[::-1] / np.arange(len(order), 0, -1)  # mean of what stays without the first k
    below = np.flatnonzero(rest < threshold)
    first = int(below[0]) if below.size else len(order) - 1
    kept[order[first:]] = True
    return kept


# ---- Divergence proximal policy optimisation (DPPO, arXiv 2602.04879): a mask by how far a token's probability moved
# Pure. A ratio says little of an unlikely token: 1e-4 to 1e-3 is a ratio of 10 and a thousandth of probability. The
# mask looks at the total variation or the KL of two coins instead, against the policy that *made* the token.


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
