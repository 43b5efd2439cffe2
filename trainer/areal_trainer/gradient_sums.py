"""Gradient accumulation over the parts of a batch: what was computed of groups before the others were sampled.

Owns the sums that make one update of several parts, and when they may: only if the whole batch has just these groups,
with the advantages that they were given alone. The gradient itself is the engine's. Every rank holds the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from areal.errors import BugError
from numpy.typing import NDArray

from areal_trainer.algorithms.advantages import Advantages
from areal_trainer.algorithms.statistics import LossStatistics
from areal_trainer.data.batch import TokenBatch
from areal_trainer.figures import FigureMeans
from areal_trainer.recording import TrainedTokensBuffer

_EQUAL = 1e-9  # of two advantages that are made alike


@dataclass(frozen=True)
class GradientPart:
    """Groups whose gradient was added, in the order of their batch."""

    tokens: TokenBatch
    advantages: Advantages
    kept: TrainedTokensBuffer | None

    @property
    def groups(self) -> NDArray[np.int64]:
        return np.unique(self.tokens.group_ids)

    def place(self, whole: TokenBatch) -> NDArray[np.int64]:
        """Where the part's tokens are in the whole batch, [tokens of the part]."""
        return np.flatnonzero(np.isin(whole.group_ids, self.groups)[whole.sequence_of])


class GradientSums:
    """The parts of the batch of one step, so far."""

    def __init__(self, step: int, device: torch.device) -> None:
        self.step = step
        self.loss = torch.zeros((), dtype=torch.float32, device=device)  # of this rank
        self.statistics = LossStatistics(device)
        self.figures = FigureMeans()
        self.parts: list[GradientPart] = []

    @property
    def groups(self) -> list[int]:
        """Groups of all parts."""
        return sorted(int(group) for part in self.parts for group in part.groups)

    def fit(self, step: int, whole: TokenBatch, advantages: Advantages, begun: Sequence[int]) -> bool:
        """Whether these are the groups `begun` of the whole batch of `step`.

        Raises BugError where a group has another advantage there: then no part's gradient is its own.
        """
        if step != self.step or self.groups != sorted(begun):
            return False
        for part in self.parts:
            alone, beside = part.advantages.tokens, advantages.tokens[part.place(whole)]
            if alone.shape != beside.shape or not np.allclose(alone, beside, rtol=_EQUAL, atol=_EQUAL):
                raise BugError("advantages of a group depend on others of its batch, and it was trained before them")
        return True

    def keep(self, kept: TrainedTokensBuffer, whole: TokenBatch) -> None:
        """Put what the parts kept of each token into the batch's."""
        for part in self.parts:
            if part.kept is not None:
                kept.put(part.place(whole), part.kept)
