"""Resolving: which files are found where, what is refused, what a resumed run keeps."""

from __future__ import annotations

import itertools
import json
import stat
from pathlib import Path

import pytest
from areal.admit.recipe_probe import defines
from areal.admit.resolve import resolve
from areal.errors import ConfigError, DataError
from areal.plan import ResolvedJob, write_run
from areal.spec import RLJob, load_job
from support.workspace import OVERRIDES, RECIPE, Workspace


def job(workspace: Workspace, *overrides: str) -> RLJob:
    return load_job(workspace.job_file, overrides)


def plan(workspace: Workspace, *overrides: str, **options) -> ResolvedJob:
    options = {"run_dir": workspace.run_dir, "base_dir": workspace.job_file.parent, **options}
    return resolve(job(workspace, *overrides), **options)


def start(workspace: Workspace, *overrides: str, **options) -> ResolvedJob:
    return write_run(plan(workspace, *overrides, **options), recipe=workspace.recipe)


def test_paths_are_found_below_the_current_directory_first(workspace):
    beside = workspace.root / "jobs" / "data"
    beside.mkdir()
    (beside / "train.jsonl").touch()
    resolved = plan(workspace)
    assert resolved.dataset.train.jsonl == str(workspace.root / "data" / "train.jsonl")
    assert resolved.model_path == resolved.tokenizer_path == workspace.root / "models" / "tiny"
    (workspace.root / "data" / "train.jsonl").unlink()
    assert plan(workspace).dataset.train.jsonl == str(beside / "train.jsonl")


@pytest.mark.parametrize(
    ("override", "what", "fix"),
    [
        ("model.path=models/none", "the model 'models/none'", "areal init-model --out models/none"),
        ("model.tokenizer=models/none", "the tokenizer", "leave it out"),
        ("recipe.file=none.py", "the recipe 'none.py'", "recipe.file"),
        ("dataset.train.jsonl=none.jsonl", "the dataset", "dataset.train.jsonl"),
        ("dataset.evaluation={jsonl: none.jsonl}", "the dataset", "dataset.evaluation.jsonl"),
        ("trainer.hooks=none.py", "the hooks file", "trainer.hooks"),
    ],
)
def test_a_missing_file_names_both_places_and_the_fix(workspace, override, what, fix):
    with pytest.raises(ConfigError) as caught:
        plan(workspace, override)
    name = override.rpartition("=")[2].rpartition(" ")[2].strip("}")
    assert what in caught.value.message
    assert f"tried {workspace.root / name} and {workspace.job_file.parent / name}" in caught.value.message
    assert fix in caught.value.fix
    assert f"override {override}" in caught.value.message
    assert not workspace.run_dir.exists()


@pytest.mark.parametrize(
    ("gone", "says"), [("config.json", "no Hugging Face model"), ("tokenizer.json", "no tokenizer.json")]
)
def test_a_directory_that_is_no_model_is_refused(workspace, gone, says):
    (workspace.root / "models" / "tiny" / gone).unlink()
    with pytest.raises(ConfigError, match=says):
        plan(workspace)


def test_a_cluster_s_model_is_refused_here(workspace):
    with pytest.raises(ConfigError, match="is no directory of this machine"):
        plan(workspace, "model={uri: 'hf://Qwen/Qwen3-8B'}")


def test_a_hugging_face_name_stays_a_name_and_a_folder_becomes_absolute(workspace):
    named = plan(workspace, "dataset.train={huggingFace: {path: openai/gsm8k}}")
    assert named.dataset.train.hugging_face.path == "openai/gsm8k"
    folder = plan(workspace, "dataset.train={huggingFace: {path: data}}")
    assert folder.dataset.train.hugging_face.path == str(workspace.root / "data")


@pytest.mark.parametrize(
    ("recipe", "override", "verifier"),
    [
        (RECIPE, "seed=0", "custom"),
        ("from scoring import reward", "seed=0", "custom"),
        ("import scoring as reward", "seed=0", "custom"),
        (
            "try:\n    from fast import reward\nexcept ImportError:\n    def reward(**row): return 0.0",
            "seed=0",
            "custom",
        ),
        ("reward = lambda **row: 1.0", "seed=0", "custom"),
        ("class Mine:\n    def reward(self): ...", "seed=0", None),
        ("reward: object", "seed=0", None),
        ("class Mine: ...", "reward.verifier=math", "math"),
    ],
)
def test_who_scores_is_read_from_the_recipe_without_running_it(workspace, recipe, override, verifier):
    workspace.recipe.write_text(recipe + "\nraise SystemExit('a recipe was run')\n")
    resolved = plan(workspace, override)
    assert resolved.verifier == verifier
    assert (resolved.endpoints.reward_custom is not None) == (verifier == "custom")
    assert (resolved.endpoints.reward is not None) == (verifier == "math")


def test_a_recipe_that_is_no_python_is_named_with_its_line(workspace):
    workspace.recipe.write_text("x = 1\ndef reward(:\n")
    with pytest.raises(DataError, match=r"recipe\.py:2: the recipe is no valid Python"):
        plan(workspace)
    with pytest.raises(DataError, match="can't be read"):
        defines(workspace.root / "none.py", "reward")


def test_a_run_is_written_whole_and_read_back_the_same(workspace):
    resolved = start(workspace)
    layout = resolved.layout
    assert ResolvedJob.load(layout.resolved) == ResolvedJob.load(workspace.run_dir) == resolved
    assert resolved.recipe_path == workspace.run_dir / "recipe" / "recipe.py"
    assert resolved.recipe_path.read_text() == RECIPE
    secrets = [*layout.access.glob("token.*"), layout.access / "session.key", *resolved.redis_users.values()]
    assert len({path.read_text() for path in secrets}) == len(secrets) == 4 + 1 + 3
    assert stat.S_IMODE(layout.access.stat().st_mode) == 0o700
    for path in [*secrets, layout.redis_acl, layout.redis_conf]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert all(len(path.read_text()) >= 40 for path in secrets)
    assert "secret" not in layout.resolved.read_text()
    assert not any(path.read_text() in layout.resolved.read_text() for path in secrets)
    assert resolved.digest == resolved.job.digest()
    assert resolved.uid.startswith("tiny-")


def test_two_runs_of_a_job_have_different_names_in_redis(workspace):
    first = plan(workspace)
    second = plan(workspace, run_dir=workspace.root / "other")
    assert first.uid != second.uid
    assert first.digest == second.digest


def test_an_occupied_directory_is_refused(workspace):
    start(workspace)
    with pytest.raises(ConfigError, match="already holds a run") as caught:
        plan(workspace)
    assert "--resume" in caught.value.fix
    strange = workspace.root / "strange"
    strange.mkdir()
    (strange / "thesis.doc").touch()
    with pytest.raises(ConfigError, match=r"not empty and no run: it holds thesis\.doc"):
        plan(workspace, run_dir=strange)
    with pytest.raises(ConfigError, match="is a file"):
        plan(workspace, run_dir=workspace.recipe)


def test_a_start_that_was_cut_off_can_be_repeated(workspace):
    start(workspace)
    token = (workspace.run_dir / "access" / "token.worker").read_text()
    (workspace.run_dir / "resolved.json").unlink()
    again = start(workspace)
    assert (again.access / "token.worker").read_text() == token
    assert again.layout.resolved.exists()


def test_a_resumed_run_keeps_its_identity_and_its_secrets(workspace):
    first = start(workspace)
    before = {path: path.read_text() for path in (*first.access.iterdir(), *first.redis_users.values())}
    changed = ["algorithm.maxSteps=500", "algorithm.maxStaleness=1", "rollout.workers=3", "checkpoint.intervalSteps=2"]
    again = start(workspace, *changed, resume=True)
    assert again.uid == first.uid
    assert again.job.spec.algorithm.max_steps == 500
    assert {path: path.read_text() for path in before} == before
    assert ResolvedJob.load(workspace.run_dir) == again


def test_another_job_can_not_be_resumed_here(workspace):
    start(workspace)
    with pytest.raises(ConfigError) as caught:
        plan(
            workspace,
            "algorithm.batchSize=16",
            "algorithm.advanced.rejection=null",
            "generation.engine.type=sglang",
            resume=True,
        )
    message = caught.value.message
    assert "spec.algorithm.batchSize: was 8, now 16 (override algorithm.batchSize=16)" in message
    assert "spec.generation.engine.type: was 'embedded', now 'sglang'" in message
    assert "spec.algorithm.advanced.rejection.metric: was 'ratio', now not given" in message
    assert "maxSteps" not in message


def test_there_must_be_something_to_resume(workspace):
    with pytest.raises(ConfigError, match=r"resolved\.json can't be read"):
        plan(workspace, resume=True)


def test_a_damaged_resolved_job_is_refused(workspace):
    resolved = start(workspace)
    text = resolved.layout.resolved.read_text()
    for damaged in (text[: len(text) // 2], json.dumps(json.loads(text) | {"colour": "red"})):
        resolved.layout.resolved.write_text(damaged)
        with pytest.raises(ConfigError, match="no resolved job of this version"):
            ResolvedJob.load(workspace.run_dir)


def test_every_listener_has_a_port_of_its_own(workspace):
    counter = itertools.count(20000)
    resolved = plan(workspace, *OVERRIDES, ports=lambda count: list(itertools.islice(counter, count)))
    ports = [port for row in resolved.ports.values() for port in row.values()]
    assert sorted(ports) == list(range(20000, 20000 + len(ports)))
    assert resolved.endpoints.redis == f"127.0.0.1:{resolved.ports['redis']['main']}"
    assert resolved.endpoints.controller == f"127.0.0.1:{resolved.ports['controller']['grpc']}"


def test_free_ports_are_free_and_different(workspace):
    resolved = plan(workspace)
    ports = [port for row in resolved.ports.values() for port in row.values()]
    assert len(set(ports)) == len(ports)
    assert all(1024 < port < 65536 for port in ports)


def test_a_run_directory_that_can_not_be_written_leaves_one_error(workspace):
    blocked = workspace.root / "blocked"
    blocked.write_text("a file")
    with pytest.raises(ConfigError, match="is a file"):
        plan(workspace, run_dir=blocked)
    assert Path(blocked).read_text() == "a file"
