"""A run in an allocation: its first life and its next ones, hosts that are lost, a state that another machine reads."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import psutil
import pytest
from areal.admit.resolve import resolve
from areal.errors import Kind
from areal.hosts import run as hosts_run
from areal.hosts.placement import Host, HostPlan
from areal.hosts.run import HostFleet, run_on_slurm
from areal.local.run import _watched
from areal.local.staging import StagingRequest
from areal.observe.live import Live, read_live, write_live
from areal.plan import ResolvedJob, RoleRow, RunLayout
from areal.processes.core import ChildPhase
from areal.processes.supervise import child_of
from areal.spec.load import job_from
from areal.yaml_file.document import read_document
from rich.console import Console
from support.scripted_slurm import ScriptedSlurm
from support.tiny_job import make_tiny_job

HOSTS = [Host("a", "10.0.0.1", 6818), Host("b", "10.0.0.2", 6818), Host("c", "10.0.0.3", 6818)]


@pytest.fixture
def resolved(tmp_path: Path) -> ResolvedJob:
    job = job_from(read_document(make_tiny_job(tmp_path)), ())
    return resolve(job, run_dir=tmp_path / "run", base_dir=tmp_path)


class Child:
    """A row's child, as far as a move looks at it."""

    def __init__(self, row: RoleRow, folder: Path) -> None:
        self.spec = child_of(row, folder, folder)
        self.status = SimpleNamespace(phase=ChildPhase.READY, epoch=3)
        self.epochs: list[int] = []

    def restart(self, epoch: int) -> bool:
        self.epochs.append(epoch)
        return True


class Children:
    def __init__(self, rows: list[RoleRow], folder: Path) -> None:
        self.children = {row.name: Child(row, folder) for row in rows}
        self.stopped = ""

    def stop(self, reason: str) -> None:
        self.stopped = reason


def settled(resolved: ResolvedJob, hosts: list[Host], folder: Path) -> tuple[HostFleet, ResolvedJob, Any]:
    fleet = HostFleet(hosts)
    found = fleet.settle(resolved)
    return fleet, found, Children(fleet.rows(found), folder)


def test_each_row_is_asked_at_its_host_and_started_as_a_step(resolved, tmp_path):
    fleet, found, _ = settled(resolved, HOSTS[:2], tmp_path)
    rows = {row.name: row for row in fleet.rows(found)}
    assert rows["controller"].probe_host == "10.0.0.1"
    assert rows["generation-0"].probe_host == "10.0.0.2"
    assert all(row.command[1:3] == ["-m", "areal.hosts.step"] and row.command[4] == row.name for row in rows.values())
    tokens = [path.read_text() for path in found.access.glob("token.*")]
    assert len(tokens) == 4
    words = [word for row in rows.values() for word in (*row.command, *row.env.values())]
    assert not any(token in word for token in tokens for word in words)
    assert ResolvedJob.load(found.run_dir).endpoints == found.endpoints
    assert "bind 0.0.0.0" in found.layout.redis_conf.read_text()


def test_rows_of_a_lost_host_start_elsewhere_and_workers_learn_the_new_addresses(resolved, tmp_path):
    fleet, found, children = settled(resolved, HOSTS, tmp_path)
    plan = HostPlan.load(found.layout.host_plan)
    lost = plan.rows["reward-custom"].hosts[0]
    gone = {name for name, at in plan.rows.items() if at.hosts == (lost,)}
    addresses = {row.name: f"{row.probe_host}:{row.ports['grpc']}" for row in fleet.rows(found) if "grpc" in row.ports}
    now = fleet._move(found, children, addresses, {lost})
    after = HostPlan.load(found.layout.host_plan)
    assert not any(lost in at.hosts for at in after.rows.values())
    started = {name for name, child in children.children.items() if child.epochs}
    assert started == gone | {"worker-0"}
    assert all(children.children[name].epochs == [4] for name in started)
    assert now.endpoints.reward_custom != found.endpoints.reward_custom
    assert now.endpoints.controller == found.endpoints.controller
    assert ResolvedJob.load(found.run_dir).endpoints == now.endpoints
    for name in gone:
        assert children.children[name].spec.probe.host == after.of(name)[0].address
        assert addresses[name].startswith(f"{after.of(name)[0].address}:")
    assert (children.stopped, fleet.leaving) == ("", "")


@pytest.mark.parametrize(("lost", "hosts"), [("a", HOSTS), ("b", HOSTS[:2])])
def test_what_no_other_host_can_take_makes_the_run_leave(resolved, tmp_path, lost, hosts):
    job = resolved.job.spec.model_copy(update={"trainer": resolved.spec.trainer.model_copy(update={"replicas": 2})})
    resolved = resolved.model_copy(update={"job": resolved.job.model_copy(update={"spec": job})})
    fleet, found, children = settled(resolved, hosts, tmp_path)
    assert fleet._move(found, children, {}, {lost}) is found
    assert f"lost {lost}" in fleet.leaving
    assert children.stopped == fleet.leaving


@pytest.fixture
def lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[StagingRequest]:
    """What each life of a job asks of the run; none is run."""
    found: list[StagingRequest] = []
    scripted = ScriptedSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", scripted.path)
    monkeypatch.setattr(hosts_run, "run_job", lambda request, console, fleet: found.append(request) or 0)
    monkeypatch.setattr(hosts_run.slurm, "allocation", lambda: HOSTS)
    return found


@pytest.mark.parametrize("begun", [True, False])
def test_a_next_life_is_never_fresh_and_resumes_what_was_begun(lives, tmp_path, monkeypatch, begun):
    request = StagingRequest(make_tiny_job(tmp_path), (), tmp_path / "run", fresh=True)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert run_on_slurm(request, (), (), Console()) == 0
    if begun:
        (tmp_path / "run").mkdir()
        RunLayout(tmp_path / "run").resolved.write_text("{}")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert run_on_slurm(request, (), (), Console()) == 0
    here = replace(request, hosts=["--on", "slurm"])
    assert lives == [here, replace(here, fresh=False, resume=begun)]


def test_outside_an_allocation_the_run_is_queued_with_what_was_asked(lives, tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    request = StagingRequest(make_tiny_job(tmp_path), ("algorithm.maxSteps=2",), tmp_path / "runs" / "one", resume=True)
    assert run_on_slurm(request, ("nodes=3", "--partition=gpu"), ("apptainer", "exec", "an image.sif"), Console()) == 0
    text = (tmp_path / "runs" / "one.sbatch").read_text()
    assert "#SBATCH --nodes=3\n" in text
    assert "#SBATCH --partition=gpu\n" in text
    last = text.splitlines()[-1]
    assert "algorithm.maxSteps=2" in last
    assert last.endswith("--resume")
    assert "an image.sif" in last
    assert not (tmp_path / "runs" / "one").exists(), "the run's first life makes its directory"
    assert lives == []


@pytest.mark.parametrize(("host", "age", "alive"), [("far", 5, True), ("far", 60, False), ("", 60, True)])
def test_a_run_of_another_machine_goes_on_while_its_state_is_fresh(tmp_path, host, age, alive):
    path = tmp_path / "live.json"
    began = psutil.Process().create_time()
    write_live(path, Live(time.time() - age, os.getpid(), began, 0, 10))
    written = orjson.loads(path.read_bytes())
    assert written["host"] == platform.node()
    path.write_bytes(orjson.dumps({**written, "host": host or platform.node(), "pid": os.getpid() if not host else 1}))
    live = read_live(path)
    assert live is not None
    assert live.alive is alive


async def test_a_watch_that_ends_by_an_error_ends_the_run_with_its_reason():
    class Broken:
        async def watch(self, *told):
            raise OSError("no space left on device")

    class Failing:
        def fail(self, reason, kind):
            self.told = reason, kind

    supervisor = Failing()
    await _watched(Broken(), None, supervisor, {})
    assert supervisor.told == ("the run's other machines can't be watched: no space left on device", Kind.INFRA)
