"""The model of a supervised training: log-probabilities of a batch, and one update by weights of its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import MicroBatch, rank_micro_batches
from areal_trainer.engine.engine import Engine


@dataclass(frozen=True)
class Update:
    """What an update did."""

    loss: float  # Σ weights·ℓ over all ranks, before the update
    grad_norm: float  # before clipping; not finite when nothing was changed

    @property
    def applied(self) -> bool:
        """Whether the weights changed."""
        return math.isfinite(self.grad_norm)


class Learner:
    """Every method is a collective: all ranks call it with the same batch."""

    def __init__(self, engine: Engine, *, micro_batch_tokens: int, pack_length: int | None) -> None:
        self.engine = engine
        self._micro_batch_tokens = micro_batch_tokens
        self._pack_length = pack_length

    def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Of every trained token under the present weights, [tokens]; 0 elsewhere."""
        values: NDArray[np.float32] = self.engine.logprobs(self._micros(batch, batch.trainable()), batch.tokens).numpy()
        return values

    def update(self, batch: TokenBatch, weights: NDArray[np.float64], learning_rate: float) -> Update:
        """One step down the gradient of Σ weights·ℓ."""
        device = self.engine.ranks.device
        column = torch.from_numpy(weights.astype(np.float32)).to(device)

        def loss(logprobs: Tensor, entropy: Tensor, micro: MicroBatch) -> Tensor:
            return (logprobs * column[micro.token_index.to(device)]).sum()

        total = self.engine.accumulate(self._micros(batch, batch.trainable() & (weights != 0)), loss)
        norm = self.engine.optimizer.step(learning_rate, total)
        self.engine.ranks.add(total)
        return Update(float(total), norm)

    def _micros(self, batch: TokenBatch, predicted: NDArray[np.bool_]) -> list[MicroBatch]:
        chosen = np.unique(batch.sequence_of[predicted])
        return rank_micro_batches(
            batch,
            chosen,
            predicted,
            rank=self.engine.ranks.rank,
            world_size=self.engine.ranks.world_size,
            micro_batch_tokens=self._micro_batch_tokens,
            pack_length=self._pack_length,
        )
