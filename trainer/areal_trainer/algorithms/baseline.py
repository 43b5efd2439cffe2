"""Reward normalisation by baseline and scale: group or batch mean, leave-one-out, group or batch deviation.

Owns what GRPO, Dr.GRPO, RLOO, LitePPO and REINFORCE++ do with rewards. Works in float64 and by `group_ids`, never by a
stride, so a group that lost a sample shifts no other group's baseline. Means are over samples: an episode of several
sequences weighs as much as one of one sequence. Never sees tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Level = Literal["group", "batch", "none"]


@dataclass(frozen=True)
class BaselineOptions:
    """What is subtracted from a reward and what it is divided by. GRPO is group and group; RLOO leaves one out."""

    mean: Level = "group"
    std: Level = "group"
    leave_one_out: bool = False
    unbiased: bool = False  # Bessel's correction of the deviation
    mask_zero_variance: bool = True
    epsilon: float = 1e-6  # added to the deviation


@dataclass(frozen=True)
class Outcomes:
    """One entry a sequence. `counted` entered the means; `trained` is False where a sequence carries no signal."""

    values: NDArray[np.float64]
    trained: NDArray[np.bool_]
    counted: NDArray[np.bool_]
    zero_variance_groups: int


def normalised_rewards(
    rewards: NDArray[np.float64],
    group_ids: NDArray[np.int64],
    sample_indices: NDArray[np.int64],
    counted: NDArray[np.bool_],
    options: BaselineOptions,
    *,
    raw: NDArray[np.float64] | None = None,
) -> Outcomes:
    """O = (r − μ) / (σ + ε), with μ and σ over the group or the batch (GRPO, arXiv 2402.03300, §4.1.2).

    Every sample has weight 1 in μ and σ, shared evenly by its counted sequences. σ is the deviation around its own
    level's mean, whatever μ is: the population's, or with `unbiased` the sample's. With `leave_one_out`, μ of a
    sequence is the mean of the *other* samples of its group (RLOO, arXiv 2402.14740); a sample alone in its group has
    no baseline and is not trained. A group is flat when its counted `raw` rewards are equal; with `mask_zero_variance`
    it is not trained. Where the rewards themselves are equal, a group mean makes exactly 0 of them.

    Args:
        rewards: shaped, [sequences]
        group_ids: [sequences], any integers
        sample_indices: [sequences], the sample of the group that a sequence belongs to
        counted: [sequences]; False for a sequence that enters no mean (cut at a deadline: its reward means nothing)
        raw: rewards before shaping, [sequences]; `rewards` unless given
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    _, member = np.unique(group_ids, return_inverse=True)
    groups = int(member.max()) + 1 if member.size else 0
    weight = _sample_weights(member, sample_indices, counted)
    size = np.bincount(member, weight, groups)  # samples
    safe_size = np.maximum(size, 1.0)
    group_mean = np.bincount(member, weight * rewards, groups) / safe_size
    centred = np.where(counted, rewards - group_mean[member], 0.0)
    bessel = 1.0 if options.unbiased else 0.0
    freedom = np.maximum(size - bessel, 1.0)
    group_std = np.sqrt(np.bincount(member, weight * centred * centred, groups) / freedom)
    flat = _flat(rewards if raw is None else np.asarray(raw, np.float64), member, counted, groups)

    samples = float(weight.sum())
    batch_mean = float((weight * rewards).sum()) / max(samples, 1.0)
    spread = float((weight * (rewards - batch_mean) ** 2).sum())
    batch_std = float(np.sqrt(spread / max(samples - bessel, 1.0)))

    baseline: NDArray[np.float64]
    if options.leave_one_out:
        others = np.maximum(size[member] - 1.0, 1.0)
        own = _own_mean(member, sample_indices, weight, rewards)
        baseline = (group_mean[member] * size[member] - own) / others
    elif options.mean == "group":
        baseline = group_mean[member]
    else:
        baseline = np.full(rewards.shape, batch_mean if options.mean == "batch" else 0.0)

    scale: NDArray[np.float64]
    if options.std == "group":
        scale = group_std[member] + options.epsilon
    else:
        scale = np.full(rewards.shape, batch_std + options.epsilon if options.std == "batch" else 1.0)

    trained = counted.copy()
    if options.mask_zero_variance:
        trained &= ~flat[member]
    if options.leave_one_out:
        trained &= size[member] > 1.0
    same = _flat(rewards, member, counted, groups)
    exact_zero = same[member] & (options.mean == "group")
    values = np.where(trained & ~exact_zero, (rewards - baseline) / scale, 0.0)
    return Outcomes(values, trained, counted, int(flat.sum()))


def _flat(
    rewards: NDArray[np.float64], member: NDArray[np.int64], counted: NDArray[np.bool_], groups: int
) -> NDArray[np.bool_]:
    """[groups]: all counted rewards are equal, compared as numbers; an empty or single group is flat too."""
    low = np.full(groups, np.inf)
    high = np.full(groups, -np.inf)
    np.minimum.at(low, member[counted], rewards[counted])
    np.maximum.at(high, member[counted], rewards[counted])
    return ~(high > low)


def _sample_of(member: NDArray[np.int64], sample_indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """[sequences]: a dense number for each (group, sample)."""
    pairs = np.stack([member, sample_indices], axis=1)
    dense: NDArray[np.int64] = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
    return dense


def _sample_weights(
    member: NDArray[np.int64], sample_indices: NDArray[np.int64], counted: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """[sequences]: 1 over the number of counted sequences of its sample; 0 where a sequence isn't counted."""
    sample = _sample_of(member, sample_indices)
    sequences = np.bincount(sample, counted.astype(np.float64), int(sample.max(initial=-1)) + 1)
    return np.where(counted, 1.0 / np.maximum(sequences[sample], 1.0), 0.0)


def _own_mean(
    member: NDArray[np.int64],
    sample_indices: NDArray[np.int64],
    weight: NDArray[np.float64],
    rewards: NDArray[np.float64],
) -> NDArray[np.float64]:
    """[sequences]: the mean reward of the sample that a sequence belongs to."""
    sample = _sample_of(member, sample_indices)
    means: NDArray[np.float64] = np.bincount(sample, weight * rewards).astype(np.float64)
    return means[sample]
