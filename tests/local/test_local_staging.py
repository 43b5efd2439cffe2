"""From a job file to a run directory, or to one clear error and nothing else."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from areal.data import Snapshot
from areal.errors import ArealError, ConfigError, DataError
from areal.local.kept import claimed, set_aside
from areal.local.staging import StagingRequest, load, stage
from areal.plan import ResolvedJob
from support.tiny_job import make_tiny_job, write_job

pytestmark = pytest.mark.component  # recipes are imported in processes of their own


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    return tmp_path


def staged(folder: Path, **asked) -> ResolvedJob:
    request = StagingRequest(folder / "job.yaml", asked.pop("overrides", ()), **asked)
    return stage(request, load(request), lambda text: None)


def tree(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_a_run_directory_has_everything_that_roles_need(folder):
    resolved = staged(folder)
    layout = resolved.layout
    assert layout.root == folder / "runs" / "tiny"
    assert len(Snapshot(layout.dataset / "train")) == 64
    assert ResolvedJob.load(layout.resolved) == resolved
    tokens = {path.name: stat.S_IMODE(path.stat().st_mode) for path in layout.access.glob("token.*")}
    assert tokens == dict.fromkeys(("token.generation", "token.operator", "token.trainer", "token.worker"), 0o600)
    assert not layout.token.exists()
    assert resolved.recipe_path is not None
    assert resolved.recipe_path.read_text() == (folder / "recipe.py").read_text()


BROKEN = {
    "a missing dataset": ({"dataset": {"train": {"jsonl": "gone.jsonl"}}}, ConfigError, "gone.jsonl"),
    "a missing model": ({"model": {"path": "gone"}}, ConfigError, "init-model"),
    "a missing recipe": ({"recipe": {"file": "gone.py"}}, ConfigError, "gone.py"),
    "an unknown workflow": ({"rollout": {"workflow": "rlvrr"}}, ConfigError, "there is no workflow 'rlvrr'"),
    "an unknown field": ({"rollout": {"maxConcurentRollouts": 8}}, ConfigError, "maxConcurrentRollouts"),
    "a group of one": (
        {"algorithm": {"name": "GRPO", "groupSize": 1, "batchSize": 4, "maxSteps": 3}},
        ConfigError,
        "groupSize",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_is_refused_and_leaves_nothing(folder, what):
    changes, kind, word = BROKEN[what]
    write_job(folder, **changes)
    before = tree(folder)
    with pytest.raises(kind, match=word) as refused:
        staged(folder)
    assert refused.value.fix
    assert tree(folder) == before


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("import nothing_of_that_name\n", "nothing_of_that_name"),
        ("def reward(:\n", "SyntaxError|invalid"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("import os\nos._exit(3)\n", "ends the process that imports it"),
        ("def reward(x):\n    return 1\n", "wrong arguments"),
        (
            "import torch\n" + "def reward(prompt, completions, prompt_ids, completion_ids, **row):\n    return 1\n",
            "torch",
        ),
    ],
)
def test_a_recipe_that_does_not_import_is_refused_and_leaves_nothing(folder, text, word):
    (folder / "recipe.py").write_text(text)
    before = tree(folder)
    with pytest.raises(ArealError, match=word):
        staged(folder)
    assert tree(folder) == before


def test_a_tokenizer_that_knows_more_than_the_model_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path, vocabulary=8)
    with pytest.raises(ArealError, match="ids up to 11"):
        staged(tmp_path)
    assert not (tmp_path / "runs").exists()


def test_a_dataset_without_the_asked_column_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path, answer=False)
    write_job(tmp_path, recipe=None, reward={"verifier": "exact"})
    before = tree(tmp_path)
    with pytest.raises(ArealError, match="answer"):
        staged(tmp_path)
    assert tree(tmp_path) == before


def test_a_later_row_without_the_column_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_tiny_job(tmp_path)
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write('{"prompt": "1="}\n')
    write_job(tmp_path, recipe=None, reward={"verifier": "exact"})
    with pytest.raises(DataError, match=r"train\.jsonl.*65"):
        staged(tmp_path)
    assert not (tmp_path / "runs" / "tiny").exists()


def test_no_redis_binary_is_one_error_that_names_the_fix(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(ConfigError, match="redis-server") as refused:
        staged(folder)
    assert "Install Redis" in refused.value.fix
    assert not (folder / "runs" / "tiny").exists()


def test_an_old_redis_is_refused(folder, monkeypatch):
    fake = folder / "bin" / "redis-server"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=0'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match=r"Redis 6\.2; the ledger needs Redis 7"):
        staged(folder)


def test_an_occupied_directory_is_refused_until_told(folder):
    first = staged(folder)
    with pytest.raises(ConfigError, match="already holds a run") as refused:
        staged(folder)
    assert "--resume" in refused.value.fix
    again = staged(folder, fresh=True)
    assert again.uid != first.uid
    assert ResolvedJob.load(folder / "runs" / "tiny.1").uid == first.uid


def test_a_directory_with_other_files_is_refused(folder):
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        staged(folder, run_dir=folder / "mine")
    assert [path.name for path in (folder / "mine").iterdir()] == ["thesis.tex"]


def test_a_fresh_start_that_fails_puts_the_earlier_run_back(folder):
    first = staged(folder)
    before = tree(folder / "runs")
    with (folder / "train.jsonl").open("a") as file:
        file.write("no json\n")
    with pytest.raises(DataError):
        staged(folder, fresh=True)
    assert tree(folder / "runs") == before
    assert ResolvedJob.load(folder / "runs" / "tiny").uid == first.uid


def test_a_resumed_run_keeps_its_identity_rows_and_recipe(folder):
    first = staged(folder)
    (folder / "recipe.py").write_text((folder / "recipe.py").read_text() + "# later\n")
    (folder / "train.jsonl").write_text('{"prompt": "1=", "answer": "1"}\n' * 70)
    said: list[str] = []
    request = StagingRequest(folder / "job.yaml", ("algorithm.maxSteps=9",), resume=True)
    again = stage(request, load(request), said.append)
    assert again.uid == first.uid
    assert again.job.spec.algorithm.max_steps == 9
    assert len(Snapshot(again.layout.dataset / "train")) == 64
    assert again.recipe_path is not None
    assert "later" not in again.recipe_path.read_text()
    assert "keeps its copy" in said[0]


def test_another_job_can_not_be_resumed_here(folder):
    staged(folder)
    with pytest.raises(ConfigError, match="groupSize"):
        staged(folder, resume=True, overrides=("algorithm.groupSize=4",))


def test_nothing_to_resume_is_said(folder):
    with pytest.raises(ConfigError, match="no run to resume"):
        staged(folder, resume=True)
    assert not (folder / "runs").exists()


def test_resume_and_fresh_exclude_each_other(folder):
    with pytest.raises(ConfigError, match="exclude"):
        staged(folder, resume=True, fresh=True)


def test_a_directory_belongs_to_one_run_at_a_time(tmp_path):
    with (
        claimed(tmp_path / "run"),
        pytest.raises(ConfigError, match=f"in use by another `areal run` .pid {os.getpid()}"),
        claimed(tmp_path / "run"),
    ):
        pass
    with claimed(tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_a_run_made_is_its_owners_alone(tmp_path):
    (tmp_path / "shared").mkdir(mode=0o755)
    (tmp_path / "shared").chmod(0o755)
    for name, mode in (("new", 0o700), ("shared", 0o755)):  # who made a directory decided who reads it
        with claimed(tmp_path / name):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode


def test_a_directory_is_one_however_it_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "above").symlink_to(".")
    with claimed(tmp_path / "run"):
        for name in ("link", "above/run", "../" + tmp_path.name + "/run"):
            with pytest.raises(ConfigError, match="in use by another"), claimed(tmp_path / name):
                pass


def test_a_bind_mount_of_a_directory_is_the_same_directory(tmp_path):
    for name in ("run", "mounted"):
        (tmp_path / name).mkdir()
    mount = ["unshare", "--mount", "sh", "-c", 'mount --bind run mounted && exec "$@"', "sh"]
    if subprocess.run([*mount, "true"], cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    claims = "from pathlib import Path; from areal.local.kept import Claim; Claim().take(Path('mounted'))"
    take = [*mount, sys.executable, "-c", claims]
    free = subprocess.run(take, cwd=tmp_path, capture_output=True, text=True)
    with claimed(tmp_path / "run"):
        held = subprocess.run(take, cwd=tmp_path, capture_output=True, text=True)
    assert (free.returncode, free.stderr) == (0, "")
    assert "mounted is in use by another `areal run`" in held.stderr
    assert f"(pid {os.getpid()})" in held.stderr


def test_a_run_directory_is_its_owners_alone(folder):
    with claimed(folder / "runs" / "tiny") as claim:
        request = StagingRequest(folder / "job.yaml")
        stage(request, load(request), lambda text: None, claim.take)
    assert stat.S_IMODE((folder / "runs" / "tiny").stat().st_mode) == 0o700


def test_a_fresh_run_holds_the_directory_that_it_makes(folder):
    request = StagingRequest(folder / "job.yaml", fresh=True)
    run_dir = folder / "runs" / "tiny"
    run_dir.mkdir(parents=True)
    (run_dir / "old").touch()
    with claimed(run_dir) as claim:
        stage(request, load(request), lambda text: None, claim.take)
        with pytest.raises(ConfigError, match="in use by another"), claimed(run_dir):
            pass
    assert (folder / "runs" / "tiny.1" / "old").exists()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_refused_run_leaves_no_trace_while_its_directory_is_held(folder, fresh):
    write_job(folder, algorithm={"name": "GRPO", "groupSize": 2, "batchSize": 4, "maxSteps": 3})
    run_dir = folder / "runs" / "tiny"
    if fresh:
        run_dir.mkdir(parents=True)
        (run_dir / "old").touch()
    before = tree(folder)
    request = StagingRequest(folder / "job.yaml", fresh=fresh)
    job = load(request)
    (folder / "train.jsonl").write_text("broken\n")
    with pytest.raises(DataError), claimed(run_dir) as claim:
        stage(request, job, lambda text: None, claim.take)
    left = tree(folder)
    assert left - before <= {folder / "runs"}
    assert before <= left


def test_setting_aside_never_overwrites(tmp_path):
    for number in range(3):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / str(number)).touch()
        set_aside(tmp_path / "run")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "run.1/0",
        "run.2/1",
        "run.3/2",
    ]
    assert set_aside(tmp_path / "run") is None
