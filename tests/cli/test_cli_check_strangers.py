"""What strangers bring: a job with one thing wrong is refused for it, a good one never is."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from areal.admit.episode_probe import dry_run
from areal.cli.main import app, guarded
from areal.errors import DataError, ExitCode
from areal.spec.load import load_job
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
    assert checked(tmp_path) in (ExitCode.CONFIG, ExitCode.DATA)
    said = capsys.readouterr()
    assert word in " ".join((said.out + said.err).split())
    assert "fix:" in said.out + said.err


def refused(folder: Path, seed: int, monkeypatch, capsys) -> list[dict[str, Any]]:
    """The errors that check finds in the good job of this seed, or its code where it says none."""
    monkeypatch.chdir(folder)
    draw(folder, random.Random(seed))
    code = checked(folder, "--json")
    found = json.loads(capsys.readouterr().out)["findings"]
    errors = [one for one in found if one["severity"] == "error"]
    return errors or ([{"code": code}] if code != ExitCode.DONE else [])


@pytest.mark.parametrize("seed", range(20))
def test_a_good_job_is_not_refused(seed, tmp_path, monkeypatch, capsys):
    assert refused(tmp_path, seed, monkeypatch, capsys) == []


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("round_of", range(5))
def test_two_hundred_good_jobs_are_never_refused(round_of, tmp_path, monkeypatch, capsys):
    for seed in range(1000 + 200 * round_of, 1200 + 200 * round_of):
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert refused(folder, seed, monkeypatch, capsys) == [], seed


def test_what_was_not_read_is_said_and_forbids_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    write_job(tmp_path, **EXACT)
    monkeypatch.setattr("areal.data.snapshot.TEXT_BYTES", 900)
    monkeypatch.setattr("areal.data.snapshot.LOOKED_AT", 10)
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
    assert checked(tmp_path) == ExitCode.DATA
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


ROLLOUT = {"maxSampleTokens": 16, "sampling": {"maxNewTokens": 4}}
WORKFLOW = """
from areal.workflow import Episode, GenerationRequest, RolloutWorkflow, Sequence


class Mine(RolloutWorkflow):
    async def arun_episode(self, engine, row):
        prompt = engine.prompt(row)
        result = await engine.agenerate(GenerationRequest(prompt.ids))
        return Episode([Sequence.of(prompt.ids, result, REWARD)])
"""
AGENT = """
import json, os, sys, urllib.request

row = json.load(sys.stdin)
asked = {"model": "m", "messages": [{"role": "user", "content": row["prompt"]}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(asked).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
answer = json.load(urllib.request.urlopen(request))
print(2.0 if isinstance(answer["choices"][0]["message"]["content"], str) else 0.0)
"""


def told(folder: Path, capsys) -> tuple[int, str]:
    code = checked(folder, "--json")
    return code, capsys.readouterr().out


def test_a_reward_is_shown_for_right_wrong_and_empty_answers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    head = "def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):\n    return "
    (tmp_path / "recipe.py").write_text(f"{head}float(completions == answer)\n")
    code, said = told(tmp_path, capsys)
    shown = "of 4 rows: right answers 1, 1, 1, 1; wrong answers 0, 0, 0, 0; empty answers 0, 0, 0, 0"
    assert (code, ["reward", shown] in json.loads(said)["readAs"]) == (ExitCode.DONE, True)
    (tmp_path / "recipe.py").write_text(f"{head}1.0 if completions[0] else 0.0\n")
    code, said = told(tmp_path, capsys)
    assert code == ExitCode.DATA
    assert "recipe.py:2: the recipe's reward raised IndexError: string index out of range" in said
    assert "train.jsonl:1, answer ''" in said


def test_a_workflow_plays_scripted_episodes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    write_job(tmp_path, rollout={**ROLLOUT, "workflow": "Mine"})
    (tmp_path / "recipe.py").write_text(WORKFLOW.replace("REWARD", "1.0"))
    code, said = told(tmp_path, capsys)
    assert (code, "right answers 1; wrong answers 1; empty answers 1" in said) == (ExitCode.DONE, True), said
    (tmp_path / "recipe.py").write_text(WORKFLOW.replace("REWARD", 'float(row["solution"])'))
    code, said = told(tmp_path, capsys)
    assert code == ExitCode.DATA
    assert "recipe.py:9: KeyError: 'solution' (for " in said


def _parquet(folder: Path) -> dict[str, Any]:
    from pyarrow import Table, parquet

    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    parquet.write_table(Table.from_pylist(rows), folder / "rows-0.parquet")
    return {"huggingFace": {"path": "rows-*.parquet"}}


def _saved(folder: Path) -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    datasets.Dataset.from_list(rows).save_to_disk(str(folder / "saved"))
    return {"huggingFace": {"path": "saved"}}


def _gym(folder: Path) -> dict[str, Any]:
    pytest.importorskip("reasoning_gym")
    return {"reasoningGym": {"task": "chain_sum", "size": 20}}


NIGHTLY = pytest.mark.nightly  # they import libraries for seconds


@pytest.mark.parametrize("made", [_parquet, *(pytest.param(one, marks=NIGHTLY) for one in (_saved, _gym))])
def test_a_reward_is_asked_of_the_rows_of_every_kind_of_source(made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    write_job(tmp_path, dataset={"train": made(tmp_path)}, evaluation=None)
    head = "def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):\n    return "
    (tmp_path / "recipe.py").write_text(f"{head}float(completions == answer)\n")
    _, said = told(tmp_path, capsys)
    assert "of 4 rows: right answers 1, 1, 1, 1; wrong" in str(dict(json.loads(said)["readAs"])["reward"])
    (tmp_path / "recipe.py").write_text(f"{head}float(completions == row['solution'])\n")
    code, said = told(tmp_path, capsys)
    assert (code, "KeyError: 'solution' (for " in said) == (ExitCode.DATA, True)


def test_a_data_file_that_is_missing_is_no_name_on_the_hub(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    for path in ("data/trian.parquet", "data/trian-*.parquet"):
        write_job(tmp_path, dataset={"train": {"huggingFace": {"path": path}}}, evaluation=None)
        code, said = told(tmp_path, capsys)
        assert code in (ExitCode.CONFIG, ExitCode.DATA), said
        assert path in said
        assert "hub" not in said


def test_a_workflow_that_fails_for_some_answers_is_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    write_job(tmp_path, rollout={**ROLLOUT, "workflow": "Mine"})
    (tmp_path / "recipe.py").write_text(WORKFLOW.replace("REWARD", "1.0 / (len(result.output_ids) - 1)"))
    code, said = told(tmp_path, capsys)
    assert code == ExitCode.DONE, said
    assert "recipe.py:9: ZeroDivisionError" in said


def test_an_agents_command_is_started_with_a_session(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    (tmp_path / "model" / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    agent = {"command": [sys.executable, "a.py"]}
    spec = load_job(write_job(tmp_path, recipe=None, rollout={**ROLLOUT, "workflow": "agent", "agent": agent})).spec
    model = str(tmp_path / "model")
    item = {"row": {"prompt": "1=", "answer": "1"}, "place": "x:1", "right": "1", "tokenizer": model, "model": model}
    (tmp_path / "a.py").write_text(AGENT)

    async def score(asked):
        return 0.0

    played = dry_run(None, spec, item, score)
    assert played.given == ("right answers 2", "wrong answers 2", "empty answers 2")
    (tmp_path / "a.py").write_text("import sys\n\nsys.exit('no key in the drawer')\n")
    with pytest.raises(DataError, match="no key in the drawer"):
        dry_run(None, spec, item, score)


def test_gpus_that_are_not_there_are_refused_as_a_run_refuses_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    make_tiny_job(tmp_path)
    write_job(tmp_path, **EXACT, trainer={"gpus": 8, "gpuMemory": "79Gi"})
    code, said = told(tmp_path, capsys)
    assert (code, "the job asks for 8 GPUs on this machine (trainer 8), and it shows 0" in said) == (64, True), said


def test_a_model_that_another_run_makes_is_named_with_its_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    (tmp_path / "scores.yaml").write_text("metadata: {name: scores}\n")
    write_job(tmp_path, **{**EXACT, "reward": {"verifier": "model", "model": {"path": "runs/scores/model"}}})
    code, said = told(tmp_path, capsys)
    assert (code, "The run scores makes it: `areal run scores.yaml`; or correct reward.model.path." in said) == (
        64,
        True,
    )


@pytest.mark.parametrize(
    ("block", "name", "word"),
    [
        ("algorithm", "lr", "spec.optimizer.learningRate"),
        ("algorithm", "epochs", "spec.algorithm.maxSteps"),
        ("dataset", "csv", "huggingFace: {path: FILE}"),
    ],
)
def test_a_foreign_name_is_answered_with_ours(block, name, word, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    text = (tmp_path / "job.yaml").read_text()
    where = "    train:\n" if block == "dataset" else f"  {block}:\n"
    deep = " " * (6 if block == "dataset" else 4)
    (tmp_path / "job.yaml").write_text(text.replace(where, f"{where}{deep}{name}: 3\n", 1))
    code, said = told(tmp_path, capsys)
    assert (code, word in said) == (ExitCode.CONFIG, True), said


@pytest.mark.parametrize(
    ("head", "word"),
    [
        ("def reward(completions, **kwargs):", "TRL's takes and returns lists"),
        ("def reward(data_source, solution_str, ground_truth, extra_info=None):", "of verl's: `return theirs("),
        ("def compute_score(data_source, solution_str, ground_truth, extra_info=None):", "verl's name for a reward"),
    ],
)
def test_a_reward_of_another_framework_is_refused_with_what_to_write(head, word, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    (tmp_path / "recipe.py").write_text(f"{head}\n    return 1.0\n")
    code, said = told(tmp_path, capsys)
    assert (code in (ExitCode.CONFIG, ExitCode.DATA), word in said) == (True, True), said
