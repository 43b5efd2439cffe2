"""Whitening of advantages over the tokens of a batch or of each group.

Pure, in float64. Token-weighted: a long sequence weighs more. Done once for the whole batch, before it is cut into
mini-batches, so every rank and every cut sees the same.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Normalise = Literal["none", "batch", "group"]

EPSILON = 1e-5  # added to the deviation


def normalise_advantages(
    advantages: NDArray[np.float64], mask: NDArray[np.bool_], groups: NDArray[np.int64], level: Normalise
) -> NDArray[np.float64]:
    """(A − μ)/(σ + 1e-5) over the tokens of `mask`, σ with Bessel's correction; 0 off the mask. [tokens].

    Args:
        advantages: [tokens]
        mask: tokens that are trained, [tokens]
        groups: the group of each token, any integers, [tokens]
    """
    if level == "none":
        return advantages
    chosen = advantages[mask]
    member = np.zeros(len(chosen), np.int64)
    if level == "group":
        member = np.unique(groups[mask], return_inverse=True)[1].reshape(-1)
    size = np.maximum(np.bincount(member), 1)
    mean = np.bincount(member, chosen) / size
    centred = chosen - mean[member]
    deviation = np.sqrt(np.bincount(member, centred * centred) / np.maximum(size - 1, 1))
    whitened = np.zeros_like(advantages)
    whitened[mask] = centred / (deviation[member] + EPSILON)
    return whitened
