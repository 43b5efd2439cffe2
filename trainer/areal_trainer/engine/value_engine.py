"""The engine of a value model, sharded as the policy is, with its own optimizer: a critic's, or a reward model's.

Starts as the job's start model with a head of zeros. Shares nothing with a policy: neither weights nor gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from areal_trainer.data.micro_batches import MicroBatch
from areal_trainer.engine.engine import ModelOptions, ShardedModel, attention_of, served_dtype
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.model import ValueModel, empty_model
from areal_trainer.engine.optimizer import local


class ValueEngine(ShardedModel[ValueModel]):
    """Values of states. Every method is a collective."""

    def __init__(self, model_path: Path, options: ModelOptions, ranks: RankGroup) -> None:
        super().__init__(ValueModel(empty_model(model_path, attention_of(options, ranks))), model_path, options, ranks)
        local(self._model.head.weight.detach()).zero_()  # no opinion: the first advantages are the rewards

    def forward(self, micro: MicroBatch) -> Tensor:
        """The value of the state before each of the micro-batch's predicted tokens, [predicted]."""
        rows, _, whole = self._rows(micro)
        return whole(self._model(rows))

    def values(self, micros: Sequence[MicroBatch], tokens: int) -> Tensor:
        """Values before all ranks' predicted tokens, [tokens] on the CPU; 0 where none was predicted."""
        return self.infer(micros, tokens, self.forward)

    def accumulate(self, micros: Sequence[MicroBatch], loss: Callable[[Tensor, MicroBatch], Tensor]) -> Tensor:
        """Forward and backward over all micro-batches; gradients add up. Returns this rank's loss."""
        return self.backward(micros, lambda micro: loss(self.forward(micro), micro))

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors under the names of Hugging Face's sequence classification, the head in float32.

        A collective: all ranks must iterate to the end. A tensor may share memory with the engine.
        """
        for name, parameter in self._parameters.items():
            if name == "head.weight":
                yield "score.weight", self._whole(parameter, torch.float32)
            elif not name.endswith("lm_head.weight"):
                yield name.removeprefix("lm."), self._whole(parameter, served_dtype(self.options))
