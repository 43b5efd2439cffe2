"""The training loop, top to bottom. A recipe's `train(ctx)` may replace it."""

from __future__ import annotations

from areal_trainer.context import TrainContext


def train(ctx: TrainContext) -> None:
    """Take, train, publish, save, until the run is over.

    Every rank runs this. Proximal log-probabilities are those of the weights before the step's first update; with one
    update a step the training pass itself yields them.
    """
    rollout, actor = ctx.rollout, ctx.actor
    while (batch := rollout.prepare_batch()) is not None:
        advantages = actor.advantages(batch.tokens)
        proximal = actor.proximal(batch.tokens, advantages)
        update = actor.update(batch, advantages, proximal)

        due = rollout.trained(batch, advantages, update)
        if due.publish:
            rollout.publish(actor)
        if due.checkpoint:
            rollout.commit(actor.save(due.position))
