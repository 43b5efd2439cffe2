"""The training loop, top to bottom. A recipe's `train(ctx)` may replace it."""

from __future__ import annotations

from areal_trainer.context import TrainContext


def train(ctx: TrainContext) -> None:
    """Take, train, publish, save, until the run is over.

    Every rank runs this. Both calls of the actor run stages of the step's graph: through the advantages, and the rest.
    """
    rollout, actor = ctx.rollout, ctx.actor
    while (batch := rollout.prepare_batch()) is not None:
        advantages = actor.advantages(batch.tokens)
        update = actor.update(batch, advantages)

        due = rollout.trained(batch, advantages, update)
        if due.publish:
            rollout.publish(actor)
        if due.checkpoint:
            rollout.commit(actor.save(due.position))
