"""Sequences of a group share their prompt, so it is computed once.

A bundle is laid out as the common prefix and then each sequence's rest, a branch. A branch sees the prefix and itself,
at the positions it would have alone: every log-probability and gradient is what separate sequences give, for fewer
tokens. Sequences without a common prefix, or too long for a row together, become bundles of one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from areal_trainer.data.batch import TokenBatch

_WORTH_SHARING = 2  # tokens; below, nothing is saved


@dataclass(frozen=True)
class Bundle:
    """Sequences of one group. The first `prefix` tokens of all are the same."""

    sequences: tuple[int, ...]
    prefix: int
    length: int  # inputs in all: the prefix once, and of each sequence the rest without its last token


def bundles(batch: TokenBatch, chosen: NDArray[np.int64], capacity: int) -> list[Bundle]:
    """Bundles of the `chosen` sequences, none longer than `capacity` unless a single sequence is."""
    groups: dict[int, list[int]] = {}
    for sequence in chosen.tolist():
        groups.setdefault(int(batch.group_ids[sequence]), []).append(sequence)
    found: list[Bundle] = []
    for members in groups.values():
        prefix = _common_prefix(batch, members) if len(members) > 1 else 0
        found += _split(batch, members, prefix if prefix >= _WORTH_SHARING else 0, capacity)
    return found


def _split(batch: TokenBatch, members: list[int], prefix: int, capacity: int) -> list[Bundle]:
    found: list[Bundle] = []
    current: list[int] = []
    length = prefix
    for sequence in members:
        branch = _inputs(batch, sequence) - prefix
        if current and (prefix == 0 or length + branch > capacity):
            found.append(Bundle(tuple(current), prefix, length))
            current, length = [], prefix
        current.append(sequence)
        length += branch
    return [*found, Bundle(tuple(current), prefix, length)]


def _common_prefix(batch: TokenBatch, members: list[int]) -> int:
    first = batch.token_ids[batch.offsets[members[0]] : batch.offsets[members[0] + 1]]
    common = len(first) - 1
    for sequence in members[1:]:
        start = int(batch.offsets[sequence])
        common = min(common, _inputs(batch, sequence))
        differs = np.flatnonzero(first[:common] != batch.token_ids[start : start + common])
        if differs.size:
            common = int(differs[0])
    return max(common, 0)


def _inputs(batch: TokenBatch, sequence: int) -> int:
    """Tokens that something is predicted from: all but the last."""
    return max(int(batch.offsets[sequence + 1] - batch.offsets[sequence]) - 1, 0)
