"""Arguments of a training loop."""

from __future__ import annotations

from dataclasses import dataclass

from areal.spec.job import JobSpec

from areal_trainer.actor import Actor
from areal_trainer.rollout import Rollout


@dataclass(frozen=True)
class TrainContext:
    """`ctx` of `train(ctx)`. Every rank has one, and every rank must make the same calls on it.

    Before `train` the start version is published and the checkpoint loaded; after it the final version is published
    and saved. In between, a loop must hand each batch of `rollout.prepare_batch()` to `rollout.trained()` before it
    asks for the next, and do what is due then.
    """

    rollout: Rollout
    actor: Actor
    spec: JobSpec
    rank: int
    world_size: int
