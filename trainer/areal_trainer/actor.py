"""The policy that is trained: log-probabilities, advantages, updates, checkpoints.

One of the two objects a training loop works with (the other is `Rollout`). Every method is a collective: all ranks call
it with the same batch. Knows nothing of groups' origin, ledgers or controllers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from areal.errors import DataError
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.algorithms.advantages import AdvantageOptions, Advantages, group_advantages
from areal_trainer.algorithms.ppo import PPOOptions, policy_loss
from areal_trainer.algorithms.statistics import LossFigures, LossStatistics
from areal_trainer.checkpoint.checkpointer import Checkpointer, Position, Saved
from areal_trainer.data.batch import AdvantageBatch, TokenBatch
from areal_trainer.data.micro_batches import MicroBatch, rank_micro_batches
from areal_trainer.data.packing import mini_batches
from areal_trainer.engine.engine import Engine
from areal_trainer.engine.schedule import Schedule
from areal_trainer.timer import PhaseTimer


@dataclass(frozen=True)
class ActorOptions:
    """How a batch becomes updates."""

    ppo: PPOOptions
    advantages: AdvantageOptions
    schedule: Schedule
    mini_batches: int = 1
    micro_batch_tokens: int = 8192
    pack_length: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class UpdateFigures:
    """What `update` did. `applied` of `tried` optimizer steps changed the weights."""

    loss: LossFigures
    grad_norm: float  # mean over mini-batches, before clipping; NaN when one was not finite
    learning_rate: float
    tried: int
    applied: int

    @property
    def finite(self) -> bool:
        """Whether every update was applied."""
        return self.applied == self.tried


class Trainable(Protocol):
    """A batch as `update` needs it; `max_steps` is what the learning rate's schedule runs to."""

    @property
    def step(self) -> int: ...
    @property
    def max_steps(self) -> int: ...
    @property
    def tokens(self) -> TokenBatch: ...
    @property
    def micro_batch_divisor(self) -> int: ...


class Actor:
    """The trained model with its optimizer."""

    def __init__(
        self,
        engine: Engine,
        options: ActorOptions,
        checkpointer: Checkpointer,
        *,
        timer: PhaseTimer | None = None,
        still_mine: Callable[[], None] = lambda: None,
        compute_advantages: Callable[[AdvantageBatch], Any] | None = None,
    ) -> None:
        self.engine = engine
        self.options = options
        self._checkpointer = checkpointer
        self._compute_advantages = compute_advantages
        self._timer = timer or PhaseTimer()
        self._still_mine = still_mine
        self._micro_batch_tokens = options.micro_batch_tokens
        self._max_positions = engine.max_positions

    @property
    def needs_proximal(self) -> bool:
        """With one update a step, π_θ is π_prox when its loss is taken: one forward pass serves for both."""
        return self.options.mini_batches > 1

    def advantages(self, tokens: TokenBatch) -> Advantages:
        """One advantage a sequence, by the recipe's `compute_advantages(batch)` when it has one.

        Raises DataError when the recipe returns anything but one advantage a sequence.
        """
        counted = tokens.has_signal()
        result = group_advantages(
            tokens.rewards, tokens.group_ids, tokens.sample_indices, counted, self.options.advantages
        )
        if self._compute_advantages is None:
            return result
        values = np.asarray(self._compute_advantages(AdvantageBatch.of(tokens, counted)), dtype=np.float64)
        if values.shape != tokens.rewards.shape:
            raise DataError(
                f"compute_advantages returned shape {values.shape} for {tokens.sequences} sequences",
                fix="return one advantage for each entry of batch.rewards",
            )
        return Advantages(values, counted & (values != 0.0), counted, result.zero_variance_groups)

    def logprobs(self, tokens: TokenBatch, chosen: NDArray[np.bool_] | None = None) -> Tensor:
        """Log-probabilities of the `chosen` sequences' trainable tokens under the current weights, [tokens]."""
        places = np.arange(tokens.sequences) if chosen is None else np.flatnonzero(chosen)
        with self._timer.phase("prox"):
            return self.engine.logprobs(self._micros(tokens, places, tokens.trainable()), tokens.tokens)

    def update(self, batch: Trainable, advantages: Advantages, proximal: Tensor | None = None) -> UpdateFigures:
        """PPO updates over the mini-batches of one batch; `proximal` is [tokens] or None with one mini-batch."""
        if proximal is None and self.needs_proximal:
            raise ValueError("several mini-batches need the log-probabilities from before the first")
        with self._timer.phase("train"):
            return self._update(batch, advantages, proximal)

    def _update(self, batch: Trainable, advantages: Advantages, proximal: Tensor | None) -> UpdateFigures:
        step, tokens = batch.step, batch.tokens
        self._micro_batch_tokens = max(1, self.options.micro_batch_tokens // batch.micro_batch_divisor)
        device = self.engine.ranks.device
        of_token = advantages.values[tokens.sequence_of]
        predicted = tokens.trainable() & advantages.trained[tokens.sequence_of]
        trained = np.flatnonzero(advantages.trained)
        columns = _Columns(
            behaviour=torch.from_numpy(tokens.behaviour_logprobs).to(device),
            advantages=torch.from_numpy(of_token.astype(np.float32)).to(device),
            same=torch.from_numpy(tokens.versions == step).to(device),
            proximal=None if proximal is None else proximal.to(device),
        )
        statistics = LossStatistics(device)
        rate = self.options.schedule.at(step, batch.max_steps)
        norms: list[float] = []
        seed = (self.options.seed, step)
        for part in mini_batches(tokens.group_ids[trained], self.options.mini_batches, seed):
            chosen = trained[part]
            mask = np.zeros(tokens.sequences, np.bool_)
            mask[chosen] = True
            count = int((predicted & mask[tokens.sequence_of]).sum())  # global: every rank sees the whole batch
            loss = self._loss(columns, statistics, count)
            total = self.engine.accumulate(self._micros(tokens, chosen, predicted), loss)
            norms.append(self.engine.optimizer.step(rate, total))
        statistics.reduce(self.engine.ranks.add, self.engine.ranks.maximum)
        return UpdateFigures(
            loss=statistics.figures(),
            grad_norm=float(np.mean(norms)) if norms else 0.0,
            learning_rate=rate,
            tried=len(norms),
            applied=sum(math.isfinite(norm) for norm in norms),
        )

    def save(self, position: Position) -> Saved:
        """Write a checkpoint of this position of the run; it is on disk when this returns."""
        began = time.monotonic()
        with self._timer.phase("checkpoint"):
            path = self._checkpointer.save(position, self._still_mine)
        return Saved(position, path, time.monotonic() - began)

    def _micros(self, tokens: TokenBatch, chosen: NDArray[np.int64], predicted: NDArray[np.bool_]) -> list[MicroBatch]:
        longest = int(tokens.lengths[chosen].max(initial=0))
        if longest > self._max_positions:
            raise DataError(
                f"a sequence has {longest} tokens, the model takes {self._max_positions}",
                fix="lower rollout.maxSampleTokens",
            )
        return rank_micro_batches(
            tokens,
            chosen,
            predicted,
            rank=self.engine.ranks.rank,
            world_size=self.engine.ranks.world_size,
            micro_batch_tokens=self._micro_batch_tokens,
            pack_length=self.options.pack_length,
        )

    def _loss(
        self, columns: _Columns, statistics: LossStatistics, count: int
    ) -> Callable[[Tensor, Tensor, MicroBatch], Tensor]:
        """Token-weighted mean over all micro-batches and ranks: each adds its sum over the global count."""

        def loss(logprobs: Tensor, entropy: Tensor, micro: MicroBatch) -> Tensor:
            place = micro.token_index.to(logprobs.device)
            behaviour = columns.behaviour[place]
            proximal = logprobs.detach() if columns.proximal is None else columns.proximal[place]
            terms = policy_loss(logprobs, proximal, behaviour, columns.advantages[place], self.options.ppo)
            statistics.add(terms, logprobs.detach(), proximal, behaviour, entropy, columns.same[place])
            return terms.loss.sum() / max(count, 1)

        return loss


@dataclass(frozen=True)
class _Columns:
    """What the loss gathers by token, on the device, all [tokens]."""

    behaviour: Tensor
    advantages: Tensor
    same: Tensor  # made by the very version that trains now
    proximal: Tensor | None
