"""Token buffers: what training computed of each token of a step, gathered over ranks for the recording."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.algorithms.policy import PolicyTerms

TRAINED, CLIPPED, REJECTED = 1, 2, 4


@dataclass(frozen=True)
class TrainedTokens:
    """Of one step, in the order of its batch; 0 where no gradient could reach."""

    logprobs: NDArray[np.float32]  # [T], of the policy at the start of the step, or what stands for it
    entropy: NDArray[np.float32]  # [T]
    flags: NDArray[np.uint8]  # [T]: a sum of TRAINED, CLIPPED, REJECTED


class TrainedTokensBuffer:
    """One row a quantity, on the device; nothing is copied to the host before `reduced`."""

    def __init__(self, tokens: int, device: torch.device) -> None:
        self._rows = torch.zeros((3, tokens), dtype=torch.float32, device=device)

    @torch.no_grad()
    def add(self, place: Tensor, logprobs: Tensor, entropy: Tensor, terms: PolicyTerms) -> None:
        """One micro-batch's tokens; `place` is where they are in the batch, [predicted]."""
        flags = TRAINED + CLIPPED * terms.clipped.float() + REJECTED * terms.rejected.float()
        self._rows[:, place] = torch.stack([logprobs.float(), entropy.float(), flags])

    def put(self, place: NDArray[np.int64], part: "TrainedTokensBuffer") -> None:
        """What was computed of a part of the batch, whose tokens are at `place`."""
        self._rows[:, torch.from_numpy(place)] = part._rows

    def reduced(self, add: Callable[[Tensor], None]) -> TrainedTokens:
        """All ranks' tokens: each is predicted on exactly one data rank. A collective."""
        add(self._rows)
        logprobs, entropy, flags = self._rows.cpu().numpy()
        return TrainedTokens(logprobs, entropy, flags.astype(np.uint8))
