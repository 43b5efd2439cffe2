"""GPUs of one machine: servers first, then the trainer's ranks, none twice; jobs on CPUs see none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.admit.machine import check_packages, unused
from areal.admit.resolve import resolve
from areal.errors import ConfigError
from areal.plan import ResolvedJob, RoleHost, role_table
from areal.spec import Severity, load_job

PLACE = RoleHost("python", ("areal-role",), "redis-server", gpus=tuple("01234567"))
ON_GPUS = ["generation.engine={type: sglang, tensorParallel: 2}", "generation.replicas=2", "trainer.gpus=4"]


def resolved(workspace, *overrides: str) -> ResolvedJob:
    numbers = iter(range(7000, 8000))
    job = load_job(workspace.job_file, overrides)
    ports = lambda count: [next(numbers) for _ in range(count)]  # noqa: E731
    return resolve(job, run_dir=workspace.run_dir, base_dir=workspace.root, ports=ports, uid="tiny-1")


def visible(job: ResolvedJob, place: RoleHost) -> dict[str, str | None]:
    rows = role_table(job, place)
    return {row.name: row.env.get("CUDA_VISIBLE_DEVICES") for row in rows if row.role in ("generation", "trainer")}


def test_a_trainer_on_gpus_has_an_allocator_of_growing_segments_and_no_other_role_has(workspace):
    for overrides, roles in (([], set()), (ON_GPUS, {"trainer"})):
        rows = role_table(resolved(workspace, *overrides), PLACE)
        assert {row.role for row in rows if "PYTORCH_ALLOC_CONF" in row.env} == roles


def test_sglang_is_not_looked_for_here_where_a_python_of_its_own_has_it(workspace, monkeypatch):
    job = load_job(workspace.job_file, ON_GPUS)
    monkeypatch.setattr("areal.admit.machine.importlib.util.find_spec", lambda name: None if name == "sglang" else name)
    with pytest.raises(ConfigError, match="needed by this job: sglang"):
        check_packages(job, None)
    monkeypatch.setenv("SGLANG_PYTHON", "/opt/sglang/bin/python")
    check_packages(job, None)
    monkeypatch.delenv("SGLANG_PYTHON")
    check_packages(load_job(workspace.job_file, [*ON_GPUS, "generation.engine.python=/opt/own/bin/python"]), None)


def test_servers_come_first_then_ranks(workspace):
    job = resolved(workspace, *ON_GPUS)
    assert visible(job, PLACE) == {"generation-0": "0,1", "generation-1": "2,3", "trainer": "4,5,6,7"}
    trainer = next(row for row in role_table(job, PLACE) if row.role == "trainer")
    assert trainer.command[trainer.command.index("--nproc-per-node") + 1] == "4", "a process each"


def test_servers_and_trainer_that_share_have_the_same_devices(workspace):
    job = resolved(workspace, *ON_GPUS, "placement=shared", "algorithm.maxStaleness=1")
    place = replace(PLACE, gpus=tuple("0123"))
    assert visible(job, place) == {"generation-0": "0,1", "generation-1": "2,3", "trainer": "0,1,2,3"}
    with pytest.raises(ConfigError, match=r"4 GPUs .*generation-0 2 or generation-1 2 or trainer 4.* shows 3"):
        role_table(job, replace(PLACE, gpus=tuple("012")))
    separate = resolved(workspace, *ON_GPUS)
    with pytest.raises(ConfigError) as refused:
        role_table(separate, place)
    assert "placement: shared and algorithm.maxStaleness: 1, so" in refused.value.fix
    near = resolved(workspace, *ON_GPUS, "algorithm.maxStaleness=1")
    with pytest.raises(ConfigError, match="shows 4") as refused:
        role_table(near, place)
    assert "placement: shared, so" in refused.value.fix
    waits = {row.start_deadline_s for run in (job, separate) for row in role_table(run, PLACE) if row.role == "trainer"}
    assert len(waits) == 2, "a trainer that starts again waits for the servers' turn"


def test_what_was_dealt_outside_is_dealt_on(workspace):
    place = replace(PLACE, gpus=("GPU-a", "GPU-b"))
    job = resolved(workspace, "trainer.gpus=1", "generation.engine={type: sglang}")
    assert visible(job, place) == {"generation-0": "GPU-a", "trainer": "GPU-b"}


def test_more_than_the_machine_has_is_refused_with_the_arithmetic(workspace):
    job = resolved(workspace, *ON_GPUS)
    with pytest.raises(ConfigError, match=r"8 GPUs .*generation-0 2 \+ generation-1 2 \+ trainer 4.* shows 3"):
        role_table(job, replace(PLACE, gpus=("0", "1", "2")))


def test_a_job_on_cpus_sees_no_gpu_of_a_machine_that_has_some(workspace):
    job = resolved(workspace)
    assert visible(job, PLACE) == {"generation-0": "", "trainer": ""}
    assert visible(job, replace(PLACE, gpus=())) == {"generation-0": None, "trainer": None}


def test_a_machines_gpus_that_no_process_is_given_are_a_warning(workspace):
    (warned,) = unused(load_job(workspace.job_file), ("0", "1"))
    assert (warned.severity, warned.message) == (
        Severity.WARNING, "this machine shows 2 GPUs, and the job runs on CPUs",
    )  # fmt: skip
    assert "generation.engine.type: sglang" in warned.fix
    assert unused(load_job(workspace.job_file), ()) == []
    for given in ("trainer.gpus=1", "generation.engine={type: sglang, gpus: 1}"):
        assert unused(load_job(workspace.job_file, [given]), ("0",)) == []
