"""The policy that is trained: log-probabilities, advantages, updates, checkpoints.

One of the two objects a training loop works with (the other is `Rollout`). Every method is a collective: all ranks call
it with the same batch. Knows nothing of groups' origin, ledgers or controllers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from areal.dataflow import builtin as columns_of
from areal.dataflow.builtin import Needs, policy_gradient
from areal.dataflow.own import StageInputs, own_stages, reward_column, run_stage
from areal.dataflow.running import StepColumns
from areal.dataflow.stages import Graph, Place
from areal.errors import DataError
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.algorithms.advantages import (
    AdvantageOptions,
    Advantages,
    TokenColumns,
    estimate_advantages,
    with_teacher,
)
from areal_trainer.algorithms.statistics import LossFigures, LossStatistics
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.checkpoint.saving import Position, Saving
from areal_trainer.critic import Critic, CriticFigures
from areal_trainer.data.batch import AdvantageBatch, TokenBatch
from areal_trainer.data.micro_batches import MicroBatch, rank_micro_batches
from areal_trainer.data.packing import mini_batches
from areal_trainer.engine.engine import Engine
from areal_trainer.engine.schedule import Schedule
from areal_trainer.frozen_model import Answer, FrozenModel, Question
from areal_trainer.hooks import advantages_from
from areal_trainer.objective import ComputeLoss, Objective, ObjectiveOptions
from areal_trainer.timer import PhaseTimer
from areal_trainer.trained_tokens import TrainedTokens, TrainedTokensBuffer


@dataclass(frozen=True)
class ActorOptions:
    """How a batch becomes updates."""

    objective: ObjectiveOptions
    advantages: AdvantageOptions
    schedule: Schedule
    mini_batches: int = 1
    micro_batch_tokens: int = 8192
    pack_length: int | None = None
    seed: int = 0
    keep_tokens: bool = False  # what was computed of each token, for the recording
    reference_placement: Place = "same"
    teacher_placement: Place = "same"


@dataclass(frozen=True)
class UpdateFigures:
    """What `update` did. `applied` of `tried` optimizer steps changed the weights."""

    loss: LossFigures
    grad_norm: float  # mean over mini-batches, before clipping; NaN when one was not finite
    learning_rate: float
    tried: int
    applied: int
    critic: CriticFigures | None = None
    tokens: TrainedTokens | None = None  # of all ranks; None where nobody asked for it

    @property
    def finite(self) -> bool:
        """Whether every update was applied."""
        return self.applied == self.tried and (self.critic is None or self.critic.applied == self.critic.tried)

    @property
    def learned(self) -> bool:
        """Whether any weights changed: the policy's, or the critic's alone."""
        return self.applied > 0 or (self.critic is not None and self.critic.applied > 0)


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
        compute_loss: ComputeLoss | None = None,
        reference: FrozenModel | None = None,
        teacher: FrozenModel | None = None,
        critic: Critic | None = None,
        own_graph: Graph | None = None,
    ) -> None:
        """`own_graph` is the step's as a recipe's `graph(ctx)` has it: the usual one, with stages of its own."""
        self.engine = engine
        self.options = options
        self._checkpointer = checkpointer
        self._compute_advantages = compute_advantages
        self._compute_loss = compute_loss
        self._frozen = {"reference": reference, "teacher log-probs": teacher}  # by the stage that asks it
        self._asked: dict[str, tuple[Question, Answer]] = {}  # by stage, while the policy's own pass goes on
        self._critic = critic
        self._timer = timer or PhaseTimer()
        self._still_mine = still_mine
        self._micro_batch_tokens = options.micro_batch_tokens
        self._max_positions = engine.max_positions
        self.graph = own_graph or policy_gradient(_needs(options, critic=critic is not None))
        self._own_stages = own_stages(self.graph)

    @property
    def needs_proximal(self) -> bool:
        """Whether the proximal policy is a forward pass of its own, before the first update."""
        return "proximal" in self.graph

    def advantages(self, tokens: TokenBatch) -> Advantages:
        """The advantage of each token, by the recipe's `compute_advantages(batch)` when it has one.

        Raises DataError when the recipe returns anything but one advantage a sequence or a token.
        """
        step = self._step(tokens)
        passes = self._passes(tokens, step)
        own = self._own_columns(tokens, passes, step)
        if (rewards := own.get(reward_column(self.graph))) is not None:
            tokens = replace(tokens, rewards=np.asarray(rewards, np.float64))
        step.begin("advantages")
        result = estimate_advantages(tokens, self.options.advantages, passes)
        if self._compute_advantages is not None:
            given = AdvantageBatch.of(tokens, result.counted, result.columns.values, own)
            result = self._with_teacher(
                advantages_from(self._compute_advantages(given), tokens, result), result, tokens, passes
            )
        returns = {} if result.returns is None else {"returns": result.returns}
        step.end("advantages", {"advantages": result.tokens, "trained": result.trained, **returns})
        return result

    def _with_teacher(self, own: Advantages, usual: Advantages, tokens: TokenBatch, passes: TokenColumns) -> Advantages:
        """A recipe's advantages with the teacher's part, which trains sequences that have no other signal."""
        coefficient = self.options.advantages.teacher
        if coefficient is None:
            return own
        by_token = with_teacher(own.tokens, tokens.trainable(), coefficient, passes)
        return replace(own, tokens=by_token, trained=usual.trained)

    def _own_columns(
        self, tokens: TokenBatch, passes: TokenColumns, step: StepColumns
    ) -> dict[str, NDArray[np.generic]]:
        """What the recipe's stages write, by name."""
        if not self._own_stages:
            return {}
        made = {name: column for name, column in vars(passes).items() if column is not None}
        known: dict[str, NDArray[np.generic]] = {**tokens.arrays(), **made}
        own: dict[str, NDArray[np.generic]] = {}
        for stage in self._own_stages:
            inputs = StageInputs({column.name: known[column.name] for column in stage.reads}, tokens.offsets)
            own |= run_stage(stage, inputs, step)
            known |= own
        return own

    def logprobs(self, tokens: TokenBatch, chosen: NDArray[np.bool_] | None = None) -> Tensor:
        """Log-probabilities of the `chosen` sequences' trainable tokens under the current weights, [tokens]."""
        places = np.arange(tokens.sequences) if chosen is None else np.flatnonzero(chosen)
        with self._timer.phase("prox"):
            return self.engine.logprobs(self._micros(tokens, places, tokens.trainable()), tokens.tokens)

    def proximal(self, tokens: TokenBatch, advantages: Advantages) -> Tensor | None:
        """π_prox of the trained tokens before the first update, [tokens]; None where the loss itself yields it."""
        known = advantages.columns.proximal
        if not self.needs_proximal:
            return None
        if known is not None:
            return torch.from_numpy(known)
        if self.options.objective.policy.kl is not None:
            self._ask("reference", tokens, advantages.trained)
        return self._of_policy(tokens, advantages.trained, self._step(tokens, advantages))

    def _step(self, tokens: TokenBatch, advantages: Advantages | None = None) -> StepColumns:
        """What is there of a step: what was sampled, and what is handed on of the stages before."""
        step = StepColumns(self.graph, sequences=tokens.sequences, tokens=tokens.tokens)
        if advantages is not None:
            step.given([columns_of.ADVANTAGES, columns_of.TRAINED])
            if advantages.returns is not None:
                step.given([columns_of.RETURNS, columns_of.VALUES])
        return step

    def _passes(self, tokens: TokenBatch, step: StepColumns) -> TokenColumns:
        """The passes whose results the advantages are made of, by the policy and the models beside it."""
        counted = tokens.has_signal()
        columns = TokenColumns()
        penalty, taught = self.options.advantages.kl is not None, self.options.advantages.teacher is not None
        if penalty:
            self._ask("reference", tokens, counted)
        if taught:
            self._ask("teacher log-probs", tokens, counted)
        if penalty or taught:
            behaviour = self.options.objective.proximal == "behaviour"
            proximal = tokens.behaviour_logprobs if behaviour else self._of_policy(tokens, counted, step).numpy()
            columns = TokenColumns(proximal=proximal)
        if penalty:
            columns = replace(columns, reference=self._of_frozen("reference", tokens, counted, step).numpy())
        if taught:
            found = self._of_frozen("teacher log-probs", tokens, counted, step)
            columns = replace(columns, teacher_logprobs=found.numpy())
        if self._critic is not None:
            step.begin("values")
            with self._timer.phase("prox"):
                values, after = self._critic.values(tokens, counted, self._micros)
            step.end("values", {"values": values, "bootstrap": after})
            columns = replace(columns, values=values, bootstrap=after)
        return columns

    def _of_policy(self, tokens: TokenBatch, chosen: NDArray[np.bool_], step: StepColumns) -> Tensor:
        step.begin("proximal")
        found = self.logprobs(tokens, chosen)
        step.end("proximal", {"proximal": found})
        return found

    def _ask(self, stage: str, tokens: TokenBatch, chosen: NDArray[np.bool_]) -> None:
        """Ask the frozen model of a stage before its answer is needed: on other ranks it computes meanwhile."""
        if (model := self._frozen[stage]) is None:
            raise ValueError(f"the stage {stage} needs its model")
        question = Question(tokens, chosen, self._micro_batch_tokens, self._micros)
        self._asked[stage] = (question, model.ask(question))

    def _of_frozen(self, stage: str, tokens: TokenBatch, chosen: NDArray[np.bool_], step: StepColumns) -> Tensor:
        """What the frozen model of a stage says of the `chosen` sequences' trainable tokens, [tokens]."""
        step.begin(stage)
        with self._timer.phase("prox"):
            if stage not in self._asked or not self._asked[stage][0].is_of(tokens, chosen):
                self._ask(stage, tokens, chosen)
            _, answer = self._asked.pop(stage)
            found = answer()
        step.end(stage, {column.name: found for column in self.graph.stage(stage).writes})
        return found

    def update(self, batch: Trainable, advantages: Advantages, proximal: Tensor | None = None) -> UpdateFigures:
        """Updates over the mini-batches of a batch, of the critic first where there is one.

        `proximal` is [tokens], or None where the loss itself yields it.
        """
        if proximal is None and self.needs_proximal:
            raise ValueError("this objective needs the log-probabilities from before the first update")
        columns = self._step(batch.tokens, advantages)
        if proximal is not None:
            columns.given([columns_of.PROXIMAL])
        wanted = self.options.objective.policy.kl is not None
        reference = self._of_frozen("reference", batch.tokens, advantages.trained, columns) if wanted else None
        with self._timer.phase("train"):
            return self._update(batch, advantages, proximal, reference, columns)

    def _update(
        self, batch: Trainable, advantages: Advantages, proximal: Tensor | None, reference: Tensor | None,
        columns: StepColumns,
    ) -> UpdateFigures:  # fmt: skip
        step, tokens = batch.step, batch.tokens
        self._micro_batch_tokens = max(1, self.options.micro_batch_tokens // batch.micro_batch_divisor)
        device = self.engine.ranks.device
        predicted = tokens.trainable() & advantages.trained[tokens.sequence_of]
        trained = np.flatnonzero(advantages.trained)
        objective = Objective(
            tokens,
            advantages,
            self.options.objective,
            step=step,
            device=device,
            proximal=proximal,
            reference=reference,
            compute_loss=self._compute_loss,
        )
        kept = TrainedTokensBuffer(tokens.tokens, device) if self.options.keep_tokens else None
        statistics = LossStatistics(device)
        begins = self._critic.options.warmup_steps if self._critic is not None else 0
        rate = self.options.schedule.at(max(0, step - begins), batch.max_steps - begins)  # warmed up once it moves
        norms: list[float] = []
        dealt = mini_batches(tokens.group_ids[trained], self.options.mini_batches, (self.options.seed, step))
        parts = [trained[part] for part in dealt]
        critic = None
        if self._critic is not None:
            columns.begin("update critic")
            critic = self._critic.update(tokens, advantages, parts, step, batch.max_steps, self._micros)
            if step < begins:
                parts = []
        columns.begin("update policy")
        for chosen in parts:
            mask = np.zeros(tokens.sequences, np.bool_)
            mask[chosen] = True
            loss = objective.of(predicted & mask[tokens.sequence_of], statistics, kept)
            total = self.engine.accumulate(self._micros(tokens, chosen, predicted), loss)
            norms.append(self.engine.optimizer.step(rate, total))
        statistics.reduce(self.engine.ranks.add, self.engine.ranks.maximum)
        return UpdateFigures(
            loss=statistics.figures(),
            grad_norm=float(np.mean(norms)) if norms else 0.0,
            learning_rate=rate,
            tried=len(norms),
            applied=sum(math.isfinite(norm) for norm in norms),
            critic=critic,
            tokens=None if kept is None else kept.reduced(self.engine.ranks.add),
        )

    def save(self, position: Position) -> Saving:
        """Begin a checkpoint of this position of the run: returns once everything is copied, and writes on.

        First waits until the one before is on disk.
        """
        with self._timer.phase("checkpoint"):
            return self._checkpointer.save(position, self._still_mine)

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
            rank=self.engine.ranks.data_rank,
            world_size=self.engine.ranks.data_size,
            micro_batch_tokens=self._micro_batch_tokens,
            pack_length=self.options.pack_length,
        )


def _needs(options: ActorOptions, *, critic: bool) -> Needs:
    """What these options run in a step."""
    kl: Literal["loss", "reward"] | None = "loss" if options.objective.policy.kl is not None else None
    return Needs(
        proximal=options.objective.proximal == "recompute",
        kl="reward" if options.advantages.kl is not None else kl,
        of_behaviour=options.objective.proximal == "behaviour",
        critic=critic,
        teacher=options.advantages.teacher is not None,
        reference_placement=options.reference_placement,
        teacher_placement=options.teacher_placement,
    )
