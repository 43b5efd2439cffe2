"""Reward normalisation by baseline and scale: group or batch mean, leave-one-out, group or batch deviation.

Owns what GRPO, Dr.GRPO, RLOO, LitePPO, REINFORCE++ and MaxRL do with rewards. Works in float64 and by `group_ids`,
never by a stride, so a group that lost a sample shifts no other group's baseline. Means are over samples: an episode of
several sequences weighs as much as one of one sequence. Never sees tokens.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from areal.errors import DataError
from numpy.typing import NDArray

Level = Literal["group", "batch", "none"]
Scale = Literal["group", "batch", "none", "mean"]

_LEAST = np.finfo(np.float64).tiny  # in the place of 0 below a fraction


@dataclass(frozen=True)
class BaselineOptions:
    """Baseline and scale of rewards. GRPO is group and group; RLOO leaves one out."""

    mean: Level = "group"
    std: Scale = "group"  # mean: the group's mean reward in the place of a deviation (MaxRL)
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

    Every sample has weight ω = 1 in μ and σ, shared evenly by its counted sequences. σ² = Σω(r − μ)²/Σω is around the μ
    that is subtracted, so |O| ≤ √n however alike rewards are (n samples of σ's level, one sequence each); with
    `unbiased` Σω − 1 divides. With `leave_one_out`, μ of a sequence is the mean of the *other* samples of its group
    (RLOO, arXiv 2402.14740), which makes O n/(n − 1) times as large, σ staying around the group's mean; a sample alone
    in its group has no baseline and is not trained. With `std` mean, O = (r − μ)/μ, and 0 where μ is 0 (MaxRL, arXiv
    2602.02710): |O| ≤ n − 1. A group is flat when its counted `raw` rewards are equal; with `mask_zero_variance` it is
    not trained. Where the rewards themselves are equal, their mean makes exactly 0 of them.

    Args:
        rewards: shaped, [sequences]
        group_ids: [sequences], any integers
        sample_indices: [sequences], the sample of the group that a sequence belongs to
        counted: [sequences]; False for a sequence that enters no mean (cut at a deadline: its reward means nothing)
        raw: rewards before shaping, [sequences]; `rewards` unless given

    Raises DataError for a negative reward where rewards are divided by their mean.
    """
    rewards = np.where(counted, np.asarray(rewards, np.float64), 0.0)
    _, member = np.unique(group_ids, return_inverse=True)
    groups = int(member.max()) + 1 if member.size else 0
    whole = np.zeros_like(member)
    pairs = np.stack([member, sample_indices], axis=1)
    sample = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)  # a dense number for each (group, sample)
    sequences = np.bincount(sample, counted.astype(np.float64), int(sample.max(initial=-1)) + 1)
    weight = np.where(counted, 1.0 / np.maximum(sequences[sample], 1.0), 0.0)  # counted ones of a sample make 1
    size = np.bincount(member, weight, groups)  # samples
    flat = _flat(rewards if raw is None else np.asarray(raw, np.float64), member, counted, groups)

    group_mean = _means(rewards, member, weight)
    around: NDArray[np.float64] = np.zeros(rewards.shape)
    if options.mean != "none":
        around = group_mean if options.mean == "group" else _means(rewards, whole, weight)
    centred = rewards - around
    if options.leave_one_out:
        own = _means(rewards, sample, weight) - group_mean
        centred = centred + own / np.maximum(size[member] - 1.0, 1.0)

    if options.std == "mean":
        _refuse_negative(rewards, group_ids, sample_indices)
        values = np.where(group_mean > 0.0, centred / np.where(group_mean > 0.0, group_mean, 1.0), 0.0)
    elif options.std == "none":
        values = centred
    else:
        level = member if options.std == "group" else whole
        values = centred / (_deviations(rewards - around, level, weight, unbiased=options.unbiased) + options.epsilon)

    trained = counted.copy()
    if options.mask_zero_variance:
        trained &= ~flat[member]
    if options.leave_one_out:
        trained &= size[member] > 1.0
    return Outcomes(np.where(trained, values, 0.0), trained, counted, int(flat.sum()))


def _means(values: NDArray[np.float64], level: NDArray[np.int64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each sequence, the weighted mean of its level. Of equal values it is that value to the last bit."""
    low = np.full(int(level.max(initial=-1)) + 1, np.inf)
    np.minimum.at(low, level[weight > 0], values[weight > 0])
    low = np.where(np.isfinite(low), low, 0.0)
    above = np.bincount(level, weight * (values - low[level]), len(low))
    means: NDArray[np.float64] = (low + above / np.maximum(np.bincount(level, weight, len(low)), _LEAST))[level]
    return means


def _deviations(
    centred: NDArray[np.float64], level: NDArray[np.int64], weight: NDArray[np.float64], *, unbiased: bool
) -> NDArray[np.float64]:
    """For each sequence, √(Σω·centred²/Σω) of its level, with `unbiased` over Σω − 1. Squares can't overflow."""
    high = np.zeros(int(level.max(initial=-1)) + 1)
    np.maximum.at(high, level, np.abs(centred))
    share = centred / np.maximum(high, _LEAST)[level]
    total = np.bincount(level, weight, len(high))
    freedom = np.maximum(total - 1.0, 1.0) if unbiased else np.maximum(total, _LEAST)
    by_level = high * np.sqrt(np.bincount(level, weight * share * share, len(high)) / freedom)
    deviations: NDArray[np.float64] = by_level[level]
    return deviations


def _refuse_negative(
    rewards: NDArray[np.float64], group_ids: NDArray[np.int64], sample_indices: NDArray[np.int64]
) -> None:
    below = np.flatnonzero(rewards < 0.0)
    if below.size:
        first = int(below[0])
        raise DataError(
            f"sample {sample_indices[first]} of group {group_ids[first]} has the shaped reward {rewards[first]:g}, and "
            "advantages divided by a group's mean reward need rewards ≥ 0",
            fix="return rewards from 0 on, or set algorithm.advanced.advantageStd: group",
        )


def _flat(
    rewards: NDArray[np.float64], member: NDArray[np.int64], counted: NDArray[np.bool_], groups: int
) -> NDArray[np.bool_]:
    """[groups]: all counted rewards are equal, compared as numbers; an empty or single group is flat too."""
    low = np.full(groups, np.inf)
    high = np.full(groups, -np.inf)
    np.minimum.at(low, member[counted], rewards[counted])
    np.maximum.at(high, member[counted], rewards[counted])
    return ~(high > low)
