"""Micro-batches: packed rows as tensors, with positions and block-causal attention.

A row holds several sequences one after another. Each starts again at position 0 and sees itself only. A sequence's
last token is no input: nothing is predicted from it. Columns of the loss are not packed; `token_index` says where in
the batch's columns each predicted token is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.packing import balanced, pack, row_length


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass needs. Padding forms a segment of its own, so no row of the mask is empty."""

    input_ids: Tensor  # [rows, length]
    position_ids: Tensor  # [rows, length]
    segment_ids: Tensor  # [rows, length], −1 is padding
    select: Tensor  # [predicted]: flat positions whose output predicts a trained token
    targets: Tensor  # [predicted]: that token's id
    token_index: Tensor  # [predicted]: that token's place in the batch's columns

    def attention_mask(self) -> Tensor:
        """[rows, 1, length, length] bool, True where a token may look: same sequence, not later."""
        same = self.segment_ids[:, :, None] == self.segment_ids[:, None, :]
        return same.tril_()[:, None]

    def to(self, device: torch.device) -> MicroBatch:
        """The same on `device`."""
        return self if device.type == "cpu" else MicroBatch(*(getattr(self, name).to(device) for name in _FIELDS))


_FIELDS = ("input_ids", "position_ids", "segment_ids", "select", "targets", "token_index")


def rank_micro_batches(
    batch: TokenBatch,
    chosen: NDArray[np.int64],
    predicted: NDArray[np.bool_],
    *,
    rank: int,
    world_size: int,
    micro_batch_tokens: int,
    pack_length: int | None,
) -> list[MicroBatch]:
    """This rank's share of the sequences `chosen`, as many micro-batches as every other rank has.

    Ranks meet in collectives, so a rank with less to do gets empty micro-batches at the end.

    Args:
        predicted: [tokens], True where the log-probability is wanted
    """
    lengths = np.maximum(batch.lengths[chosen] - 1, 1)
    length = row_length(int(lengths.max(initial=1)), pack_length)
    rows_each = max(1, micro_batch_tokens // length)
    shares = balanced(lengths.tolist(), world_size)
    packed = [pack([int(lengths[place]) for place in share], length) for share in shares]
    count = max(1, *(-(-len(rows) // rows_each) for rows in packed))
    mine = [[int(chosen[shares[rank][place]]) for place in row] for row in packed[rank]]
    each = max(1, -(-len(mine) // count))  # even, instead of full ones and a small rest
    return [_micro_batch(batch, mine[i * each : (i + 1) * each], predicted, length) for i in range(count)]


def _micro_batch(
    batch: TokenBatch, rows: Sequence[Sequence[int]], predicted: NDArray[np.bool_], length: int
) -> MicroBatch:
    shape = (max(1, len(rows)), length)
    input_ids = np.zeros(shape, np.int64)
    position_ids = np.zeros(shape, np.int64)
    segment_ids = np.full(shape, -1, np.int64)
    select: list[NDArray[np.int64]] = []
    token_index: list[NDArray[np.int64]] = []
    for row, members in enumerate(rows):
        start = 0
        for segment, sequence in enumerate(members):
            first, end = int(batch.offsets[sequence]), int(batch.offsets[sequence + 1])
            inputs = max(end - first - 1, 0)
            input_ids[row, start : start + inputs] = batch.token_ids[first : end - 1]
            position_ids[row, start : start + inputs] = np.arange(inputs)
            segment_ids[row, start : start + inputs] = segment
            wanted = np.flatnonzero(predicted[first + 1 : end])
            select.append(wanted + (row * length + start))
            token_index.append(wanted + (first + 1))
            start += inputs
    places = np.concatenate(token_index) if token_index else np.zeros(0, np.int64)
    return MicroBatch(
        input_ids=torch.from_numpy(input_ids),
        position_ids=torch.from_numpy(position_ids),
        segment_ids=torch.from_numpy(segment_ids),
        select=torch.from_numpy(np.concatenate(select) if select else np.zeros(0, np.int64)),
        targets=torch.from_numpy(batch.token_ids[places]),
        token_index=torch.from_numpy(places),
    )
