"""The model of a supervised training: its outputs for a batch, and one update by the weights of these.

The output at a token's place is its log-probability, of a value model the value of what stands before it, or of a
student how far its distribution is from the teacher's.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import MicroBatch, rank_micro_batches
from areal_trainer.engine.engine import PolicyEngine, ValueEngine


@dataclass(frozen=True)
class Update:
    """What an update did."""

    loss: float  # Σ weights·output over all ranks, before the update
    grad_norm: float  # before clipping; not finite when nothing was changed

    @property
    def applied(self) -> bool:
        """Whether the weights changed."""
        return math.isfinite(self.grad_norm)


class Learner:
    """Every method is a collective: all ranks call it with the same batch."""

    def __init__(
        self, engine: PolicyEngine | ValueEngine, forward: Callable[[MicroBatch], Tensor], micro_batch_tokens: int,
        pack_length: int | None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self._forward = forward  # the outputs at a micro-batch's predicted tokens, with gradient
        self._micro_batch_tokens = micro_batch_tokens
        self._pack_length = pack_length

    def outputs(self, batch: TokenBatch, chosen: NDArray[np.bool_] | None = None) -> NDArray[np.float32]:
        """At every trained token under the present weights, of the `chosen` sequences, [tokens]; 0 elsewhere."""
        predicted = batch.trainable() if chosen is None else batch.trainable() & chosen[batch.sequence_of]
        found = self.engine.infer(self._micros(batch, predicted), batch.tokens, self._forward)
        values: NDArray[np.float32] = found.numpy()
        return values

    def update(self, batch: TokenBatch, weights: NDArray[np.float64], learning_rate: float) -> Update:
        """One step down the gradient of Σ weights·output."""
        device = self.engine.ranks.device
        column = torch.from_numpy(weights.astype(np.float32)).to(device)

        def loss(micro: MicroBatch) -> Tensor:
            return (self._forward(micro) * column[micro.token_index.to(device)]).sum()

        total = self.engine.backward(self._micros(batch, batch.trainable() & (weights != 0)), loss)
        norm = self.engine.optimizer.step(learning_rate, total)
        self.engine.ranks.add(total)
        return Update(float(total), norm)

    def _micros(self, batch: TokenBatch, predicted: NDArray[np.bool_]) -> list[MicroBatch]:
        chosen = np.unique(batch.sequence_of[predicted])
        return rank_micro_batches(
            batch,
            chosen,
            predicted,
            rank=self.engine.ranks.data_rank,
            world_size=self.engine.ranks.data_size,
            micro_batch_tokens=self._micro_batch_tokens,
            pack_length=self._pack_length,
        )
