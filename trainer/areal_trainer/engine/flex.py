"""Attention over packed rows by PyTorch's FlexAttention: a function says what is seen, blocks that see nothing are
skipped.

A prompt that a group shares is computed once and its keys are not copied for each answer, as segments need. Blocks are
counted from the layout, on the host; no tensor of length × length is made on CUDA. Without CUDA PyTorch has no gradient
of it, and computes all scores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from areal_trainer.data.micro_batches import MicroBatch
from areal_trainer.engine.layout import layout_of

BLOCK = 128  # queries and keys of a block; the kernels' own size


def block_mask_of(micro: MicroBatch, device: torch.device) -> BlockMask:
    """The block mask with the same meaning as `micro.attention_mask()`."""
    bundle, branch = micro.bundle_ids.to(device), micro.branch_ids.to(device)
    length = bundle.shape[1]

    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = bundle[row, query] == bundle[row, key]
        mine = (branch[row, key] == 0) | (branch[row, key] == branch[row, query])
        return (query >= key) & same & mine

    some, whole = occupied_blocks(micro)
    parts = (torch.from_numpy(array).to(device) for array in (*_listed(some & ~whole), *_listed(whole)))
    made: Any = BlockMask.from_kv_blocks
    block_mask: BlockMask = made(*parts, BLOCK_SIZE=BLOCK, mask_mod=seen, seq_lengths=(length, length))
    return block_mask


def occupied_blocks(micro: MicroBatch) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """In which blocks some query sees some key, and in which all see all; [rows, blocks, blocks] each.

    Blocks on the diagonal are never said to be whole.
    """
    rows, length = micro.input_ids.shape
    blocks = -(-length // BLOCK)
    layout = layout_of(micro, torch.device("cpu"))
    queries, keys = layout.query_starts.tolist(), layout.key_starts.tolist()
    pairs = np.zeros((rows, blocks, blocks), np.int64)
    for segment, start in enumerate(queries[:-1]):
        row, begin = divmod(start, length)
        size = queries[segment + 1] - start
        own = _in_blocks(begin, begin + size, blocks)
        pairs[row] += np.tril(np.outer(own, own))
        shared = keys[segment + 1] - keys[segment] - size
        if shared and layout.key_index is not None:
            first = int(layout.key_index[keys[segment]]) % length
            pairs[row] += np.outer(own, _in_blocks(first, first + shared, blocks))
    whole = (pairs == BLOCK * BLOCK) & ~np.eye(blocks, dtype=np.bool_)
    return pairs > 0, whole


def attend(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask, scale: float | None) -> Tensor:
    """[rows, heads, length, width] in, [rows, length, heads, width] out. Compiled once on CUDA, for all lengths."""
    computed: Any = _compiled() if query.is_cuda else flex_attention
    out: Tensor = computed(query, key, value, block_mask=block_mask, scale=scale, enable_gqa=True)
    return out.transpose(1, 2).contiguous()


@cache
def _compiled() -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=True)
    return compiled


def _in_blocks(begin: int, end: int, blocks: int) -> NDArray[np.int64]:
    """How many of the places from `begin` to `end` are in each block."""
    starts = np.arange(blocks) * BLOCK
    found: NDArray[np.int64] = np.clip(np.minimum(end, starts + BLOCK) - np.maximum(begin, starts), 0, None)
    return found


def _listed(wanted: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """How many blocks each row of blocks wants, and their numbers, those first; as one head, for all heads."""
    order = np.argsort(~wanted, axis=-1, kind="stable").astype(np.int32)
    return wanted.sum(-1, dtype=np.int32)[:, None], order[:, None]
