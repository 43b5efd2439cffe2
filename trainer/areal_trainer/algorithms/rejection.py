"""Rejection: tokens or sequences whose policy moved too far since they were sampled are left out of the loss.

Pure. A list, all of which must pass. What is rejected adds nothing, and it makes nothing else louder: the count that a
loss is divided by stays. A value equal to a bound is kept; a distance that is not finite is always rejected.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from areal_trainer.algorithms.ratio import sequence_mean, sequence_sum

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
