"""`areal try`: one row through a project's reward or workflow, with an answer of one's own or the model's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from areal.cli.main import app
from areal.errors import ConfigError
from areal.local.starter import begin
from areal_trainer.init_model import init_model
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("model") / "new-1m"
    init_model(place)
    return place


def project(kind: str, place: Path, model: Path) -> Path:
    begin(kind, place, str(model))
    (place / "data").mkdir()
    for name in ("train", "heldout"):
        (place / f"data/{name}.csv").write_text("prompt,answer\nabc=,cba\nxy=,yx\n")
    return place / "job.yaml"


def tried(job: Path, *words: str) -> tuple[int, dict]:
    done = CliRunner().invoke(app, ["try", str(job), *words, "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_a_reward_is_called_with_the_row_and_its_parts_are_told(tmp_path, model):
    code, told = tried(project("reward", tmp_path / "words", model), "--row", "2", "--answer", "yy")
    assert code == 0
    assert told["row"].endswith("train.csv:3")
    assert told["parts"] == {"right": 0.0, "near": 0.5, "letters": 1.0}
    assert told["reward"] == pytest.approx(0.2 * 0.5)
    assert [(turn["prompt"], turn["answer"]) for turn in told["turns"]] == [("xy=", "yy")]
    assert told["seconds"].keys() == {"answers", "rewards"}


def test_a_workflow_of_the_recipe_is_played_turn_by_turn(tmp_path, model):
    job = project("environment", tmp_path / "words", model)
    code, told = tried(job, "--answer", "cxx")
    assert (code, len(told["turns"])) == (0, 2)
    assert told["reward"] == pytest.approx(1 / 3)
    assert tried(job, "--answer", "cba")[1]["reward"] == 1.0


def test_what_the_users_code_raises_is_told_with_its_line_whatever_it_prints(tmp_path, model):
    job = project("task", tmp_path / "words", model)
    recipe = job.with_name("recipe.py")
    recipe.write_text("def reward(prompt, completions, *ids, **row):\n    print('hello')\n    return 1 / len('')\n")
    recipe.write_text(recipe.read_text().replace("*ids", "prompt_ids, completion_ids"))
    code, told = tried(job, "--answer", "cba")
    assert (code, told["where"], told["reward"]) == (65, f"{recipe}:3", None)
    assert "ZeroDivisionError" in told["error"]
    environment = project("environment", tmp_path / "game", model)
    text = environment.with_name("recipe.py").read_text()
    environment.with_name("recipe.py").write_text(text.replace("return self.question, {}", "return self.qestion, {}"))
    code, told = tried(environment, "--answer", "cba")
    assert code == 65
    assert "qestion" in told["error"]
    assert told["where"].startswith(f"{environment.with_name('recipe.py')}:")


def test_what_can_t_be_tried_is_refused_with_what_to_do(tmp_path, model):
    job = project("task", tmp_path / "words", model)
    for words, said in (
        (["--row", "3", "--answer", ""], "end before row 3"),
        (["reward.verifier=code", "--answer", ""], "no verifier 'code'"),
        (["rollout.workflow=agent", "--answer", ""], "has neither"),
    ):
        refused = CliRunner().invoke(app, ["try", str(job), *words]).exception
        assert isinstance(refused, ConfigError), refused
        assert said in refused.message
        assert refused.fix


@pytest.mark.component
def test_the_jobs_model_answers_where_nobody_else_does(tmp_path, model):
    job, answers = project("task", tmp_path / "words", model), []
    while not any(answers) and len(answers) < 4:  # a new model's first token ends its answer now and then
        code, told = tried(job)
        assert code == 0
        answers.append(told["turns"][0]["answer"])
        assert told["reward"] == (answers[-1] == told["turns"][0]["prompt"][-2::-1])
    assert 0 < len(answers[-1]) <= 64
