"""The tools of a cluster: a run directory is prepared once, and accounted for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from areal.admit import prepare
from areal.admit.cluster import resolve_for_pods
from areal.errors import ConfigError, DataError
from areal.ledger.evidence import EvidenceLog, TrainedGroup
from areal.ledger.journal import Journal
from areal.local import finish
from areal.plan import ResolvedJob, RunLayout
from areal.plan.cluster_names import ENV_CLEAN
from areal.spec import load_job
from support.hub_server import COMMIT, hub_of
from support.tiny_job import RECIPE, make_tiny_job, shapes_of, write_job, write_weights

NO_ROLLOUTS = {"rollout": None, "algorithm": None}


def in_pods(folder: Path, recipe: str = RECIPE, **blocks: object) -> ResolvedJob:
    """The tiny job, resolved for pods whose mounts are folders of the test."""
    if not (folder / "model").exists():
        make_tiny_job(folder)
    (folder / "recipe.py").write_text(recipe)
    sources = {
        "model": {"path": str(folder / "model")},
        "recipe": {"file": str(folder / "recipe.py")},
        "dataset": {
            "train": {"jsonl": str(folder / "train.jsonl")},
            "evaluation": {"jsonl": str(folder / "heldout.jsonl")},
        },
    }
    job = load_job(write_job(folder, **{**sources, **blocks}))
    run_dir = folder / "run"
    run_dir.mkdir(exist_ok=True)
    resolved = resolve_for_pods(job, namespace="team", uid="u-1", recipe_source=None)
    return resolved.model_copy(update={"run_dir": run_dir, "recipe_path": run_dir / "recipe" / "recipe.py"})


def test_a_prepared_run_has_all_that_roles_expect_and_stays_as_it_is(tmp_path):
    resolved = in_pods(tmp_path)
    assert prepare.run(resolved) == "dataset train: 64 rows; dataset evaluation: 64 rows"
    layout = resolved.layout
    assert ResolvedJob.load(layout.root) == resolved
    assert resolved.recipe_path is not None
    for folder in (layout.fences, layout.journal.parent, layout.trajectories, layout.weights, layout.logs):
        assert folder.is_dir(), folder
    assert not layout.access.exists(), "secrets are not a volume's business"
    before = resolved.recipe_path.read_text()
    (tmp_path / "recipe.py").write_text("raise SystemExit\n")
    assert "prepared already" in prepare.run(resolved)
    assert resolved.recipe_path.read_text() == before
    with pytest.raises(ConfigError, match="holds the run u-1, this is u-2"):
        prepare.run(resolved.model_copy(update={"uid": "u-2"}))


PREPARE = """
import sys
from areal.plan import ResolvedJob
from areal.admit import prepare
print(prepare.run(ResolvedJob.parse(sys.stdin.read(), "stdin")))
"""


def test_a_model_of_the_hub_is_in_the_run_directory_before_anything_reads_it(tmp_path):
    resolved = in_pods(tmp_path, model={"uri": "hf://team/tiny@main"})
    layout = resolved.layout
    assert resolved.model_path.name == layout.start_model.name
    resolved = resolved.model_copy(update={"model_path": layout.start_model, "tokenizer_path": layout.start_model})
    with hub_of("team/tiny", tmp_path / "model") as (endpoint, asked):

        def prepared() -> str:
            return subprocess.run(
                [sys.executable, "-c", PREPARE],
                input=resolved.model_dump_json(),
                env={**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf")},
                capture_output=True,
                text=True,
                check=True,
                timeout=300,
            ).stdout

        assert prepared().startswith(f"model hf://team/tiny@main: commit {COMMIT}, ")
        there, here = layout.start_model / "model.safetensors", tmp_path / "model" / "model.safetensors"
        assert there.read_bytes() == here.read_bytes()
        asked.clear()
        assert "prepared already" in prepared()
        assert asked == []


def test_a_teacher_and_a_reward_model_of_the_hub_are_downloaded_beside_the_model(tmp_path, monkeypatch):
    downloaded: dict[str, Path] = {}

    def download(uri: str, target: Path, credentials: Path | None) -> str:
        downloaded[uri] = target
        shutil.copytree(tmp_path / "model", target)
        if uri == "hf://team/scores":
            config = json.loads((target / "config.json").read_bytes())
            classifies = {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1}
            (target / "config.json").write_text(json.dumps({**config, **classifies}))
            write_weights(target, {**shapes_of(config), "score.weight": [1, config["hidden_size"]]})
        return f"model {uri}"

    monkeypatch.setattr(prepare.remote, "download", download)
    algorithm = {"name": "GRPO", "batchSize": 4, "maxSteps": 3}
    resolved = in_pods(
        tmp_path,
        recipe="",
        algorithm={**algorithm, "teacher": {"path": "hf://team/large@v2"}},
        reward={"verifier": "model", "model": {"path": "hf://team/scores"}},
    )
    layout = RunLayout(Path("/areal/run"))
    assert (resolved.teacher_path, resolved.reward_model_path) == (layout.teacher, layout.reward_model)
    here = resolved.layout
    said = prepare.run(
        resolved.model_copy(update={"teacher_path": here.teacher, "reward_model_path": here.reward_model})
    )
    assert downloaded == {"hf://team/large@v2": here.teacher, "hf://team/scores": here.reward_model}
    assert said.startswith("model hf://team/large@v2; model hf://team/scores; dataset train")


def test_a_recipe_that_does_not_import_is_named_before_anything_is_written(tmp_path):
    resolved = in_pods(tmp_path, recipe="import a_module_of_nobody\n\ndef reward(**row):\n    return 1.0\n")
    with pytest.raises(DataError, match="a_module_of_nobody"):
        prepare.run(resolved)
    assert list(resolved.run_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ({"dataset": {"train": {"jsonl": "/nowhere.jsonl"}}}, "spec.dataset.train.jsonl: there is no /nowhere.jsonl"),
        ({"model": {"uri": "pvc://models/none"}}, "spec.model: there is no /areal/claims/models/none"),
        ({"trainer": {"hooks": "/no/hooks.py"}}, "spec.trainer.hooks: there is no /no/hooks.py"),
        (
            {**NO_ROLLOUTS, "training": {"name": "Distillation", "batchSize": 4, "teacher": {"path": "/no/one"}}},
            "spec.training.teacher: there is no /no/one",
        ),
        (
            {"algorithm": {"name": "GRPO", "batchSize": 2, "maxSteps": 2, "teacher": {"path": "/no/one"}}},
            "spec.algorithm.teacher: there is no /no/one",
        ),
        ({"reward": {"verifier": "exact", "answerField": "solution"}}, 'jsonl:1: column "solution" is missing'),
    ],
)
def test_what_is_not_there_is_the_users_to_correct(tmp_path, blocks, words):
    resolved = in_pods(tmp_path, recipe="x = 1\n" if "reward" in blocks else RECIPE, **blocks)
    with pytest.raises((ConfigError, DataError), match=words):
        prepare.run(resolved)
    assert not resolved.layout.resolved.exists()


def train(run_dir: Path, *steps: list[int]) -> None:
    """The traces of a trainer that took these groups, where two a step were chosen in order."""
    journal = Journal(run_dir / "journal" / "controller.jsonl")
    journal.start(1)
    for step in range(len(steps)):
        journal.append_batch(step, [2 * step, 2 * step + 1])
    log = EvidenceLog(run_dir / "evidence", 1)
    log.start(0, batch_groups=2, group_size=2)
    for step, groups in enumerate(steps):
        log.trained(step, [TrainedGroup(group, ((0, group * 10), (1, group * 10 + 1))) for group in groups])
    log.finished(len(steps))
    lines = [{"step": step, "tokens": 50, "wall_s": 1.0, "at": 100.0 + step} for step in range(len(steps))]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.component
def test_a_finished_run_is_accounted_for(tmp_path, capsys):
    resolved = in_pods(tmp_path)
    train(resolved.run_dir, [0, 1], [2, 3])
    said = finish.run(resolved)
    assert json.loads(said) == {
        "lost": 0, "duplicated": 0, "tombstones": {}, "ok": True,
        "message": "4 groups trained in 2 steps, each exactly once",
    }  # fmt: skip
    assert said in capsys.readouterr().out
    summary = json.loads(resolved.layout.summary.read_text())
    assert (summary["status"], summary["steps"], summary["wallSeconds"]) == ("Complete", 2, 2.0)
    assert summary["tokensPerSecond"]["generation"] == 50.0
    assert "<h1>run <span" in resolved.layout.report.read_text()


@pytest.mark.component
def test_a_broken_promise_is_our_bug_and_says_which(tmp_path):
    resolved = in_pods(tmp_path)
    train(resolved.run_dir, [0, 1], [1, 3])
    with pytest.raises(finish.AuditFailed) as caught:
        finish.run(resolved)
    assert caught.value.exit_code == 70
    told = json.loads(str(caught.value))
    assert (told["ok"], told["lost"], told["duplicated"]) == (False, 1, 1)
    assert "group 1 is trained in steps 0, 1" in told["message"]
    assert resolved.layout.summary.exists(), "a run that went wrong is accounted for, too"


@pytest.mark.component
def test_a_run_that_trained_nothing_can_be_accounted_for(tmp_path):
    resolved = in_pods(tmp_path)
    assert json.loads(finish.run(resolved))["ok"] is True


def finished_run(tmp_path, *steps):
    """A run with checkpoints, versions and a model, whose steps are to be audited."""
    resolved = in_pods(tmp_path)
    train(resolved.run_dir, *steps)
    for part in ("checkpoints/s1/rank-0", "weights/v1/shard", "model/model.safetensors", "exports/s1/config.json"):
        (resolved.run_dir / part).parent.mkdir(parents=True, exist_ok=True)
        (resolved.run_dir / part).write_text("bytes")
    return resolved


@pytest.mark.component
def test_where_only_the_model_outlives_the_job_checkpoints_and_versions_go_and_the_account_is_the_same(
    tmp_path, monkeypatch
):
    resolved = finished_run(tmp_path, [0, 1], [2, 3])
    layout, before = resolved.layout, finish.run(resolved)
    assert layout.checkpoints.is_dir()
    monkeypatch.setenv(ENV_CLEAN, "1")
    for _ in range(2):  # a pod of it that was lost is followed by another
        assert finish.run(resolved) == before
        assert not layout.checkpoints.exists()
        assert not layout.weights.exists()
        assert (layout.model / "model.safetensors").is_file()
        assert (layout.exports / "s1" / "config.json").is_file()
        assert layout.summary.is_file()


@pytest.mark.component
def test_of_a_run_that_broke_a_promise_nothing_is_removed(tmp_path, monkeypatch):
    resolved = finished_run(tmp_path, [0, 1], [1, 3])
    monkeypatch.setenv(ENV_CLEAN, "1")
    with pytest.raises(finish.AuditFailed):
        finish.run(resolved)
    assert (resolved.layout.checkpoints / "s1" / "rank-0").is_file()
    assert (resolved.layout.weights / "v1" / "shard").is_file()


@pytest.mark.component
def test_what_can_t_be_removed_is_no_fault_of_the_run(tmp_path, monkeypatch):
    resolved = finished_run(tmp_path, [0, 1], [2, 3])
    monkeypatch.setenv(ENV_CLEAN, "1")

    def busy(layout):
        raise OSError(16, "Device or resource busy", str(layout.weights))

    monkeypatch.setattr(finish, "remove_spare", busy)
    assert json.loads(finish.run(resolved))["ok"] is True
    assert resolved.layout.model.is_dir()
