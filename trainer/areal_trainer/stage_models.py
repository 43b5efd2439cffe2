"""Models of a recipe's own stages: made once before a checkpoint is loaded, and kept in every checkpoint.

A stage's `start(models)` is given a `StageModels`. What it makes there is sharded as the policy is; every method is a
collective.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from areal.dataflow.running import StageInputs
from areal.dataflow.stages import Graph
from areal.errors import DataError
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.checkpoint.checkpointer import CRITIC, CheckpointPart
from areal_trainer.engine.engine import PolicyEngine, ValueEngine
from areal_trainer.engine.optimizer import like, local
from areal_trainer.frozen_model import chosen_of
from areal_trainer.trainings.kinds import Learner, Update


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
