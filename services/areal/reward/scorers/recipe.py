"""The recipe's reward function: called with what it declares, its result checked.

Whatever the function does wrong becomes a fault of the data that names its line; nothing it does becomes a score it did
not return.
"""

import inspect
import json
import math
import numbers
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from areal.errors import DataError, line_in
from areal.workflow.episode import FIGURE_NAMES, is_figure_name
from areal.workflow.recipe import REWARD_ARGUMENTS, load_recipe

_TRACEBACK_CHARS = 8000
_SCORE = "score"  # of verl's dicts: the reward itself


def make_judge(recipe_path: str, weights: str = "null") -> Callable[[Any], Any]:
    """Imports the recipe and returns what judges one item.

    It answers `["score", x]`, `["parts", x, {name: part}]` or `["fault", message, fix, traceback]`. `weights` is
    `reward.weights` as JSON: how much each part counts.
    """
    counted: dict[str, float] | None = json.loads(weights)
    recipe = load_recipe(Path(recipe_path))
    reward = recipe.reward
    if reward is None:
        raise DataError(
            f"{recipe_path} defines no reward",
            fix="write `def reward(prompt, completions, prompt_ids, completion_ids, **row)` in it",
        )

    judge, name = judge_of(reward, counted), recipe.path.name

    def placed(payload: dict[str, Any]) -> list[Any]:
        said: list[Any] = judge(payload)
        if said[0] == "fault":
            said[1] += f" ({name}:{line_of_fault(reward, said[3])})"
        return said

    return placed


def line_of_fault(reward: Callable[..., Any], trace: str) -> int:
    """The line of the recipe that a traceback names last, or where `reward` begins."""
    if (code := getattr(inspect.unwrap(reward), "__code__", None)) is None:
        return 1
    return line_in(trace, code.co_filename) or code.co_firstlineno


def judge_of(reward: Callable[..., Any], counted: Mapping[str, float] | None) -> Callable[[Any], Any]:
    """What judges one item by a recipe's `reward`; `counted` are the weights of its parts."""

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
            beyond_here = error.__traceback__ and error.__traceback__.tb_next
            trace = "".join(traceback.format_exception(error.with_traceback(beyond_here)))
            message = f"the recipe's reward raised {type(error).__name__}: {error}"
            return ["fault", message, "correct the reward function in the recipe", trace[-_TRACEBACK_CHARS:]]
        if not isinstance(value, Mapping):
            return _checked(value)
        return _scored(value) if counted is None and _SCORE in value else _parts(value, counted)

    return judge


def _scored(told: Mapping[Any, Any]) -> list[Any]:
    """verl's form: the reward is `score`; what else is a number is recorded, a text beside it is not."""
    kind, *value = _checked(told[_SCORE])
    if kind == "fault":
        return ["fault", f"part {_SCORE!r}: {value[0]}", *value[1:]]
    others = {name: _checked(part) for name, part in told.items() if is_figure_name(name)}
    return ["parts", value[0], {name: number for name, (said, number, *_) in others.items() if said == "score"}]


def _parts(parts: Mapping[Any, Any], counted: Mapping[str, float] | None) -> list[Any]:
    """The weighted sum of a reward's parts, and the parts."""
    checked: dict[str, float] = {}
    for name, part in parts.items():
        if not is_figure_name(name):
            said = f"the recipe's reward returned a part named {name!r:.80}"
            return ["fault", said, f"name it {FIGURE_NAMES}", ""]
        kind, *value = _checked(part)
        if kind == "fault":
            return ["fault", f"part {name!r}: {value[0]}", *value[1:]]
        checked[name] = value[0]
    weights = dict.fromkeys(checked, 1.0) if counted is None else counted
    if not checked or weights.keys() - checked.keys():
        lacking = ", ".join(sorted(weights.keys() - checked.keys())) or "any"
        fix = "return every part that reward.weights names, 0.0 where the answer has earned none of it"
        return ["fault", f"the recipe's reward returned no part {lacking}", fix, ""]
    return ["parts", sum(weight * checked[name] for name, weight in weights.items()), checked]


def _checked(value: Any) -> list[Any]:
    fix = "return one finite float for the sample, or a dict of them by name"
    if isinstance(value, numbers.Real) or type(value).__name__ in ("bool", "bool_"):
        try:
            score = float(value)
        except (OverflowError, ValueError) as error:
            return ["fault", f"the recipe's reward returned {value!r:.80}: {error}", fix, ""]
        return ["score", score] if math.isfinite(score) else ["fault", f"the recipe's reward returned {score}", fix, ""]
    return ["fault", f"the recipe's reward returned {value!r:.80} ({type(value).__name__}), not a number", fix, ""]
