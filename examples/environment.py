"""An environment with gymnasium's two methods: sort digits, one place at a time.

    areal run examples/environment.yaml

Needs the quickstart's data and model (`make quickstart` makes both). After each try the environment repeats the
question; a try earns what it places better than the best one before it, so an episode earns the share of its best try.
"""

from areal.workflow import EnvironmentWorkflow


class Sorting:
    """One question. The reward of a step is how much better its answer is than those before."""

    def __init__(self, question, answer):
        self.question, self.answer, self.best = question, answer, 0.0

    def reset(self):
        return self.question, {}

    def step(self, action):
        right = sum(a == b for a, b in zip(action.strip(), self.answer, strict=False)) / len(self.answer)
        gain, self.best = max(0.0, right - self.best), max(self.best, right)
        return "\n" + self.question, gain, self.best == 1.0, False, {}


class SortingWorkflow(EnvironmentWorkflow):
    """Answers in an environment of its own for each sample."""

    name = "sorting"

    def make(self, row):
        return Sorting(row["prompt"], row["answer"])

    def turn_ids(self, tokenizer, observation, *, after_end):
        return tokenizer.encode(observation)  # this model has no chat template
