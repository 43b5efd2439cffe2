"""The command: what it writes, prints and refuses, and that `areal check` refuses a file at its decisions."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.cli.main import app
from areal.convert.convert import convert
from areal.errors import ConfigError
from areal.spec.load import load_job
from areal.spec.problems import SpecError
from areal.workflow.recipe import load_recipe
from typer.testing import CliRunner

FILES = Path(__file__).parent / "files"


def run(*arguments):
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def test_the_command_writes_both_files_and_prints_three_lists(tmp_path):
    done = run(FILES / "rl.yaml", "own_key_of_the_script.depth=false", "--out", tmp_path / "out")
    assert done.exit_code == 0
    titles = [line for line in done.output.splitlines() if line[:1].islower()]
    assert [title.partition(" (")[0] for title in titles[:3]] == ["carried", "meaning differs", "dropped"]
    assert load_job(tmp_path / "out" / "job.yaml").metadata.name == "sums-first-try"
    load_recipe(tmp_path / "out" / "recipe.py")


def test_an_existing_file_of_another_content_is_kept(tmp_path):
    assert run(FILES / "rl.yaml", "--out", tmp_path).exit_code == 0
    assert run(FILES / "rl.yaml", "--out", tmp_path).exit_code == 0
    (tmp_path / "job.yaml").write_text("mine\n")
    again = run(FILES / "rl.yaml", "--out", tmp_path)
    assert isinstance(again.exception, ConfigError)
    assert (tmp_path / "job.yaml").read_text() == "mine\n"


@pytest.mark.parametrize("name", ["grpo.sh", "grpo.py", "ppo_ray.sh"])
def test_every_recipe_that_is_written_can_be_loaded(name, tmp_path):
    assert run(FILES / name, "GPUS=8", "--out", tmp_path).exit_code == 0
    load_recipe(tmp_path / "recipe.py")


def test_check_refuses_a_file_at_its_decisions(tmp_path):
    run(FILES / "grpo.py", "--out", tmp_path)
    with pytest.raises(SpecError) as refused:
        load_job(tmp_path / "job.yaml")
    asked = [problem for problem in refused.value.problems if problem.message.startswith("to be decided: ")]
    lines = (tmp_path / "job.yaml").read_text().splitlines()
    assert [int(problem.where.rpartition(":")[2]) for problem in asked] == [
        number for number, line in enumerate(lines, 1) if line.startswith("# decide:")
    ]
    assert len(asked) == len(refused.value.problems) > 0


def test_what_rules_refuse_becomes_a_decision(tmp_path):
    draft = convert(FILES / "rl.yaml", None, ["actor.use_decoupled_loss=false", "actor.recompute_logprob=false"])
    assert any("decoupled" in what for what in draft.decisions)
