"""The critic of PPO: values before a step, its clipped loss, its updates.

Every method is a collective: all ranks call it with the same batch. Knows nothing of rewards and advantages: it is
given returns. How a batch is cut into micro-batches is the actor's, so both see the same rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.algorithms.advantages import Advantages
from areal_trainer.algorithms.policy import ValueOptions, value_loss
from areal_trainer.data.batch import NO_VERSION, TokenBatch
from areal_trainer.data.micro_batches import MicroBatch
from areal_trainer.engine.engine import ValueEngine
from areal_trainer.engine.optimizer import RateSchedule

Cut = Callable[[TokenBatch, NDArray[np.int64], NDArray[np.bool_]], list[MicroBatch]]
"""(batch, chosen sequences, predicted tokens) → this rank's micro-batches."""


@dataclass(frozen=True)
class CriticOptions:
    """How a critic learns. In the first `warmup_steps` the policy stays as it is."""

    schedule: RateSchedule
    loss: ValueOptions = field(default_factory=ValueOptions)
    warmup_steps: int = 0
    bootstrap: bool = True


@dataclass(frozen=True)
class CriticFigures:
    """What a critic's update did, and how good its values were before it."""

    loss: float  # mean over the trained tokens, of the values as each mini-batch found them
    clip_ratio: float  # share of tokens whose clipped branch decided
    value_mean: float
    return_mean: float
    explained_variance: float | None  # 1 − Var(G − V)/Var(G); None where all returns are the same
    grad_norm: float  # mean over mini-batches, before clipping; NaN when one was not finite
    learning_rate: float
    tried: int
    applied: int


class ValueCritic:
    """The value model with its optimizer."""

    def __init__(self, engine: ValueEngine, options: CriticOptions) -> None:
        self.engine = engine
        self.options = options

    def values(
        self, tokens: TokenBatch, chosen: NDArray[np.bool_], cut: Cut
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """V before each trainable token of the `chosen` sequences, [T], and V after their last one, [S].

        The latter is 0 unless the answer was cut by its length: an answer that ended has nothing to come.
        """
        goes_on = tokens.truncated & chosen & (tokens.lengths < self.engine.max_positions)
        if not self.options.bootstrap:
            goes_on = np.zeros_like(goes_on)
        longer, added = with_next_token(tokens, goes_on)
        predicted = longer.trainable()
        predicted[added] = True
        micros = cut(longer, np.flatnonzero(chosen), predicted)
        found = self.engine.values(micros, longer.tokens).numpy().astype(np.float64)
        after = np.zeros(tokens.sequences)
        after[goes_on] = found[added]
        return np.delete(found, added), after

    def update(
        self, tokens: TokenBatch, advantages: Advantages, parts: Sequence[NDArray[np.int64]], step: int, max_steps: int,
        cut: Cut,
    ) -> CriticFigures:  # fmt: skip
        """One update for each of `parts`, sequences of the batch, toward the returns."""
        old, returns = advantages.columns.values, advantages.returns
        if old is None or returns is None:
            raise ValueError("a critic learns from returns, and these advantages have none")
        device = self.engine.ranks.device
        before, wanted = (torch.from_numpy(column.astype(np.float32)).to(device) for column in (old, returns))
        predicted = tokens.trainable() & advantages.trained[tokens.sequence_of]
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        rate = self.options.schedule.at(step, max_steps)
        norms: list[float] = []
        for part in parts:
            mask = np.zeros(tokens.sequences, np.bool_)
            mask[part] = True
            count = max(int((predicted & mask[tokens.sequence_of]).sum()), 1)

            def loss(values: Tensor, micro: MicroBatch, count: int = count) -> Tensor:
                place = micro.token_index.to(device)
                terms, clipped = value_loss(values, before[place], wanted[place], self.options.loss)
                sums.add_(torch.stack([terms.detach().sum(), clipped.sum()]).double())
                return terms.sum() / count

            total = self.engine.accumulate(cut(tokens, part, predicted), loss)
            norms.append(self.engine.optimizer.step(rate, total))
        self.engine.ranks.add(sums)
        seen = max(int(predicted.sum()), 1)
        values, targets = old[predicted], returns[predicted]
        return CriticFigures(
            loss=float(sums[0]) / seen,
            clip_ratio=float(sums[1]) / seen,
            value_mean=float(values.mean()) if values.size else 0.0,
            return_mean=float(targets.mean()) if targets.size else 0.0,
            explained_variance=explained_variance(values, targets),
            grad_norm=float(np.mean(norms)) if norms else 0.0,
            learning_rate=rate,
            tried=len(norms),
            applied=sum(math.isfinite(norm) for norm in norms),
        )


def explained_variance(values: NDArray[np.float64], returns: NDArray[np.float64]) -> float | None:
    """1 − Var(G − V)/Var(G): 1 is a perfect critic, 0 a constant; None where the returns don't vary."""
    spread = float(np.var(returns)) if returns.size else 0.0
    return None if spread == 0.0 else 1.0 - float(np.var(returns - values)) / spread


def with_next_token(tokens: TokenBatch, chosen: NDArray[np.bool_]) -> tuple[TokenBatch, NDArray[np.int64]]:
    """The batch with one token more at the end of each `chosen` sequence, and where those are.

    A sequence's last token is no input, so the value of the state after it needs a token that follows.
    """
    ends = tokens.offsets[1:][chosen]
    offsets = tokens.offsets.copy()
    offsets[1:] += np.cumsum(chosen)
    longer = replace(
        tokens,
        token_ids=np.insert(tokens.token_ids, ends, 0),
        behaviour_logprobs=np.insert(tokens.behaviour_logprobs, ends, 0.0),
        loss_mask=np.insert(tokens.loss_mask, ends, False),
        versions=np.insert(tokens.versions, ends, NO_VERSION),
        offsets=offsets,
    )
    return longer, offsets[1:][chosen] - 1
