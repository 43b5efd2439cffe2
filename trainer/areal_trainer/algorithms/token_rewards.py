"""Rewards by token: the outcome on the last action token, a KL penalty against a reference on each.

Pure, in float64. The penalty is of the policy that is improved, so it reads the proximal log-probabilities.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from areal_trainer.algorithms.kl import Estimator, kl

_LARGEST = 10.0  # of one token's penalty: k3 of an impossible token would outweigh everything


def kl_penalty(
    proximal: NDArray[np.float32], reference: NDArray[np.float32], estimator: Estimator
) -> NDArray[np.float64]:
    """κ(p − f) by token, limited to ±10, [tokens]."""
    ours, theirs = (torch.from_numpy(np.asarray(values, np.float64)) for values in (proximal, reference))
    penalty: NDArray[np.float64] = kl(ours, theirs, estimator).clamp(-_LARGEST, _LARGEST).numpy()
    return penalty


def last_actions(actions: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each sequence's last action token, [sequences]; −1 where a sequence has none."""
    places = np.where(actions, np.arange(len(actions)), -1)
    last = np.full(len(offsets) - 1, -1, np.int64)
    np.maximum.at(last, np.repeat(np.arange(len(last)), np.diff(offsets)), places)
    return last


def token_rewards(
    outcomes: NDArray[np.float64],
    actions: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    penalty: NDArray[np.float64] | None = None,
    coefficient: float = 0.0,
) -> NDArray[np.float64]:
    """R_j = −β·κ_j on every action token, plus the outcome on the last one; 0 elsewhere. [tokens].

    Args:
        outcomes: normalised rewards, [sequences]
        actions: True for tokens the policy sampled, [tokens]
        offsets: [sequences + 1]
        penalty: κ, [tokens]
        coefficient: β
    """
    rewards = np.zeros(len(actions), np.float64)
    if penalty is not None:
        rewards[actions] = -coefficient * penalty[actions]
    last = last_actions(actions, offsets)
    held = last >= 0
    rewards[last[held]] += outcomes[held]
    return rewards
