"""A training loop of one's own: a second update with the same batch, as long as the policy has moved little.

areal run examples/own_loop.yaml
"""

CLOSE = 2e-3  # mean squared change of a token's log-probability, halved: an estimate of the KL divergence


def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    """1.0 when the digits are sorted, else 0.0."""
    return float(completions.strip() == answer)


def train(ctx):
    """Replaces the platform's loop. Every trainer process runs it and makes the same calls."""
    rollout, actor = ctx.rollout, ctx.actor
    while (batch := rollout.prepare_batch()) is not None:  # waits for the next B groups; None: the run is over
        advantages = actor.advantages(batch.tokens)
        before = actor.logprobs(batch.tokens, advantages.trained)
        update = actor.update(batch, advantages, before)

        change = actor.logprobs(batch.tokens, advantages.trained) - before
        if change.square().sum() / 2 < CLOSE * max(update.loss.tokens, 1):
            update = actor.update(batch, advantages, before)  # clipped around `before`, as PPO asks for

        due = rollout.trained(batch, advantages, update)  # counts the batch as consumed
        if due.publish:
            rollout.publish(actor)
        if due.checkpoint:
            rollout.commit(actor.save(due.position))
