"""The behaviour weight w = π_prox/π_behav: corrects for the policy that made the tokens having been another one.

Pure, without gradient, always applied; leaving tokens out is a thing of its own (`rejection`). Truncation is TIS.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from areal_trainer.algorithms.ratio import LIMIT, sequence_mean, sequence_sum

Weight = Literal["token", "sequenceMean", "sequenceProduct"]


@dataclass(frozen=True)
class WeightTruncation:
    """w ← min(max(w, lower), upper). Truncated importance sampling with upper 2 is usual."""

    upper: float
    lower: float | None = None


def behaviour_weight(
    distance: Tensor, sequence: Tensor, level: Weight, truncate: WeightTruncation | None = None
) -> Tensor:
    """e^d by token, of the sequence's mean d, or of its sum. [tokens].

    token is biased with low variance; sequenceProduct is unbiased and spreads as e^{σ√n}; sequenceMean is biased and
    doesn't depend on length.

    Args:
        distance: d = p − b, finite, [tokens]
    """
    if level == "sequenceMean":
        distance = sequence_mean(distance, sequence)
    elif level == "sequenceProduct":
        distance = sequence_sum(distance, sequence)
    weight = torch.exp(distance.clamp(-LIMIT, LIMIT))
    return weight if truncate is None else weight.clamp(truncate.lower or 0.0, truncate.upper)
