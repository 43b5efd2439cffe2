"""`areal check` is the truth: what a run would refuse it refuses, with the same words, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from areal.admit.recipe_probe import RecipeParts, probe_recipe
from areal.cli.main import app, guarded
from areal.errors import ArealError, ExitCode
from areal.local.staging import StagingRequest, load, stage
from check_corpus import BROKEN, EXACT, GOOD_ROW
from support.tiny_job import RECIPE, make_tiny_job, shapes_of, write_job, write_weights

pytestmark = pytest.mark.component  # recipes are imported in processes of their own


@pytest.fixture(scope="module")
def good_parts(tmp_path_factory) -> RecipeParts:
    """Of the recipe that most broken jobs have, which is nothing's fault."""
    recipe = tmp_path_factory.mktemp("good") / "recipe.py"
    recipe.write_text(RECIPE)
    return probe_recipe(recipe)


@pytest.fixture
def folder(tmp_path, monkeypatch, good_parts) -> Path:
    def probed(recipe: Path, **options) -> RecipeParts:
        return good_parts if recipe.read_bytes() == RECIPE.encode() else probe_recipe(recipe, **options)

    monkeypatch.setattr("areal.admit.facts.probe_recipe", probed)
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    write_job(tmp_path, **EXACT)
    return tmp_path


def checked(folder: Path, *options: str) -> int:
    return guarded(lambda: app(["check", str(folder / "job.yaml"), *options]))


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_run_would_refuse_check_refuses_for_the_same_reason(name, folder, capsys):
    spoil, word = BROKEN[name]
    if "task" in name:
        pytest.importorskip("reasoning_gym")
    if "column that isn't there" in name:
        pytest.importorskip("datasets")
    spoil(folder)
    code = checked(folder)
    said = capsys.readouterr()
    assert "please report" not in said.err
    assert "fix:" in said.out + said.err
    request = StagingRequest(folder / "job.yaml")
    with pytest.raises(ArealError, match=word) as refused:
        stage(request, load(request), lambda text: None)
    assert refused.value.fix
    assert code == refused.value.exit_code
    assert code in (ExitCode.CONFIG, ExitCode.DATA)
    first = refused.value.message.splitlines()[-1].split(" [")[0].rpartition(": ")[2]
    assert first in said.out + said.err, "the same words"
    assert not (folder / "runs" / "tiny").exists()


def test_the_corpus_is_as_large_as_promised():
    assert len(BROKEN) >= 60


def test_a_good_job_is_fine_and_what_was_not_looked_at_is_said(folder, capsys):
    assert checked(folder) == ExitCode.DONE
    assert "not looked at" not in capsys.readouterr().out
    write_job(folder, **{**EXACT, "dataset": {"train": {"huggingFace": {"path": "openai/gsm8k"}}}})
    assert checked(folder, "--json") == ExitCode.DONE
    said = json.loads(capsys.readouterr().out)
    assert said["notLookedAt"] == ["dataset.train: openai/gsm8k on the Hugging Face hub"]


def test_twenty_thousand_rows_are_all_read(folder, capsys):
    (folder / "train.jsonl").write_bytes(GOOD_ROW * 19_999 + b"42\n")
    assert checked(folder) == ExitCode.DATA
    assert "train.jsonl:20000: a row is a JSON object, not int" in capsys.readouterr().out


def test_a_job_for_clusters_is_fine_here_with_a_warning(folder, capsys):
    write_job(folder, **{**EXACT, "model": {"uri": "pvc://models/digits"}})
    assert checked(folder) == ExitCode.DONE
    assert "only on a cluster: 'pvc://models/digits'" in " ".join(capsys.readouterr().out.split())


def test_a_service_for_rewards_is_told_of_where_there_will_be_one(folder, capsys):
    assert checked(folder) == ExitCode.DONE
    assert "one Redis, one reward service" in " ".join(capsys.readouterr().out.split())
    itself = "from areal.workflow import RLVRWorkflow\n\n\nclass Mine(RLVRWorkflow):\n    pass\n"
    (folder / "recipe.py").write_text(itself)
    rollout = {"workflow": "Mine", "maxSampleTokens": 16, "maxConcurrentRollouts": 8, "sampling": {"maxNewTokens": 4}}
    write_job(folder, rollout=rollout)
    assert checked(folder) == ExitCode.DONE
    said = " ".join(capsys.readouterr().out.split())
    assert "one Redis" in said
    assert "reward service" not in said


def test_a_disk_without_room_for_checkpoints_is_refused_with_the_arithmetic(folder, capsys, monkeypatch):
    config = json.loads((folder / "model" / "config.json").read_text()) | {
        "vocab_size": 130_987,  # 2²⁰ parameters
        "tie_word_embeddings": True,
    }
    (folder / "model" / "config.json").write_text(json.dumps(config))
    write_weights(folder / "model", shapes_of(config), "F32")
    usage = type("Usage", (), {"free": 10 << 20})
    monkeypatch.setattr("areal.admit.machine.shutil.disk_usage", lambda path: usage)
    assert checked(folder) == ExitCode.CONFIG
    said = " ".join(capsys.readouterr().out.split())
    assert "10 MiB free, the run needs 48 MiB: 2 + 1 checkpoints of 12 MiB and 3 versions of the weights" in said
