"""The training loop, top to bottom, and its arguments. A recipe's `train(ctx)` may replace it."""

from dataclasses import dataclass

from areal.spec.job import JobSpec

from areal_trainer.actor import Actor
from areal_trainer.rollout import Rollout


def train(ctx: "TrainContext") -> None:
    """Take, train, publish, save, until the run is over.

    Every rank runs this. Both calls of the actor run stages of the step's graph: through the advantages, and the rest.
    Where advantages need the group alone, groups are taken as they become complete: their gradient is accumulated
    while others are still sampled, and the one update is made when the batch is whole.
    """
    rollout, actor = ctx.rollout, ctx.actor
    while (batch := rollout.prepare_batch(early=actor.accumulates)) is not None:
        advantages = actor.advantages(batch.tokens)
        if not batch.whole:
            actor.accumulate(batch, advantages)
            continue
        update = actor.update(batch, advantages, begun=batch.begun)

        due = rollout.trained(batch, advantages, update)
        if due.publish:
            rollout.publish(actor)
        if due.checkpoint:
            rollout.commit(actor.save(due.position))


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
