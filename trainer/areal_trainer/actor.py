"""The policy that is trained: log-probabilities, advantages, updates, checkpoints.

One of the two objects a training loop works with (the other is `Rollout`). Every method is a collective: all ranks call
it with the same batch. Knows nothing of groups' origin, ledgers or controllers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from areal.dataflow.builtin import StepNeeds, policy_gradient
from areal.dataflow.own import more_columns, stand_in
from areal.dataflow.running import StageFunction, StageInputs, StepRun
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
from areal_trainer.algorithms.policy import divisor
from areal_trainer.algorithms.statistics import LossFigures, LossStatistics
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.checkpoint.saving import RunPosition, Saving
from areal_trainer.critic import CriticFigures, ValueCritic
from areal_trainer.data.batch import AdvantageBatch, TokenBatch
from areal_trainer.data.micro_batches import MicroBatch, mini_batches
from areal_trainer.engine.engine import PolicyEngine
from areal_trainer.engine.optimizer import RateSchedule
from areal_trainer.figures import checked
from areal_trainer.frozen_model import FrozenModel, FrozenQuestion, FrozenStage, chosen_of
from areal_trainer.gradient_sums import GradientPart, GradientSums
from areal_trainer.hooks import advantages_from
from areal_trainer.objective import ComputeLoss, ObjectiveOptions, PolicyObjective
from areal_trainer.recording import TrainedTokens, TrainedTokensBuffer
from areal_trainer.spans import PhaseTimer

_UNROUTED = 1e-3  # of a batch's trained tokens, whose experts may be unknown


@dataclass(frozen=True)
class ActorOptions:
    """How a batch becomes updates."""

    objective: ObjectiveOptions
    advantages: AdvantageOptions
    schedule: RateSchedule
    mini_batches: int = 1
    micro_batch_tokens: int = 8192
    pack_length: int | None = None
    seed: int = 0
    keep_tokens: bool = False  # what was computed of each token, for the recording
    whole_batches: bool = True  # no gradient is taken of a part of a batch
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
    figures: Mapping[str, float] = field(default_factory=dict)  # that a recipe's `compute_loss` named, of this rank
    router: Mapping[str, float] = field(default_factory=dict)  # of its losses, where the job has them
    begun: int = 0  # groups whose gradient was taken before the batch was whole

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
        engine: PolicyEngine,
        options: ActorOptions,
        checkpointer: Checkpointer,
        *,
        timer: PhaseTimer | None = None,
        still_mine: Callable[[], None] = lambda: None,
        compute_advantages: Callable[[AdvantageBatch], Any] | None = None,
        compute_loss: ComputeLoss | None = None,
        reference: FrozenModel | None = None,
        teacher: FrozenModel | None = None,
        critic: ValueCritic | None = None,
        own_graph: Graph | None = None,
    ) -> None:
        """`own_graph` is the step's as a recipe's `graph(ctx)` has it: stages of its own, or other functions."""
        self.engine = engine
        self.options = options
        self._checkpointer = checkpointer
        self._compute_advantages = compute_advantages
        self._compute_loss = compute_loss
        self._critic = critic
        self._timer = timer or PhaseTimer()
        self._still_mine = still_mine
        self._micro_batch_tokens = options.micro_batch_tokens
        self._max_positions = engine.max_positions
        usual = policy_gradient(_needs(options, critic=critic is not None))
        self.graph = own_graph or usual
        self._rewards, self._taken = (stand_in(self.graph, usual, name) for name in ("advantages", "update policy"))
        self._beside, self._in_loss = (
            [column.name for column in more_columns(self.graph, usual, name)]
            for name in ("advantages", "update policy")
        )
        self._functions: dict[str, StageFunction] = {
            "proximal": self._proximal,
            "values": self._values,
            "advantages": self._advantages,
            "update critic": self._update_critic,
            "update policy": self._update_policy,
        }
        for name, model in (("reference", reference), ("teacher log-probs", teacher)):
            if model is not None and name in self.graph:
                (written,) = self.graph.stage(name).writes
                self._functions[name] = FrozenStage(model, written.name, self._cut, self._timer)
        self._step: _ActorStep | None = None
        self._sums: GradientSums | None = None
        self.accumulates = not options.whole_batches and compute_advantages is None and own_graph is None

    @property
    def needs_proximal(self) -> bool:
        """Whether the proximal policy is a forward pass of its own, before the first update."""
        return "proximal" in self.graph

    def advantages(self, tokens: TokenBatch) -> Advantages:
        """The advantage of each token, by the recipe's `compute_advantages(batch)` when it has one.

        Runs the stages through the advantages. Raises DataError when the recipe returns anything but one advantage a
        sequence or a token.
        """
        self._step = step = self._begun(tokens)
        step.run.through("advantages")
        assert step.advantages is not None
        return step.advantages

    def logprobs(self, tokens: TokenBatch, chosen: NDArray[np.bool_] | None = None) -> Tensor:
        """Log-probabilities of the `chosen` sequences' trainable tokens under the current weights, [tokens]."""
        places = np.arange(tokens.sequences) if chosen is None else np.flatnonzero(chosen)
        with self._timer.phase("prox"):
            return self.engine.logprobs(self._micros(tokens, places, tokens.trainable()), tokens.tokens)

    def proximal(self, tokens: TokenBatch, advantages: Advantages) -> Tensor | None:
        """π_prox of the trained tokens before the first update, [tokens]; None where the loss itself yields it.

        `update` sees to it, too: for a loop that looks at them before, or hands on others.
        """
        if not self.needs_proximal:
            return None
        run = self._with(tokens, advantages).run
        run.through("proximal")
        return torch.from_numpy(run.columns["proximal"])

    def accumulate(self, batch: Trainable, advantages: Advantages) -> None:
        """Gradient accumulation of groups whose batch isn't whole yet: no weight changes before `update` has it.

        Sums, not means: what they are divided by is known with the whole batch alone.
        """
        if self._sums is None or self._sums.step != batch.step:
            self._forget()
            self._sums = GradientSums(batch.step, self.engine.ranks.device)
        step = self._with(batch.tokens, advantages)
        step.batch, step.sums, step.whole = batch, self._sums, False
        step.run.rest()

    def update(
        self, batch: Trainable, advantages: Advantages, proximal: Tensor | None = None, *, begun: Sequence[int] = ()
    ) -> UpdateFigures:
        """Run the stages after the advantages: the updates over the mini-batches of a batch, and what is beside them.

        `proximal` is [tokens], or None for what the stage of that name finds. Called again with the same batch, the
        updates are made once more. Of the groups in `begun` the gradient is there, if `accumulate` was given just
        these; else it is taken of all.
        """
        step = self._with(batch.tokens, advantages)
        if step.batch is not None:
            step.run.again("update")
        sums = self._sums
        if sums is not None and not sums.fit(batch.step, batch.tokens, advantages, begun):
            self._forget()
        if self._sums is not None:  # what comes before the update needn't look at them again
            step.run.columns["trained"] = advantages.trained & ~np.isin(batch.tokens.group_ids, begun)
        step.sums, self._sums = self._sums, None
        step.batch = batch
        step.centre = proximal
        if proximal is not None and self.needs_proximal:
            step.run.columns["proximal"] = proximal.numpy()
            step.run.skip("proximal")
        step.run.rest()
        assert step.figures is not None
        return step.figures

    def _forget(self) -> None:
        """Drop what was accumulated."""
        self._sums = None
        self.engine.optimizer.forget()

    # ---- the built-in stages

    def _begun(self, tokens: TokenBatch) -> "_ActorStep":
        """A step of which the sampled columns are there."""
        if self.engine.replays and (share := tokens.unrouted()) > _UNROUTED:
            raise DataError(
                f"the experts that sampled {share:.1%} of the batch's trained tokens aren't known",
                fix="train what servers of this version sampled, or set trainer.routingReplay: false",
            )
        return _ActorStep(tokens, StepRun(self.graph, self._functions, tokens.arrays(), tokens.offsets, tokens))

    def _with(self, tokens: TokenBatch, advantages: Advantages) -> "_ActorStep":
        """The step of these tokens, with the advantages that the caller hands on."""
        if self._step is None or self._step.tokens is not tokens:
            self._step = self._begun(tokens)
        step, step.advantages = self._step, advantages
        found = {name: column for name, column in vars(advantages.columns).items() if column is not None}
        step.run.provide("advantages", {**found, **_outcome(advantages)})
        return step

    def _proximal(self, inputs: StageInputs) -> dict[str, Any]:
        return {"proximal": self.logprobs(inputs.tokens, chosen_of(inputs)).numpy()}

    def _values(self, inputs: StageInputs) -> dict[str, Any]:
        assert self._critic is not None
        with self._timer.phase("prox"):
            values, after = self._critic.values(inputs.tokens, chosen_of(inputs), self._micros)
        return {"values": values, "bootstrap": after}

    def _advantages(self, inputs: StageInputs) -> dict[str, Any]:
        step = self._step
        assert step is not None
        tokens = replace(step.tokens, rewards=np.asarray(inputs[self._rewards], np.float64))
        passes = TokenColumns(
            proximal=inputs.get("proximal", inputs.get("behaviour_logprobs")),
            reference=inputs.get("reference"),
            teacher_logprobs=inputs.get("teacher_logprobs"),
            values=inputs.get("values"),
            bootstrap=inputs.get("bootstrap"),
        )
        result = estimate_advantages(tokens, self.options.advantages, passes)
        if self._compute_advantages is not None and tokens.sequences:
            own = {name: inputs[name] for name in self._beside}
            given = AdvantageBatch.of(tokens, result.counted, result.columns.values, own)
            own_values = advantages_from(self._compute_advantages(given), tokens, result)
            named = replace(own_values, figures=checked("compute_advantages", given.figures))
            result = self._with_teacher(named, result, tokens, passes)
        step.advantages = result
        return _outcome(result)

    def _with_teacher(self, own: Advantages, usual: Advantages, tokens: TokenBatch, passes: TokenColumns) -> Advantages:
        """A recipe's advantages with the teacher's part, which trains sequences that have no other signal."""
        coefficient = self.options.advantages.teacher
        if coefficient is None:
            return own
        by_token = with_teacher(own.tokens, tokens.trainable(), coefficient, passes)
        return replace(own, tokens=by_token, trained=usual.trained)

    def _updating(self) -> tuple[Trainable, Advantages, list[NDArray[np.int64]]]:
        """Inputs of both updates: the batch, its advantages, and the sequences of each mini-batch."""
        step = self._step
        assert step is not None
        batch, advantages = step.batch, step.advantages
        assert batch is not None
        assert advantages is not None
        self._micro_batch_tokens = max(1, self.options.micro_batch_tokens // batch.micro_batch_divisor)
        trained = np.flatnonzero(advantages.trained)
        groups = batch.tokens.group_ids[trained]
        dealt = mini_batches(groups, self.options.mini_batches, (self.options.seed, batch.step))
        return batch, advantages, [trained[part] for part in dealt]

    def _update_critic(self, inputs: StageInputs) -> dict[str, Any]:
        assert self._critic is not None
        assert self._step is not None
        with self._timer.phase("train"):
            batch, advantages, parts = self._updating()
            self._step.critic = self._critic.update(
                batch.tokens, advantages, parts, batch.step, batch.max_steps, self._micros
            )
        return {}

    def _update_policy(self, inputs: StageInputs) -> dict[str, Any]:
        assert self._step is not None
        with self._timer.phase("train"):
            batch, advantages, parts = self._updating()
            taken = replace(advantages, tokens=np.asarray(inputs[self._taken], np.float64))
            self._step.figures = self._updated(batch, taken, parts, inputs)
        return {}

    def _updated(
        self, batch: Trainable, advantages: Advantages, parts: list[NDArray[np.int64]], inputs: StageInputs
    ) -> UpdateFigures | None:
        """What the updates did; None for a part of a batch, which waits for the rest."""
        step, tokens, device = batch.step, batch.tokens, self.engine.ranks.device
        predicted = tokens.trainable() & advantages.trained[tokens.sequence_of]
        assert self._step is not None
        sums = self._step.sums
        proximal, reference = (
            torch.from_numpy(inputs[name]) if name in inputs else None for name in ("proximal", "reference")
        )
        objective = PolicyObjective(
            tokens,
            advantages,
            self.options.objective,
            step=step,
            device=device,
            proximal=self._step.centre if proximal is None else proximal,
            reference=reference,
            compute_loss=self._compute_loss,
            own={name: inputs[name] for name in self._in_loss},
            figures=None if sums is None else sums.figures,
        )
        kept = TrainedTokensBuffer(tokens.tokens, device) if self.options.keep_tokens else None
        statistics = LossStatistics(device) if sums is None else sums.statistics
        begins = self._critic.options.warmup_steps if self._critic is not None else 0
        rate = self.options.schedule.at(max(0, step - begins), batch.max_steps - begins)  # warmed up once it moves
        norms: list[float] = []
        if sums is not None:
            fresh: NDArray[np.bool_] = inputs["trained"]
            if fresh.any():
                loss = objective.of(predicted & fresh[tokens.sequence_of], statistics, kept, summed=True)
                sums.loss += self.engine.accumulate(self._micros(tokens, np.flatnonzero(fresh), predicted), loss)
            if not self._step.whole:
                sums.parts.append(GradientPart(tokens, advantages, kept))
                return None
            if kept is not None:
                sums.keep(kept, tokens)
            if parts:
                count = divisor(predicted, tokens.sequence_of, self.options.objective.aggregation)
                norms.append(self.engine.optimizer.step(rate, sums.loss, divisor=count))
            parts = []
        for chosen in parts if step >= begins else []:
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
            critic=self._step.critic,
            tokens=None if kept is None else kept.reduced(self.engine.ranks.add),
            figures=objective.figures.means(),
            router=self.engine.routers.figures(),
            begun=0 if sums is None else len(sums.groups),
        )

    def save(self, position: RunPosition) -> Saving:
        """Begin a checkpoint of this position of the run: returns once everything is copied, and writes on.

        First waits until the one before is on disk.
        """
        with self._timer.phase("checkpoint"):
            return self._checkpointer.save(position, self._still_mine)

    def _cut(self, tokens: TokenBatch, chosen: NDArray[np.bool_]) -> FrozenQuestion:
        return FrozenQuestion(tokens, chosen, self._micro_batch_tokens, self._micros)

    def _micros(self, tokens: TokenBatch, chosen: NDArray[np.int64], predicted: NDArray[np.bool_]) -> list[MicroBatch]:
        longest = int(tokens.lengths[chosen].max(initial=0))
        if longest > self._max_positions:
            raise DataError(
                f"a sequence has {longest} tokens, the model takes {self._max_positions}",
                fix="lower rollout.maxSampleTokens",
            )
        return self.engine.micros(tokens, chosen, predicted, self._micro_batch_tokens, self.options.pack_length)


@dataclass
class _ActorStep:
    """The batch that is trained now: its columns, and what its stages found beside them."""

    tokens: TokenBatch
    run: StepRun
    batch: Trainable | None = None  # once it is updated with
    centre: Tensor | None = None  # π_prox that the caller hands on, where the graph has no pass for it
    sums: GradientSums | None = None  # of a batch in parts
    whole: bool = True  # else a part of it
    advantages: Advantages | None = None
    critic: CriticFigures | None = None
    figures: UpdateFigures | None = None


def _outcome(advantages: Advantages) -> dict[str, Any]:
    """The columns of the stage of that name."""
    returns = {} if advantages.returns is None else {"returns": advantages.returns}
    return {"advantages": advantages.tokens, "trained": advantages.trained, **returns}


def _needs(options: ActorOptions, *, critic: bool) -> StepNeeds:
    """Needs of a step under these options."""
    kl: Literal["loss", "reward"] | None = "loss" if options.objective.policy.kl is not None else None
    return StepNeeds(
        proximal=options.objective.proximal == "recompute",
        kl="reward" if options.advantages.kl is not None else kl,
        of_behaviour=options.objective.proximal == "behaviour",
        critic=critic,
        teacher=options.advantages.teacher is not None,
        reference_placement=options.reference_placement,
        teacher_placement=options.teacher_placement,
    )
