"""The second-moment mask of M2PO (arXiv 2510.01161): leaves out the most off-policy tokens.

Pure, in float64. Taken once over all tokens of a mini-batch, of every rank, so that it doesn't depend on packing.
"""

import numpy as np
from numpy.typing import NDArray


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
