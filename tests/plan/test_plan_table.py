"""The role table: rows, commands, order, for each kind of job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from areal.admit.resolve import resolve
from areal.errors import ConfigError
from areal.plan import ResolvedJob, RoleHost, role_table
from areal.reward.verifiers.model import START_S
from areal.spec import load_job
from support.workspace import OVERRIDES, Workspace

PLACE = RoleHost("python", ("areal-role",), "redis-server")


def resolved(workspace: Workspace, *overrides: str) -> ResolvedJob:
    numbers = iter(range(7000, 8000))
    return resolve(
        load_job(workspace.job_file, overrides),
        run_dir=workspace.run_dir,
        base_dir=workspace.root,
        ports=lambda count: [next(numbers) for _ in range(count)],
        uid="tiny-1",
    )


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ([], ["redis", "reward-custom", "controller", "generation-0", "worker-0", "trainer"]),
        (
            OVERRIDES,
            [
                "redis", "reward-custom", "controller", "generation-0", "generation-1", "worker-0",
                "worker-1", "trainer",
            ],
        ),
        (
            ["recipe=null", "reward.verifier=math"],
            ["redis", "reward", "controller", "generation-0", "worker-0", "trainer"],
        ),
    ],
)  # fmt: skip
def test_rows_follow_from_the_job(workspace, overrides, names):
    assert [row.name for row in role_table(resolved(workspace, *overrides), PLACE)] == names


def test_a_workflow_that_scores_by_itself_needs_no_reward_service(workspace):
    workspace.recipe.write_text("class Mine: ...")
    assert not [row for row in role_table(resolved(workspace), PLACE) if "reward" in row.role]


def test_commands(workspace):
    job = resolved(workspace, *OVERRIDES)
    rows = {row.name: row for row in role_table(job, PLACE)}
    path = str(job.layout.resolved)
    assert rows["redis"].command == ["redis-server", str(job.layout.redis_conf)]
    for name, role in (("controller", "controller"), ("worker-1", "worker"), ("reward-custom", "reward-custom")):
        row = rows[name]
        listen = ["--port", str(row.ports["grpc"]), "--metrics-port", str(row.ports["metrics"])]
        assert row.command == ["areal-role", role, "--job", path, "--index", str(row.index), *listen]
    generation = rows["generation-1"]
    assert generation.command[:6] == ["areal-role", "generation", "--job", path, "--index", "1"]
    assert generation.command[-2:] == ["--engine-port", str(generation.ports["engine"])]
    trainer = rows["trainer"]
    assert " ".join(trainer.command) == (
        "python -m areal_trainer.torchrun --nnodes 1 --nproc-per-node 4 --max-restarts 0 --master-addr 127.0.0.1 "
        f"--master-port {trainer.ports['rendezvous']} -m areal_trainer.main --job {path} "
        f"--port {trainer.ports['grpc']} --metrics-port {trainer.ports['metrics']}"
    )


def test_rows_come_after_what_they_depend_on(workspace):
    for overrides in ([], OVERRIDES, ["recipe=null", "reward.verifier=exact"]):
        started: set[str] = set()
        for row in role_table(resolved(workspace, *overrides), PLACE):
            assert set(row.depends_on) <= started, row.name
            started.add(row.name)
    rows = {row.name: row for row in role_table(resolved(workspace), PLACE)}
    assert rows["controller"].depends_on == ["redis"]
    assert rows["worker-0"].depends_on == ["controller", "reward-custom"]
    assert rows["trainer"].depends_on == ["redis", "controller"]


def test_only_the_trainer_gang_waits_for_an_epoch(workspace):
    rows = role_table(resolved(workspace), PLACE)
    assert {row.name for row in rows if row.restart == "epoch"} == {"trainer"}
    assert all(row.max_restarts > 0 and row.drain_s > 0 and row.start_deadline_s > 0 for row in rows)
    assert {row.ready for row in rows if row.name != "redis"} == {"grpc"}


@pytest.mark.parametrize(
    ("overrides", "kept"),
    [([], []), (["trainer.standby=true"], ["trainer"]), (["trainer.standby=true", "trainer.replicas=2"], [])],
)
def test_a_standby_is_kept_of_a_trainer_of_one_process(workspace, overrides, kept):
    assert [row.name for row in role_table(resolved(workspace, *overrides), PLACE) if row.standby] == kept


def test_a_reward_model_has_a_role_and_may_load_for_as_long_as_its_verifier_waits(workspace):
    scores = workspace.root / "scores"
    scores.mkdir()
    (scores / "config.json").write_text('{"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "x"}}')
    (scores / "model.safetensors").write_bytes(b"")
    (scores / "tokenizer.json").write_text("{}")
    job = resolved(workspace, "recipe=null", "reward.verifier=model", "reward.model={path: scores}")
    rows = {row.name: row for row in role_table(job, PLACE)}
    assert rows["reward-model"].start_deadline_s >= START_S
    assert rows["worker-0"].depends_on == ["controller", "reward-model"]
    assert job.endpoints.reward == f"127.0.0.1:{rows['reward-model'].ports['grpc']}"


def test_boxes_have_a_role_that_workers_wait_for_and_find_where_the_job_asks_for_some(workspace):
    job = resolved(workspace, "rollout.boxes.maxConcurrent=8")
    rows = {row.name: row for row in role_table(job, PLACE)}
    assert rows["worker-0"].depends_on == ["controller", "reward-custom", "boxes"]
    assert job.endpoints.boxes == f"127.0.0.1:{rows['boxes'].ports['grpc']}"
    without = resolved(workspace)
    assert without.endpoints.boxes is None
    assert "boxes" not in {row.name for row in role_table(without, PLACE)}


def test_the_environment_names_the_job_and_holds_no_secret(workspace):
    for row in role_table(resolved(workspace), PLACE):
        assert row.env["AREAL_JOB"] == "tiny"
        assert row.env["AREAL_ROLE"] == row.role
        assert row.env["AREAL_RUN_DIR"] == str(workspace.run_dir)
        assert row.env["OMP_NUM_THREADS"] == "1"
        assert not [name for name in row.env if "TOKEN" in name.replace("TOKENIZERS", "") or "PASSWORD" in name]


def test_the_table_is_a_function_of_its_arguments(workspace):
    job = resolved(workspace, *OVERRIDES)
    assert role_table(job, PLACE) == role_table(ResolvedJob.model_validate_json(job.model_dump_json()), PLACE)
    pod = RoleHost("python3", ("areal-role",), "redis-server", host="trainer-0.tiny", interface="eth0")
    moved = {row.name: row for row in role_table(job, pod)}
    for row in role_table(job, PLACE):
        if row.name == "trainer":
            assert moved["trainer"].env["GLOO_SOCKET_IFNAME"] == "eth0"
            assert "trainer-0.tiny" in moved["trainer"].command
        else:
            assert moved[row.name] == row


def test_here_means_this_interpreter(workspace):
    place = RoleHost.here()
    assert place.python == sys.executable
    assert Path(place.redis_server).name == "redis-server"
    command = next(row.command for row in role_table(resolved(workspace)) if row.name == "controller")
    assert command[0] == sys.executable
    assert "areal.processes.role" in " ".join(command)


def test_without_redis_the_fix_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match="no redis-server on PATH") as caught:
        RoleHost.here()
    assert "apt-get install redis-server" in caught.value.fix
