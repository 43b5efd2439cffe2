"""The quickstart's job over two nodes of a Ray cluster: a node and the trainer are killed; the run is told to leave."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from areal.hosts import ray_cluster
from areal.hosts.placement import HostPlan
from areal.plan import RunLayout
from support.job_run import ROOT, SMALL
from support.ray_lab import ADDRESSES, RayLab, missing

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1800)]

ELSEWHERE = """
import asyncio, pickle, sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "areal":
            raise ImportError(name)

sys.meta_path.insert(0, Without())
actor = pickle.loads(open(sys.argv[1], "rb").read())()

async def ended():
    command = [sys.executable, "-c", "import os; os.write(1, b'up')"]
    return [part async for part in actor.run("worker-0", command, {})]

print(asyncio.run(ended()))
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[RayLab]:
    if why := missing():
        pytest.skip(why)
    made = RayLab(tmp_path / "ray")
    try:
        yield made.start()
    finally:
        made.stop()


class RayJob:
    """One `areal run --on ray` in the cluster's network."""

    def __init__(self, lab: RayLab, run_dir: Path, *words: str, nodes: int = 2) -> None:
        self.lab, self.run_dir = lab, run_dir
        self.log = run_dir.with_name(f"{run_dir.name}.log")
        command = ["run", "examples/quickstart.yaml", *SMALL, *words, "--run-dir", str(run_dir), "--on", "ray"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                lab.inside(*self._areal(*command, "--ray", f"nodes={nodes}")),
                cwd=ROOT,
                env=lab.env,
                stdout=log,
                stderr=log,
            )

    @staticmethod
    def _areal(*words: str) -> list[str]:
        return [sys.executable, "-m", "areal.cli.main", *words]

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def step(self) -> int:
        path = self.run_dir / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return max((json.loads(line)["step"] + 1 for line in lines if line.endswith("\n")), default=0)

    @property
    def plan(self) -> HostPlan:
        return HostPlan.load(RunLayout(self.run_dir).host_plan)

    def wait_for(self, what: str, ready: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            assert self.process.poll() is None, self.said[-6000:]
            assert time.monotonic() < deadline, f"no {what} within {timeout_s} s:\n{self.said[-6000:]}"
            time.sleep(0.5)

    def programs(self, row: str) -> dict[str, psutil.Process]:
        """The row's programs by their host's name: what its tasks have started."""
        found = {}
        for one in psutil.process_iter():
            try:
                words = one.cmdline()
                if "areal.hosts.task" in words and row in words and str(self.run_dir) in str(words):
                    found[one.environ()["AREAL_HOST"]] = one.children()[0]
            except (psutil.Error, IndexError, KeyError):
                continue
        return found

    def step_of(self, row: str) -> psutil.Process:
        """The row's step: the process beside the run that calls its host's actor."""
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                words = one.cmdline()
                if words[1:3] == ["-m", "areal.hosts.step"] and words[4] == row and str(self.run_dir) in words[3]:
                    return one
        raise AssertionError(f"no step of {row}")

    def check(self, steps: int) -> dict:
        """The run is complete, and each group was used once."""
        summary = json.loads((self.run_dir / "summary.json").read_text())
        assert (summary["status"], summary["steps"]) == ("Complete", steps), self.said[-6000:]
        command = self._areal("audit", str(self.run_dir), "--json")
        done = subprocess.run(command, cwd=ROOT, env=self.lab.env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        audit = json.loads(done.stdout)
        assert (audit["lost"], audit["duplicated"], audit["steps"]) == (0, 0, steps)
        print(json.dumps({name: summary[name] for name in ("steps", "wallSeconds", "heldOut", "restarts", "groups")}))
        return summary


def test_a_run_over_two_ray_nodes_outlives_its_trainer_and_a_node(lab, digits, tmp_path):
    job = RayJob(lab, tmp_path / "run", "algorithm.maxSteps=80", "evaluation.intervalSteps=20")
    job.wait_for("step 8", lambda: job.step >= 8, 600)
    plan = job.plan
    first, second = plan.of("trainer")[0], plan.of("worker-0")[0]
    assert (first.address, second.address) == ADDRESSES, "the node of the command comes first: Ray's head"
    assert all(plan.of(row) == [first] for row in ("redis", "controller", "trainer"))
    assert all(plan.of(row) == [second] for row in ("reward-custom", "generation-0", "worker-0"))
    assert job.programs("worker-0").keys() == {second.name}

    job.programs("trainer")[first.name].kill()
    before = job.step
    job.wait_for("more steps after the trainer's death", lambda: job.step >= before + 8, 600)

    assert lab.lose(second.address) >= 5
    job.wait_for("moved rows", lambda: job.said.count(f"starts on ('{first.name}',)") == 3, 120)
    assert job.process.wait(900) == 0, job.said[-6000:]
    summary = job.check(80)
    assert summary["restarts"]["trainer"] == 1
    assert all(summary["restarts"][row] >= 1 for row in ("reward-custom", "generation-0", "worker-0"))
    assert summary["heldOut"]["last"] >= 0.85


def test_a_run_that_is_told_to_leave_saves_and_goes_on_later(lab, digits, tmp_path):
    job = RayJob(lab, tmp_path / "run", "algorithm.maxSteps=24")
    job.wait_for("step 3", lambda: job.step >= 3, 600)
    (program,) = job.programs("worker-0").values()
    job.step_of("worker-0").kill()  # its program goes on: the row's next start ends it first

    def another() -> bool:
        return bool(found := job.programs("worker-0")) and all(one.pid != program.pid for one in found.values())

    job.wait_for("another worker", another, 120)
    assert not program.is_running() or program.status() == psutil.STATUS_ZOMBIE
    job.wait_for("step 6", lambda: job.step >= 6, 600)
    job.process.send_signal(signal.SIGTERM)
    job.process.wait(180)
    saved = job.step
    assert 6 <= saved < 24
    assert json.loads((job.run_dir / "summary.json").read_text())["status"] == "Stopped", job.said[-6000:]
    assert "--on ray --ray nodes=2 --resume" in job.said
    assert not job.programs("trainer")
    again = RayJob(lab, job.run_dir, "algorithm.maxSteps=24", "--resume")
    assert again.process.wait(900) == 0, again.said[-6000:]
    assert again.check(24)["groups"]["trained"] == 24 * 16
    steps = [json.loads(line)["step"] for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(24)), "the checkpoint of the end was used: no step was made twice"


def test_a_trainer_over_two_ray_nodes_starts_again_as_a_whole(lab, digits, tmp_path):
    job = RayJob(lab, tmp_path / "run", "algorithm.maxSteps=16", "trainer.replicas=2")
    job.wait_for("step 5", lambda: job.step >= 5, 600)
    members = job.programs("trainer")
    assert len(members) == 2
    members[job.plan.of("trainer")[1].name].kill()
    assert job.process.wait(900) == 0, job.said[-6000:]
    assert job.check(16)["restarts"]["trainer"] == 1


def test_more_nodes_than_ray_has_are_refused_with_the_number(lab, tmp_path):
    job = RayJob(lab, tmp_path / "run", nodes=3)
    assert job.process.wait(120) == 64
    assert "Ray has 2 nodes, 3 are asked for" in job.said
    assert not (tmp_path / "run").exists()


def test_an_actor_needs_nothing_of_this_project_where_it_runs(tmp_path):
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(ray_cluster)
    try:
        (tmp_path / "actor").write_bytes(ray.cloudpickle.dumps(ray_cluster.HostActor))
    finally:
        ray.cloudpickle.unregister_pickle_by_value(ray_cluster)
    told = subprocess.run([sys.executable, "-c", ELSEWHERE, str(tmp_path / "actor")], capture_output=True, text=True)
    assert told.stdout == "[b'up', 0]\n", told.stderr
