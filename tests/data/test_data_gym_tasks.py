"""Rows of reasoning-gym's tasks are JSON that the tasks score as their own entries, or the task is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.data.prepare import prepare
from areal.data.source import ReasoningGymSource
from areal.errors import DataError

reasoning_gym = pytest.importorskip("reasoning_gym")

REFUSED = {  # and a word of the sentence
    "arc_agi": "score_answer gives the task's own answer 1.0 here and 0.05",
    "rearc": "score_answer gives the task's own answer 1.0 here and 0.05",
    "composite": "Must specify at least one dataset",
}
ODD = ("gsm_symbolic", "codeio", "graph_color", "rearc", "composite")
"""Fractions, numpy's numbers, keys that are no text, tuples that are compared, a task that needs a config."""


def tasks() -> list[str]:
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


def test_what_a_task_makes_is_scored_from_the_file_as_by_the_library(tmp_path: Path, pytestconfig) -> None:
    rows = pytestconfig.getoption("--gym-rows")
    wrong = {}
    for task in tasks() if rows else ODD:
        size = rows or 2
        try:
            stored = list(prepare(ReasoningGymSource(task, size=size, seed=7), tmp_path / task))
        except DataError as error:
            if task not in REFUSED or REFUSED[task] not in str(error) or task not in str(error):
                wrong[task] = str(error)
            continue
        assert task not in REFUSED
        made = reasoning_gym.create_dataset(task, size=size, seed=7)
        for row, entry in zip(stored, made, strict=True):
            scores = [made.score_answer(each["answer"], each) for each in (row, entry)]
            if scores[0] != scores[1]:
                wrong[task] = f"scored {scores[0]} from the file, {scores[1]} by the library"
    assert wrong == {}
