"""Sequence packing: assigns sequences to ranks, mini-batches and rows.

Pure, and the same on every rank.

Promises: every sequence lands in exactly one row; a row's sequences never exceed its length; the split depends on
nothing but lengths, counts and the seed, so a replayed step is cut the same way.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROW_TOKENS = 128  # attention costs tokens × row length: short rows are fastest on a CPU, shorter ones hold no group
_ALIGN = 8  # row lengths are rounded up to this, which vectorised kernels like
_ALIGN_LONG = 256  # and long ones to this: few different lengths, so that an allocator finds its blocks again


def row_length(longest: int, pack_length: int | None) -> int:
    """Tokens a row: what the job says, or as short as is useful; never shorter than the longest sequence."""
    wanted = max(longest, pack_length or ROW_TOKENS)
    return -(-wanted // _ALIGN) * _ALIGN


def trimmed(filled: int, length: int) -> int:
    """Length of a micro-batch's only row, of which `filled` tokens are used: without the padding to `length`."""
    multiple = _ALIGN if length < 16 * _ALIGN_LONG else _ALIGN_LONG
    return min(length, max(1, -(-filled // multiple)) * multiple)


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows of positions in `lengths`: best fit, longest first. Raises ValueError for a length over `capacity`."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for index in order:
        length = lengths[index]
        if length > capacity:
            raise ValueError(f"a sequence of {length} tokens does not fit a row of {capacity}")
        place = bisect_left(free, (length, -1))
        if place == len(free):
            rows.append([index])
            insort(free, (capacity - length, len(rows) - 1))
        else:
            left, row = free.pop(place)
            rows[row].append(index)
            insort(free, (left - length, row))
    return rows


def balanced(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Split into `parts` of nearly equal tokens: longest first, each to the part with the fewest."""
    loads = [0] * parts
    split: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        lightest = loads.index(min(loads))
        loads[lightest] += lengths[index]
        split[lightest].append(index)
    return [sorted(part) for part in split]


def mini_batches(group_ids: NDArray[np.int64], count: int, seed: tuple[int, int]) -> list[NDArray[np.int64]]:
    """Positions of the sequences of each PPO mini-batch: whole groups, dealt by a permutation of `seed` (job, step).

    Fewer groups than mini-batches give fewer mini-batches: an empty one would be an update without data.
    """
    groups = np.unique(group_ids)
    if count > 1:
        groups = np.random.default_rng(seed).permutation(groups)
    parts = [part for part in np.array_split(groups, count) if len(part)]
    return [np.flatnonzero(np.isin(group_ids, part)) for part in parts]
