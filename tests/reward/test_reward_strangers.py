"""Rewards as people wrote them for other frameworks: what they return is taken, or refused by name."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Mapping
from typing import Any

import pytest
from areal.reward.scorers.recipe import judge_of


def judged(reward: Any, weights: Mapping[str, float] | None = None, completion: str = "7", **row: Any) -> list[Any]:
    payload = {"prompt": "3+4=", "completion": completion, "prompt_ids": [1], "completion_ids": [2], "row": row}
    return judge_of(reward, weights)(payload)  # type: ignore[no-any-return]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """verl's: a dict with the score, and what is to be logged beside it (verl/utils/reward_score/math_dapo.py)."""
    said = solution_str.split(":")[-1].strip()
    correct = said == ground_truth
    return {"score": 1.0 if correct else -1.0, "acc": correct, "pred": said, "acc@1": correct, "nothing": None}


def of_verl(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    return compute_score("math", completions, answer)


def test_verl_s_dict_is_rewarded_by_its_score_and_its_numbers_are_figures():
    assert judged(of_verl, completion="so: 7", answer="7") == ["parts", 1.0, {"score": 1.0, "acc": 1.0}]
    assert judged(of_verl, completion="8", answer="7") == ["parts", -1.0, {"score": -1.0, "acc": 0.0}]
    weighed = judged(lambda **row: {"score": 1.0, "format": 0.5}, {"score": 1.0, "format": 2.0}, answer="7")
    assert weighed[:2] == ["parts", 2.0], "weights name the parts: then they are summed"
    kind, message, *_ = judged(lambda **row: {"score": "7", "acc": 1.0})
    assert (kind, message.split("returned")[0]) == ("fault", "part 'score': the recipe's reward ")


def accuracy_reward(completions: list[list[dict[str, str]]], solution: list[str], **kwargs) -> list[float | None]:
    """TRL's: a list of conversations to a list of numbers, None where it has no opinion."""
    return [float(one[0]["content"] == right) if right else None
            for one, right in zip(completions, solution, strict=True)]  # fmt: skip


def think_format_reward(completions: list[list[dict[str, str]]], **kwargs) -> list[float]:
    pattern = r"^<think>(?!.*<think>)(.*?)</think>.*$"
    return [1.0 if re.match(pattern, one[0]["content"], re.DOTALL) else 0.0 for one in completions]


def of_trl(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    said = [[{"role": "assistant", "content": completions}]]
    rewards = (accuracy_reward, think_format_reward)
    return {one.__name__: one(completions=said, solution=[answer])[0] for one in rewards}


def test_trl_s_reward_functions_are_parts_with_weights():
    weights = {"accuracy_reward": 1.0, "think_format_reward": 0.25}
    parts = {"accuracy_reward": 0.0, "think_format_reward": 1.0}
    assert judged(of_trl, weights, "<think>3+4</think>7", answer="7") == ["parts", 0.25, parts]
    kind, message, *_ = judged(of_trl, weights, answer="")
    assert (kind, message) == (
        "fault",
        "part 'accuracy_reward': the recipe's reward returned None (NoneType), not a number",
    )
    kind, message, *_ = judged(lambda **row: [1.0])
    assert (kind, message) == ("fault", "the recipe's reward returned [1.0] (list), not a number")


class Rubric:
    """verifiers': functions, some of them async, that take what they name of an episode, and their weights."""

    def __init__(self, funcs, weights):
        self.funcs, self.weights = funcs, weights

    async def score(self, **episode: Any) -> dict[str, float]:
        found = {}
        for one in self.funcs:
            value = one(**{name: episode[name] for name in inspect.signature(one).parameters})
            found[one.__name__] = float(await value if inspect.isawaitable(value) else value)
        return found


async def correct_answer(completion, answer) -> float:
    return 1.0 if completion[-1]["content"] == answer else 0.0


def brevity(completion) -> float:
    return -len(completion[-1]["content"]) / 100


RUBRIC = Rubric([correct_answer, brevity], [1.0, 0.5])


def of_verifiers(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    return asyncio.run(RUBRIC.score(completion=[{"role": "assistant", "content": completions}], answer=answer))


def test_a_rubric_of_verifiers_is_parts_with_its_weights():
    weights = dict(zip((one.__name__ for one in RUBRIC.funcs), RUBRIC.weights, strict=True))
    kind, reward, parts = judged(of_verifiers, weights, answer="7")
    assert (kind, parts) == ("parts", {"correct_answer": 1.0, "brevity": -0.01})
    assert reward == pytest.approx(0.995)
