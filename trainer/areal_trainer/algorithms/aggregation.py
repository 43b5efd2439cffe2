"""Loss aggregation: how much each token of a mini-batch weighs (token mean, sequence mean, Dr.GRPO's constant).

Pure. Counts are over the whole mini-batch, all micro-batches and ranks, and before rejection, so the loss is a plain
sum of weighted tokens wherever they are computed.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Aggregation = Literal["token", "sequence", "constant"]


def divisor(trained: NDArray[np.bool_], sequence: NDArray[np.int64], aggregation: Aggregation) -> int:
    """The N or S_t of `token_weights`: of a batch in parts, the parts' add up."""
    return int(trained.sum()) if aggregation == "token" else len(np.unique(sequence[trained]))


def token_weights(
    trained: NDArray[np.bool_],
    sequence: NDArray[np.int64],
    aggregation: Aggregation,
    horizon: int | None = None,
    *,
    summed: bool = False,
) -> NDArray[np.float64]:
    """The factor of each token's loss, 0 off `trained`. [tokens].

        token     1/N                N trained tokens: every token weighs the same
        sequence  1/(S_t·n_s)        S_t sequences with n_s trained tokens each: every sequence weighs the same
        constant  1/(S_t·H)          H the longest answer (arXiv 2503.20783): no weight depends on a length

    Args:
        trained: tokens of this mini-batch that are trained, [tokens]
        sequence: the sequence of each token, [tokens]
        horizon: H, for `constant`
        summed: 1 in the place of N or S_t, which the gradient is divided by once the batch is whole
    """
    tokens = np.bincount(sequence[trained], minlength=int(sequence.max(initial=-1)) + 1)
    count = 1 if summed else max(divisor(trained, sequence, aggregation), 1)
    weights = np.zeros(len(trained), np.float64)
    if aggregation == "token":
        weights[trained] = 1.0 / count
    elif aggregation == "sequence":
        weights[trained] = 1.0 / (count * tokens[sequence[trained]])
    else:
        if horizon is None:
            raise ValueError("constant aggregation needs the longest answer")
        weights[trained] = 1.0 / (count * horizon)
    return weights
