"""Loading recipes: what they may define, and how a wrong one is refused."""

from __future__ import annotations

import os
import sys
import textwrap

import pytest
from areal.errors import ConfigError, DataError
from areal.rollout.worker.main import find_workflow
from areal.workflow.recipe import load_recipe
from areal.workflow.rlvr import MultiTurnWorkflow


@pytest.fixture
def recipe(tmp_path):
    def write(source: str):
        file = tmp_path / "recipe.py"
        file.write_text(textwrap.dedent(source))
        return load_recipe(file)

    return write


WHOLE = """
    from dataclasses import dataclass
    from areal.workflow import Episode, MultiTurnWorkflow, RolloutWorkflow

    @dataclass
    class Note:
        text: str

    def reward(prompt, completions, prompt_ids, completion_ids, answer="", **row):
        return float(completions == answer)

    class Patient(MultiTurnWorkflow):
        name = "patient"
        turn_discount = 0.5

    class Own(RolloutWorkflow):
        async def arun_episode(self, engine, row):
            return None

    def dataset(split):
        yield {"prompt": split}

    def train(ctx):
        return ctx
"""


def test_a_recipe_gives_its_reward_workflows_dataset_and_loop(recipe):
    loaded = recipe(WHOLE)
    assert loaded.reward("1", "2", [], [], answer="2", other=3) == 1.0
    assert sorted(loaded.workflows) == ["Own", "patient"]
    assert list(loaded.dataset("train")) == [{"prompt": "train"}]
    assert loaded.train(7) == 7
    assert loaded.compute_advantages is None
    assert len(loaded.digest) == 64


def test_an_imported_workflow_is_not_the_recipes_own(recipe):
    assert recipe("from areal.workflow import RLVRWorkflow").workflows == {}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.py does not exist"):
        load_recipe(tmp_path / "gone.py")


@pytest.mark.parametrize(
    ("source", "message", "fix"),
    [
        ("x = 1\nimport nowhere_at_all\n", r"recipe\.py:2: ModuleNotFoundError", "install nowhere_at_all"),
        ("x = (\n", r"recipe\.py:1: SyntaxError", "syntax"),
        ("def f():\n    return 1 / 0\n\nf()\n", r"recipe\.py:2: ZeroDivisionError", "correct this line"),
        ("raise SystemExit(3)\n", r"recipe\.py:1: SystemExit", "correct this line"),
        ("def reward(prompt, completions):\n    return 1\n", r"recipe\.py:1: .*wrong arguments", r"\*\*row"),
        (
            "\nasync def reward(prompt, completions, prompt_ids, completion_ids, **row):\n    return 1\n",
            "async",
            "plain",
        ),
        ("reward = 3\n", "not a function", "def reward"),
        ("def train():\n    pass\n", r"train\(\) can't be called", r"def train\(ctx\)"),
        ("def dataset():\n    pass\n", r"dataset\(\) can't be called", r"def dataset\(split\)"),
        (
            "from areal.workflow import RolloutWorkflow\nclass Half(RolloutWorkflow):\n    pass\n",
            "Half defines no",
            "arun_episode",
        ),
    ],
)
def test_a_wrong_recipe_is_one_error_with_line_and_fix(recipe, source, message, fix):
    with pytest.raises(DataError, match=message) as refused:
        recipe(source)
    assert refused.match(fix)


def test_a_recipe_that_imports_torch_is_refused(recipe, monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "torch.py").write_text("")
    try:
        with pytest.raises(DataError, match="imports torch"):
            recipe("import torch\n")
    finally:
        sys.modules.pop("torch", None)


def test_an_unknown_workflow_names_the_nearest(recipe):
    workflows = recipe(WHOLE).workflows
    assert find_workflow("patient", workflows).turn_discount == 0.5
    assert find_workflow("multi-turn") is MultiTurnWorkflow
    with pytest.raises(ConfigError, match="did you mean 'multi-turn'"):
        find_workflow("multiturn", workflows)
    with pytest.raises(ConfigError, match="derive a class"):
        find_workflow("zzz")


def test_a_recipe_leaves_nothing_beside_it_and_an_edit_of_the_same_moment_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "recipe.py"
    for score in ("0.25", "0.75"):
        file.write_text(f"def reward(prompt, completions, prompt_ids, completion_ids, **row):\n    return {score}\n")
        os.utime(file, (1e9, 1e9))
        assert load_recipe(file).reward("", "", [], []) == float(score)
    assert list(tmp_path.iterdir()) == [file]
