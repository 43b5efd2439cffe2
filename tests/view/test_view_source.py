"""Functions that travel as source: what is written runs alone and answers the same; what can't travel is named."""

from __future__ import annotations

import functools
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree
from collections import Counter
from collections import OrderedDict as Ordered
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from areal.errors import ConfigError
from areal.workflow.recipe import load_recipe
from areal_view.source import recipe_text

BONUS = 0.25
WORDS = ["a", ("b", 1), {"c": {2, 3}}, float("inf"), b"\x00", None]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.I)
LOCK = open(__file__)  # noqa: SIM115 (an object that no text can hold)
unrelated: object = LOCK
lower = lambda text: text.strip().lower()  # noqa: E731 (as people write it in a notebook)


class Marks:
    """A class of one's own, with a base of one's own, and a decorator around a method."""

    base = BONUS

    @staticmethod
    def of(text: str) -> float:
        return Marks.base if text else 0.0


class Better(Marks):
    @functools.cached_property
    def worth(self) -> float:
        return self.base + math.sqrt(4)


@functools.lru_cache(maxsize=8)
def parsed(text: str) -> list[str]:
    return NUMBER.findall(lower(text))


def even(count: int) -> bool:
    return count == 0 or odd(count - 1)


def odd(count: int) -> bool:
    return count != 0 and even(count - 1)


def graded(text: str, *, scale: float = BONUS) -> Any:
    """Uses an own class, two functions that call each other, imports of three shapes, constants, a cached helper."""
    unrelated = Better().worth  # hides the global of this name, which could not travel
    root = xml.etree.ElementTree.fromstring("<a/>").tag
    found: Ordered[str, int] = Ordered(Counter(parsed(text)))
    return [unrelated, Marks.of(text), even(4), scale, list(found), WORDS, np.float64(2).item(), root]


def ran(text: str, expression: str, folder: Path) -> str:
    """What an expression is in a Python that has nothing but the text."""
    file = folder / "written.py"
    file.write_text(f"{text}\n\nprint(repr({expression}))\n")
    done = subprocess.run([sys.executable, "-P", file], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + text
    return done.stdout.strip()


@pytest.mark.component
def test_a_function_answers_the_same_in_a_python_that_has_its_text_alone(tmp_path):
    text = recipe_text({"reward": graded})
    assert ran(text, "reward(' 12 and 7 ')", tmp_path) == repr(graded(" 12 and 7 "))
    assert "LOCK" not in text
    assert __file__ not in text


@pytest.mark.component
def test_what_a_closure_holds_travels_as_values_and_functions(tmp_path):
    def made(weight, helper):
        def scored(text):
            return weight * helper(text)

        return scored

    assert ran(recipe_text({"reward": made(0.5, Marks.of)}), "reward('x')", tmp_path) == "0.125"


def held(scored: Any = LOCK) -> None: ...


class Judge:
    def reward(self, text: str) -> float:
        return 0.0


def opens(text: str) -> Any:
    return LOCK.read()


def through(text: str) -> Any:
    return opens(text)


def much(text: str) -> bool:
    return text in MUCH


MUCH = "x" * (300 << 10)
partial = functools.partial(graded, scale=1.0)


def counted():
    count = 0

    def reward(text):
        nonlocal count
        count += 1
        return count

    return reward


def colliding():
    BONUS = 2.0

    def reward(text):
        return BONUS + len(parsed(text)) + graded(text)[3]

    return reward


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (opens, r"LOCK, which opens needs, can't travel .*: it is an object of _io\.TextIOWrapper"),
        (through, "LOCK, which opens needs"),
        (held, "LOCK, which held needs"),
        (Judge().reward, "reward can't travel .*: it is a method of Judge"),
        (lambda text: 0.0, "reward can't travel .*: it is a lambda"),
        (partial, r"reward can't travel .*: it is an object of functools\.partial"),
        (much, "MUCH, which much needs, .*: it takes 307,202 characters"),
        (counted(), "its source alone is no Python .*nonlocal"),
        (colliding(), "BONUS, which .* needs, .*: another thing that it needs has the same name"),
        (eval("lambda text: 1"), "reward can't travel"),
    ],
)
def test_what_can_t_travel_is_refused_by_name(function, why):
    with pytest.raises(ConfigError, match=why):
        recipe_text({"reward": function})


def test_a_function_without_source_is_refused(tmp_path):
    scope: dict[str, Any] = {}
    exec("def reward(text):\n    return 1.0\n", scope)
    with pytest.raises(ConfigError, match="its source can't be read"):
        recipe_text({"reward": scope["reward"]})


def test_what_an_installed_package_has_is_imported():
    assert "from json import loads as reward" in recipe_text({"reward": __import__("json").loads})


CELLS = [
    "import re\nfrom areal.workflow import RolloutWorkflow\nLIMIT = 3\nNUMBER = re.compile('[0-9]+')",
    "def helper(text):\n    return len(NUMBER.findall(text)) > LIMIT",
    "class Asking(RolloutWorkflow):\n    name = 'asking'\n    async def arun_episode(self, engine, row):\n"
    "        return helper(row['prompt'])",
    "from areal_view.source import recipe_text\nprint(recipe_text({'Asking': Asking, 'helper': helper}))",
]


@pytest.mark.component
def test_functions_and_classes_of_a_notebook_s_cells_travel(tmp_path):
    """A notebook's cells are no file, and its classes' module has none."""
    notebook = tmp_path / "cells.ipynb"
    cells = [{"cell_type": "code", "metadata": {}, "source": [cell]} for cell in CELLS]
    notebook.write_text(json.dumps({"cells": cells}))
    program = Path(__file__).parents[1] / "support" / "notebook.py"
    done = subprocess.run([sys.executable, program, notebook], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    file = tmp_path / "recipe.py"
    file.write_text(done.stdout.partition("PRINTED")[0])
    recipe = load_recipe(file)
    assert list(recipe.workflows) == ["asking"]
    assert vars(recipe.module)["helper"]("1 2 3 4")
