"""Frozen models beside the policy: the KL reference and the teacher, placed as the job says.

On the policy's ranks every rank has its share of each, an offloaded one's in host memory while nobody asks it. One
that is served is behind an address.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from areal.admit.models import read_model, refuse_other_tokens, refuse_smaller_vocabulary
from areal.dataflow.running import StageInputs
from areal.dataflow.stages import Graph, Place
from areal.errors import BugError, DataError
from areal.observe.waits import WaitRegistry
from areal.workflow.tokenizer import Tokenizer
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.checkpoint.checkpointer import CRITIC, CheckpointPart
from areal_trainer.data.micro_batches import MicroBatch
from areal_trainer.engine.engine import PolicyEngine, ValueEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.offload import OffloadedParameters
from areal_trainer.engine.optimizer import like, local
from areal_trainer.frozen_model import FrozenModel, Logprobs, OnSameRanks, chosen_of
from areal_trainer.served_teacher import ServedTeacher
from areal_trainer.settings import TrainerSettings
from areal_trainer.trainings.kinds import Learner, Update

REFERENCE, TEACHER = "reference", "teacher"


class FrozenModels:
    """The frozen models of a job, as the policy's ranks see them. Every one of these has one."""

    def __init__(
        self,
        settings: TrainerSettings,
        engine: PolicyEngine,
        ranks: RankGroup,
        waits: WaitRegistry,
        own: Graph | None = None,
    ) -> None:
        """Loads what is on these ranks, but a reference that a function of the recipe's answers for."""
        self._needed: dict[str, Place] = {}  # and where each is
        answered = own is not None and REFERENCE in own and own.stage(REFERENCE).run is not None
        if settings.needs_reference and not answered:
            self._needed[REFERENCE] = settings.actor.reference_placement
        if settings.spec.teacher is not None:
            self._needed[TEACHER] = settings.actor.teacher_placement
        self._engine = engine
        self._settings = settings
        self._here: dict[str, FrozenModel] = {}
        self._resident: list[PolicyEngine] = []  # those that stay on these ranks' devices
        self._served = self._served_teacher(ranks, waits)
        if REFERENCE in self._needed and settings.adapter is not None:
            self._here[REFERENCE] = OnSameRanks(engine.base_logprobs)
        for name, placement in self._needed.items():
            if placement != "served" and name not in self._here:
                model = _loaded(name, settings, ranks)
                if name == TEACHER and settings.paths.teacher is not None:
                    refuse_smaller_vocabulary(engine.vocabulary, model.vocabulary, settings.paths.teacher)
                self._here[name] = OnSameRanks(placed(model, placement))
                if placement == "same":
                    self._resident.append(model)

    def ready(self) -> None:
        """Wait for one that is served. A collective."""
        if self._served is not None:
            paths = self._settings.paths
            tokenizer = Tokenizer.from_dir(paths.tokenizer, model_dir=paths.start_model)
            known = min(self._engine.vocabulary, max(tokenizer.vocabulary) + 1)
            self._served.ready([tokenizer.decode([token], skip_special=False) for token in range(known)])

    def get(self, name: str) -> FrozenModel | None:
        """The model of that name; None where the job has none."""
        return self._here.get(name)

    def parameters(self) -> Iterator[Tensor]:
        """Those that stay on these ranks' devices, whether somebody asks or not."""
        for model in self._resident:
            yield from model.parameters()

    def close(self) -> None:
        """Nothing more is asked."""
        if self._served is not None:
            self._served.close()

    def _served_teacher(self, ranks: RankGroup, waits: WaitRegistry) -> ServedTeacher | None:
        """The teacher behind an address: compared by the files of what is served there."""
        settings, teacher = self._settings, self._settings.spec.algorithm.teacher
        if teacher is None or teacher.endpoint is None:
            return None
        directory = _refuse_other_teacher(settings)
        refuse_smaller_vocabulary(self._engine.vocabulary, read_model(directory).number("vocab_size"), directory)
        served = ServedTeacher(teacher.endpoint, ranks, waits, away_s=settings.outage_s, start_s=settings.patience_s)
        self._here[TEACHER] = served
        return served


def _loaded(name: str, settings: TrainerSettings, ranks: RankGroup) -> PolicyEngine:
    """The start model as the reference, or the teacher. Raises DataError for a teacher of other tokens."""
    if name == REFERENCE:
        return PolicyEngine(settings.paths.start_model, replace(settings.engine, replay=False), ranks)
    return PolicyEngine(_refuse_other_teacher(settings), settings.teacher_engine, ranks)


def _refuse_other_teacher(settings: TrainerSettings) -> Path:
    """The teacher's directory. Raises DataError where its tokens aren't the policy's."""
    paths = settings.paths
    if paths.teacher is None:
        raise BugError("a policy was to be taught without its teacher's directory")
    refuse_other_tokens(Tokenizer.from_dir(paths.tokenizer, model_dir=paths.start_model), paths.teacher)
    return paths.teacher


def placed(model: PolicyEngine, placement: Place) -> Logprobs:
    """A frozen model's log-probabilities on these ranks, with its weights where they are to be."""
    return model.logprobs if placement == "same" else partial(_asked, model, OffloadedParameters(model.parameters()))


def _asked(model: PolicyEngine, weights: OffloadedParameters, micros: Sequence[MicroBatch], tokens: int) -> Tensor:
    with weights.on_device():
        return model.logprobs(micros, tokens)


# ---- Models of a recipe's own stages: made once before a checkpoint is loaded, and kept in every checkpoint


class StageModels:
    """What `start(models)` of a recipe's stage is given."""

    def __init__(
        self, policy: PolicyEngine, start_model: Path, micro_batch_tokens: int, pack_length: int | None
    ) -> None:
        self._policy = policy
        self._start_model = start_model
        self._cut = (micro_batch_tokens, pack_length)
        self.parts: dict[str, CheckpointPart] = {}

    def start(self, graph: Graph | None) -> None:
        """Let every own stage make its models."""
        for stage in graph.stages if graph is not None else ():
            if stage.start is not None:
                stage.start(self)

    def value_model(self, name: str, path: Path | None = None) -> "StageValueModel":
        """A model with one number for each place, a head of zeros at the start, and an optimizer of its own.

        Starts as the job's start model, or as the one at `path`, which knows the same token ids.
        """
        options = replace(self._policy.options, adapter=None)
        engine = ValueEngine(path or self._start_model, options, self._policy.ranks)
        self._keep(name, engine)
        return StageValueModel(Learner(engine, engine.forward, *self._cut))

    def copy_of_policy(self, name: str) -> "WeightCopy":
        """A second set of the policy's weights, as they are now: an adapter's alone where that is what is trained."""
        policy = self._policy
        copy = WeightCopy(policy, Learner(policy, lambda micro: policy.forward(micro)[0], *self._cut))
        self._keep(name, copy)
        return copy

    def _keep(self, name: str, part: CheckpointPart) -> None:
        if name in (*self.parts, CRITIC, "model", "optimizer"):
            raise DataError(f"two models of the step are called {name}", fix="give the recipe's own another name")
        self.parts[name] = part


class StageValueModel:
    """A value at each sampled token, of the tokens before it."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def values(self, inputs: StageInputs) -> NDArray[np.float32]:
        """Under its present weights, [tokens]; 0 where nothing was sampled."""
        return self._learner.outputs(inputs.tokens)

    def update(self, inputs: StageInputs, gradient: NDArray[np.float64], learning_rate: float) -> Update:
        """One step of AdamW, of a loss whose derivative by each value is `gradient`, [tokens]."""
        return self._learner.update(inputs.tokens, gradient, learning_rate)


class WeightCopy:
    """Weights of the policy's shape beside it, such as a moving average of it; nothing trains them."""

    def __init__(self, policy: PolicyEngine, learner: Learner) -> None:
        self._learner = learner
        self._theirs = {name: parameter.detach() for name, parameter in policy.trained().items()}
        self._mine = {name: local(tensor).clone() for name, tensor in self._theirs.items()}

    def logprobs(self, inputs: StageInputs) -> NDArray[np.float32]:
        """Log-probabilities of the sampled tokens under these weights, [tokens]."""
        with self._in_place():
            return self._learner.outputs(inputs.tokens, chosen_of(inputs))

    def follow(self, share: float) -> None:
        """Move by this share of the way to the policy's present weights."""
        for name, tensor in self._theirs.items():
            self._mine[name].lerp_(local(tensor), share)

    def state(self) -> dict[str, Tensor]:
        """For checkpoints."""
        return {name: like(tensor, self._mine[name]) for name, tensor in self._theirs.items()}

    @property
    def updates(self) -> int:
        """None: there is no optimizer."""
        return 0

    def set_updates(self, updates: int) -> None:
        """Nothing depends on them."""

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """The policy has these weights, and then its own again, to the bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, tensor in self._theirs.items():
            theirs, mine = local(tensor), self._mine[name]
            held = theirs.clone()
            theirs.copy_(mine)
            mine.copy_(held)
