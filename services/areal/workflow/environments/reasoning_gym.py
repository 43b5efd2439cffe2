"""reasoning-gym's tasks: the question is the row's, the answer is scored by the task that made it.

Takes rows as `dataset.train.reasoningGym` makes them. `config: {tries: 3}` asks again until the score is 1; the reward
is the best score of all tries.
"""

from __future__ import annotations

from typing import Any

import reasoning_gym


def make(row: dict[str, Any], *, tries: int = 1) -> GymQuestion:
    """One question."""
    return GymQuestion(row, tries)


class GymQuestion:
    """A step is an answer; its reward is how much better it is than those before."""

    def __init__(self, row: dict[str, Any], tries: int) -> None:
        self._row, self._left = row, tries
        self._best = 0.0
        self._score = reasoning_gym.get_score_answer_fn(row["metadata"]["source_dataset"])

    def reset(self) -> tuple[str, dict[str, Any]]:
        """The question."""
        return self._row["question"], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score an answer."""
        score = float(self._score(answer=action.strip(), entry=self._row))
        gain, self._best = max(0.0, score - self._best), max(self._best, score)
        self._left -= 1
        return self._row["question"], gain, self._best >= 1.0, self._left == 0, {}
