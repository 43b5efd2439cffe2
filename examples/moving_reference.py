"""A moving reference: the KL's reference is an exponential average of the policy's weights, not the start model.

areal run examples/moving_reference.yaml
areal check examples/moving_reference.yaml --graph -
"""

from dataclasses import replace

from areal.dataflow.builtin import POLICY

DECAY = 0.95  # of the average, a step


def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    """1.0 when the digits are sorted, else 0.0."""
    return float(completions.strip() == answer)


class Average:
    """The second set of weights, which is in every checkpoint; `areal check` never makes it."""

    def start(self, models):
        self.weights = models.copy_of_policy("average")

    def reference(self, columns):
        return {"reference": self.weights.logprobs(columns)}

    def follow(self, columns):
        self.weights.follow(1 - DECAY)
        return {}


def graph(ctx):
    """The reference's stage asks the average instead of the start model, and the average follows each update."""
    own, usual = Average(), ctx.builtin.stage("reference")
    reference = replace(usual, model="average", run=own.reference, start=own.start)
    follow = ctx.stage("average", own.follow, reads=(POLICY,), kind="update", model="average")
    return ctx.builtin.replacing("reference", reference).after("update policy", follow)
