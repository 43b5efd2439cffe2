"""Sums and maxima of one step, that add up over micro-batches and ranks.

Owns the meaning of each figure in the metrics. A mean is kept as sum and count until the end, so it is the mean over
all tokens of the step and never a mean of means.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from areal_trainer.algorithms.policy import PolicyTerms
from areal_trainer.algorithms.ratio import kl

_SUMS = ("tokens", "loss", "clipped", "rejected", "kl", "weight", "entropy", "gap", "same", "mismatch", "reference_kl")
_MAXIMA = ("weight_max", "mismatch_max")


@dataclass(frozen=True)
class LossFigures:
    """What a step's tokens say, over all its mini-batches. Shares are of trained tokens."""

    tokens: int
    loss: float
    clip_ratio: float
    rejected_ratio: float
    approx_kl: float  # k3 of the proximal against the current policy
    behaviour_weight_mean: float
    behaviour_weight_max: float
    entropy: float
    behaviour_gap: float  # mean |log π_prox − log π_behav|: age and engine mismatch together
    logprob_mismatch: float | None  # the same over tokens of the trainer's own version: engine mismatch alone
    logprob_mismatch_max: float | None
    reference_kl: float  # estimate against the reference in the loss; 0 without one


class LossStatistics:
    """Accumulates on the device; nothing is copied to the host before `figures`."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=device)
        self._maxima = torch.zeros(len(_MAXIMA), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(
        self, terms: PolicyTerms, logprobs: Tensor, proximal: Tensor, behaviour: Tensor, entropy: Tensor, same: Tensor
    ) -> None:
        """Count one micro-batch's tokens. All [tokens]; `same` marks tokens that the trainer's own version made."""
        if logprobs.numel() == 0:
            return
        gap = (proximal - behaviour).abs()
        mismatch = torch.where(same, gap, torch.zeros_like(gap))
        sums = torch.stack(
            [
                torch.tensor(float(logprobs.numel()), device=logprobs.device),
                terms.loss.sum(),
                terms.clipped.sum(),
                terms.rejected.sum(),
                kl(proximal, logprobs, "k3").sum(),
                terms.behaviour_weight.sum(),
                entropy.sum(),
                gap.sum(),
                same.sum(),
                mismatch.sum(),
                terms.reference_kl.sum(),
            ]
        )
        self._sums += sums.double()
        peaks = torch.stack([terms.behaviour_weight.max(), mismatch.max()]).double()
        self._maxima = torch.maximum(self._maxima, peaks)

    def reduce(self, add: Callable[[Tensor], None], maximum: Callable[[Tensor], None]) -> None:
        """Combine with the other ranks, in place."""
        add(self._sums)
        maximum(self._maxima)

    def figures(self) -> LossFigures:
        """The means over everything added."""
        total = dict(zip(_SUMS, self._sums.tolist(), strict=True))
        peak = dict(zip(_MAXIMA, self._maxima.tolist(), strict=True))
        tokens = max(total["tokens"], 1.0)
        same = total["same"]
        return LossFigures(
            tokens=int(total["tokens"]),
            loss=total["loss"] / tokens,
            clip_ratio=total["clipped"] / tokens,
            rejected_ratio=total["rejected"] / tokens,
            approx_kl=total["kl"] / tokens,
            behaviour_weight_mean=total["weight"] / tokens,
            behaviour_weight_max=peak["weight_max"],
            entropy=total["entropy"] / tokens,
            behaviour_gap=total["gap"] / tokens,
            logprob_mismatch=total["mismatch"] / same if same else None,
            logprob_mismatch_max=peak["mismatch_max"] if same else None,
            reference_kl=total["reference_kl"] / tokens,
        )
