"""What strangers bring: a job with one thing wrong is refused for it, a good one never is."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from areal.cli.main import app, guarded
from areal.errors import ExitCode
from strangers_jobs import BROKEN, EXACT, draw
from support.tiny_job import make_tiny_job, write_job

pytestmark = pytest.mark.component  # rewards are asked in processes of their own


def checked(folder: Path, *options: str) -> int:
    return guarded(lambda: app(["check", str(folder / "job.yaml"), *options]))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_job_is_refused_for_what_is_wrong(name, tmp_path, monkeypatch, capsys):
    spoil, word = BROKEN[name]
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    write_job(tmp_path, **EXACT)
    spoil(tmp_path)
    assert checked(tmp_path) == ExitCode.CONFIG
    said = capsys.readouterr()
    assert word in " ".join((said.out + said.err).split())
    assert "fix:" in said.out + said.err


def good(folder: Path, seed: int, monkeypatch, capsys) -> None:
    monkeypatch.chdir(folder)
    draw(folder, random.Random(seed))
    code = checked(folder, "--json")
    said = json.loads(capsys.readouterr().out)
    assert code == ExitCode.DONE, (seed, said["findings"])


@pytest.mark.parametrize("seed", range(20))
def test_a_good_job_is_not_refused(seed, tmp_path, monkeypatch, capsys):
    good(tmp_path, seed, monkeypatch, capsys)


@pytest.mark.nightly
@pytest.mark.parametrize("round_of", range(5))
def test_two_hundred_good_jobs_are_never_refused(round_of, tmp_path, monkeypatch, capsys):
    for seed in range(200):
        folder = tmp_path / str(seed)
        folder.mkdir()
        good(folder, 1000 + seed, monkeypatch, capsys)


def test_what_was_not_read_is_said_and_forbids_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    write_job(tmp_path, **EXACT)
    monkeypatch.setattr("areal.data.peek.TEXT_BYTES", 900)
    monkeypatch.setattr("areal.data.peek.LOOKED_AT", 10)
    assert checked(tmp_path, "--json") == ExitCode.DONE
    told = json.loads(capsys.readouterr().out)["notLookedAt"]
    assert "dataset.train: rows behind the first 10 were read, but not rendered" in told
    assert any(words.startswith("dataset.train: only the first ") for words in told)


def test_a_loss_that_is_none_is_found_on_a_made_up_batch(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    with (tmp_path / "recipe.py").open("a") as recipe:
        recipe.write("\n\ndef compute_loss(batch, outputs):\n    return 'low'\n")
    assert checked(tmp_path) == ExitCode.CONFIG
    assert "compute_loss" in capsys.readouterr().out


def test_a_reward_that_needs_a_service_is_not_looked_at(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    head = "import os, socket\ndef reward(prompt, completions, prompt_ids, completion_ids, **row):\n    "
    for body, words in {
        "return float(socket.create_connection(('127.0.0.1', 9)) is None)": "a service that doesn't answer here",
        "return float(os.environ['NO_SUCH_KEY_HERE'])": "a variable of the environment",
        "import no_such_package_here": "a package that isn't installed here",
    }.items():
        (tmp_path / "recipe.py").write_text(head + body + "\n")
        assert checked(tmp_path, "--json") == ExitCode.DONE
        assert words in json.dumps(json.loads(capsys.readouterr().out)["notLookedAt"])
