"""The recipe's reward function: called with what it declares, its result checked.

Whatever the function does wrong becomes a fault of the data that names its line; nothing it does becomes a score it did
not return.
"""

from __future__ import annotations

import math
import numbers
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from areal.errors import DataError
from areal.workflow.recipe import REWARD_ARGUMENTS, load_recipe

_TRACEBACK_CHARS = 8000


def make_judge(recipe_path: str) -> Callable[[Any], Any]:
    """Imports the recipe and returns what judges one item: `["score", x]` or `["fault", message, fix, traceback]`."""
    recipe = load_recipe(Path(recipe_path))
    reward = recipe.reward
    if reward is None:
        raise DataError(
            f"{recipe_path} defines no reward",
            fix="write `def reward(prompt, completions, prompt_ids, completion_ids, **row)` in it",
        )

    def judge(payload: dict[str, Any]) -> list[Any]:
        row = payload["row"]
        for name in REWARD_ARGUMENTS:
            row.pop(name, None)
        try:
            value = reward(
                prompt=payload["prompt"],
                completions=payload["completion"],
                prompt_ids=payload["prompt_ids"],
                completion_ids=payload["completion_ids"],
                **row,
            )
        except BaseException as error:  # SystemExit too: user code must not end the process quietly
            trace = "".join(traceback.format_exception(error.with_traceback(_beyond_here(error))))
            message = f"the recipe's reward raised {type(error).__name__}: {error}"
            return ["fault", message, "correct the reward function in the recipe", trace[-_TRACEBACK_CHARS:]]
        return _checked(value)

    return judge


def _beyond_here(error: BaseException) -> Any:
    return error.__traceback__.tb_next if error.__traceback__ is not None else None


def _checked(value: Any) -> list[Any]:
    fix = "return one finite float for the sample"
    if isinstance(value, numbers.Real) or type(value).__name__ in ("bool", "bool_"):
        try:
            score = float(value)
        except (OverflowError, ValueError) as error:
            return ["fault", f"the recipe's reward returned {value!r:.80}: {error}", fix, ""]
        if math.isfinite(score):
            return ["score", score]
        return ["fault", f"the recipe's reward returned {score}", fix, ""]
    return ["fault", f"the recipe's reward returned {value!r:.80} ({type(value).__name__}), not a number", fix, ""]
