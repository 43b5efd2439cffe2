"""Projects that `areal new` begins: their tests pass, their jobs are accepted, nothing is written over."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from areal.cli.main import app
from areal.errors import ConfigError
from areal.local.starter import KINDS, begin, copy_examples
from areal.spec import load_job
from areal_trainer.init_model import init_model
from typer.testing import CliRunner

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*words: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("rows") / "words"
    begin("task", place)
    run("rows.py", cwd=place)
    return place / "data"


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_s_own_test_passes_and_its_job_is_fine(kind, tmp_path, rows):
    made = tmp_path / "My Words"
    shown = CliRunner().invoke(app, ["new", kind, str(made)])
    assert shown.exit_code == 0, shown.output
    assert {file.name for file in made.iterdir()} == {
        "README.md", "job.yaml", "recipe.py", "rows.py", "start.yaml", "test_recipe.py",
    }  # fmt: skip
    assert "$" not in "".join(file.read_text() for file in made.iterdir())
    assert " passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "test_recipe.py", cwd=made)
    again = CliRunner().invoke(app, ["new", kind, str(tmp_path / "again"), "--json"])
    assert {Path(file).name for file in json.loads(again.output)["files"]} == {file.name for file in made.glob("*.*")}
    (made / "data").symlink_to(rows)
    init_model(made / "models/new-1m")
    init_model(made / "runs/my-words-start/model")
    for job in ("start.yaml", "job.yaml"):
        assert "is fine" in run("-m", "areal.cli.main", "check", job, cwd=made)


def test_a_model_of_one_s_own_is_the_job_s(tmp_path):
    begin("task", tmp_path / "sums", "models/Qwen3-0.6B")
    assert load_job(tmp_path / "sums/job.yaml").spec.model.path == "models/Qwen3-0.6B"


def test_nothing_is_written_over_and_a_name_must_do_for_a_job(tmp_path):
    (tmp_path / "sums").mkdir()
    (tmp_path / "sums/recipe.py").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds recipe\.py already"):
        begin("task", tmp_path / "sums")
    assert [file.name for file in (tmp_path / "sums").iterdir()] == ["recipe.py"]
    with pytest.raises(ConfigError, match="no name for a job"):
        begin("task", tmp_path / "123")
    assert isinstance(CliRunner().invoke(app, ["new", "toy", str(tmp_path / "x")]).exception, ConfigError)


def test_copied_examples_say_nothing_that_only_a_checkout_can_follow(tmp_path):
    jobs = copy_examples(tmp_path / "mine")
    assert [job.name for job in jobs] == sorted(job.name for job in EXAMPLES.glob("*.yaml"))
    for job in jobs:
        text = job.read_text()
        assert not re.search(r"^#     (make|tools/)", text, re.M), job
        for named in re.findall(r"(?<!\S)((?:examples|requirements)/[\w.-]+\.\w+)", text):
            assert (tmp_path / "mine" / named).is_file(), f"{job}: {named}"
    with pytest.raises(ConfigError, match="there already"):
        copy_examples(tmp_path / "mine")
