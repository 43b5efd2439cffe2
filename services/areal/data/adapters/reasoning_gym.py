"""reasoning-gym tasks: generated questions with answers that can be verified.

A row is the library's own entry (question, answer, metadata), so its `score_answer` takes it as it is, and `prompt`. A
task whose `score_answer` judges its own answer otherwise once the entry is JSON is refused: its rewards would be wrong.
"""

import warnings
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import orjson

from areal.data.rows import encode
from areal.data.source import ReasoningGymSource, describe
from areal.distribution import install
from areal.errors import ConfigError, DataError


def read(source: ReasoningGymSource) -> Iterator[tuple[str, dict[str, Any], bytes | None]]:
    """Yields `size` generated rows; the same ones for the same task, config, seed and library version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of a dependency
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
    except ImportError:
        raise ConfigError(
            "this dataset needs the package `reasoning-gym`", fix=f"install it: {install('data')}"
        ) from None
    if source.task not in DATASETS:
        near = get_close_matches(source.task, DATASETS, n=3)
        raise DataError(
            f'reasoning-gym has no task "{source.task}"',
            fix=f"did you mean {' or '.join(near)}?" if near else "choose one of the tasks in reasoning-gym's gallery",
        )
    what = describe(source)
    try:
        generated = reasoning_gym.create_dataset(source.task, size=source.size, seed=source.seed, **source.config)
    except (TypeError, ValueError, AssertionError) as error:
        raise DataError(f"{what}: {error}", fix="correct reasoningGym.config in the job") from None
    for number, entry in enumerate(generated):
        place = f"{what}, row {number}"
        row = {"prompt": entry["question"], **entry}
        if number == 0:
            _refuse_if_scored_otherwise(generated, row, place)
        yield place, row, None


def _refuse_if_scored_otherwise(task: Any, row: dict[str, Any], place: str) -> None:
    """Raises DataError where the task's own answer loses worth once its entry is read from a file."""
    before, after = (_score(task, each) for each in (row, orjson.loads(encode(row, place))))
    if before != after:
        raise DataError(
            f"{place}: score_answer gives the task's own answer {before} here and {after} once the row is JSON",
            fix="choose another task, or write rows with a prompt and an answer to a file, for dataset.train.jsonl",
        )


def _score(task: Any, row: dict[str, Any]) -> float | None:
    """What the task gives for its own answer; None where it has none that it can judge."""
    try:
        return float(task.score_answer(row["answer"], row))
    except Exception:  # a task's own code
        return None
