"""Layout of packed rows for variable-length attention: which keys the queries of each segment see, without a mask.

A segment is a run of tokens of one sequence, or the prompt that several share. Its keys are the shared prompt and
itself; causality is aligned at the end (bottom-right), which means just that: the prompt, then me. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from areal_trainer.data.micro_batches import MicroBatch


@dataclass(frozen=True)
class SegmentLayout:
    """Segments of a micro-batch's flat tokens, rows · length of them, one after another."""

    query_starts: Tensor  # [segments + 1] int32: where each segment's queries begin; the last is the number of tokens
    key_starts: Tensor  # [segments + 1] int32: where its keys begin
    key_index: Tensor | None  # [keys]: the flat token that each key is of; None where keys are the queries' tokens
    longest_query: int
    longest_key: int


def layout_of(micro: MicroBatch, device: torch.device) -> SegmentLayout:
    """The layout with the same meaning as `micro.attention_mask()`."""
    bundle, branch = micro.bundle_ids.numpy(), micro.branch_ids.numpy()
    rows, length = bundle.shape
    row = np.repeat(np.arange(rows), length)
    labels = np.stack([row, bundle.ravel(), branch.ravel()])
    begins = np.flatnonzero(np.concatenate([[True], (labels[:, 1:] != labels[:, :-1]).any(axis=0)]))
    ends = np.append(begins[1:], rows * length)
    prefixes = {(row[b], labels[1, b]): (b, e) for b, e in zip(begins, ends, strict=True) if labels[2, b] == 0}
    keys: list[np.ndarray] = []
    shared = False
    for begin, end in zip(begins, ends, strict=True):
        prefix = prefixes.get((row[begin], labels[1, begin])) if labels[2, begin] else None
        own = np.arange(begin, end)
        keys.append(own if prefix is None else np.concatenate([np.arange(*prefix), own]))
        shared = shared or prefix is not None
    sizes = np.array([len(one) for one in keys])
    return SegmentLayout(
        query_starts=torch.from_numpy(np.append(begins, rows * length).astype(np.int32)).to(device),
        key_starts=torch.from_numpy(np.append(0, sizes.cumsum()).astype(np.int32)).to(device),
        key_index=torch.from_numpy(np.concatenate(keys)).to(device) if shared else None,
        longest_query=int((ends - begins).max()),
        longest_key=int(sizes.max()),
    )
