"""The question to a frozen model, and its answer: how likely it finds the trainable tokens of a batch.

Every rank of the policy asks, in the same order. Where the model is doesn't show: it may compute on these ranks,
or behind an address while these go on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from areal.dataflow.running import StageInputs
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.critic import Cut
from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import MicroBatch
from areal_trainer.spans import PhaseTimer

Answer = Callable[[], Tensor]
"""Log-probabilities of all ranks' predicted tokens, [tokens] float32 on the CPU; 0 where none was. A collective."""

Logprobs = Callable[[Sequence[MicroBatch], int], Tensor]
"""As `Engine.logprobs`."""


@dataclass(frozen=True)
class FrozenQuestion:
    """The `chosen` sequences of a batch, and how these ranks cut them into micro-batches of so many tokens."""

    tokens: TokenBatch
    chosen: NDArray[np.bool_]  # [S]
    micro_batch_tokens: int
    cut: Cut

    def micros(self) -> list[MicroBatch]:
        """This rank's share."""
        return self.cut(self.tokens, np.flatnonzero(self.chosen), self.tokens.trainable())


class FrozenModel(Protocol):
    """What is asked."""

    def ask(self, question: FrozenQuestion) -> Answer:
        """Begin to find the answer. A collective; the answer may be dropped."""


class FrozenStage:
    """A stage of the step that asks a frozen model, begun before its turn: an answer from elsewhere takes its time."""

    def __init__(
        self, model: FrozenModel, column: str, cut: Callable[[TokenBatch, NDArray[np.bool_]], FrozenQuestion],
        timer: PhaseTimer,
    ) -> None:  # fmt: skip
        self._model, self._column, self._cut, self._timer = model, column, cut, timer

    def begin(self, inputs: StageInputs) -> Callable[[], dict[str, NDArray[np.float32]]]:
        """Ask; what is returned waits for the column."""
        answer = self._model.ask(self._cut(inputs.tokens, chosen_of(inputs)))

        def found() -> dict[str, NDArray[np.float32]]:
            with self._timer.phase("prox"):
                return {self._column: answer().numpy()}

        return found

    def __call__(self, inputs: StageInputs) -> dict[str, NDArray[np.float32]]:
        return self.begin(inputs)()


def chosen_of(inputs: StageInputs) -> NDArray[np.bool_]:
    """[S]: the sequences that a pass is for: those that are trained, or may be where that isn't known yet."""
    chosen: NDArray[np.bool_] = inputs["trained"] if "trained" in inputs else inputs.tokens.has_signal()
    return chosen


class OnSameRanks:
    """A model that computes where it is asked, once the answer is wanted."""

    def __init__(self, logprobs: Logprobs) -> None:
        self._logprobs = logprobs

    def ask(self, question: FrozenQuestion) -> Answer:
        return lambda: self._logprobs(question.micros(), question.tokens.tokens)
