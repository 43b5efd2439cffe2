"""The plain training loop: every batch whole. `trainer.hooks` of the job that `bench/sync_pace.py` compares with."""

from __future__ import annotations

from areal_trainer.ledger_batches import TrainContext


def train(ctx: TrainContext) -> None:
    rollout, actor = ctx.rollout, ctx.actor
    while (batch := rollout.prepare_batch()) is not None:
        advantages = actor.advantages(batch.tokens)
        due = rollout.trained(batch, advantages, actor.update(batch, advantages))
        if due.publish:
            rollout.publish(actor)
        if due.checkpoint:
            rollout.commit(actor.save(due.position))
