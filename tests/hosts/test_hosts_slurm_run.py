"""The quickstart's job over two slurmd on this machine: a node and the trainer's step are killed; the time runs out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.job_run import ROOT, SMALL
from support.slurm_lab import SlurmLab, missing

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[SlurmLab]:
    if lacking := missing():
        pytest.skip(f"not installed: {', '.join(lacking)}; `tools/setup nightly` installs Slurm and munge")
    if os.geteuid() != 0:
        pytest.skip("slurmd starts steps as root only")
    made = SlurmLab(tmp_path / "slurm")
    try:
        yield made.start()
    finally:
        made.stop()


class SlurmRun:
    """One job of `areal run --on slurm`."""

    def __init__(self, lab: SlurmLab, run_dir: Path, *overrides: str, options: tuple[str, ...] = ()) -> None:
        self.lab, self.run_dir = lab, run_dir
        flags = [word for option in ("nodes=2", "time=40", *options) for word in ("--slurm", option)]
        command = ["run", "examples/quickstart.yaml", *SMALL, *overrides, "--run-dir", str(run_dir), "--on", "slurm"]
        self.job = re.search(r"Slurm's job (\d+)", self.areal(*command, *flags))[1]  # type: ignore[index]

    def areal(self, *words: str) -> str:
        env = {name: value for name, value in self.lab.env.items() if name != "PYTHONDONTWRITEBYTECODE"}
        command = [sys.executable, "-m", "areal.cli.main", *words]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def said(self) -> str:
        path = self.run_dir.with_name(f"{self.run_dir.name}.slurm.log")
        return path.read_text(errors="replace") if path.exists() else ""

    def step(self) -> int:
        path = self.run_dir / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return max((json.loads(line)["step"] + 1 for line in lines if line.endswith("\n")), default=0)

    def wait_for(self, what: str, ready: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            assert time.monotonic() < deadline, f"no {what} within {timeout_s} s:\n{self.said[-6000:]}"
            assert "Traceback" not in self.said, self.said[-6000:]
            time.sleep(0.5)

    def check(self, steps: int) -> dict:
        """The run is complete, and each group was used once."""
        summary = json.loads((self.run_dir / "summary.json").read_text())
        assert (summary["status"], summary["steps"]) == ("Complete", steps), self.said[-6000:]
        audit = json.loads(self.areal("audit", str(self.run_dir), "--json"))
        assert (audit["lost"], audit["duplicated"], audit["steps"]) == (0, 0, steps)
        told = {name: summary[name] for name in ("steps", "wallSeconds", "heldOut", "restarts", "groups")}
        print(json.dumps(told))
        return summary


def test_a_run_over_two_nodes_outlives_its_trainer_and_a_node(lab, digits, tmp_path):
    run = SlurmRun(lab, tmp_path / "run", "algorithm.maxSteps=80", "evaluation.intervalSteps=20")
    run.wait_for("step 8", lambda: run.step() >= 8, 600)
    nodes = {name.removeprefix("row-"): node for name, (_, node) in lab.steps().items()}
    assert {nodes[row] for row in ("redis", "controller", "trainer")} == {"n0"}
    assert {nodes[row] for row in ("reward-custom", "generation-0", "worker-0")} == {"n1"}
    tokens = [path.read_bytes() for path in (run.run_dir / "access").glob("token.*")]
    seen = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(token in line for token in tokens for line in seen), "a token is in no command line"
    assert len(tokens) == 4

    lab.ask("scancel", "--signal=KILL", lab.steps()["row-trainer"][0])
    before = run.step()
    run.wait_for("more steps after the trainer's death", lambda: run.step() >= before + 8, 600)

    assert len(lab.lose("n1")) >= 4, "slurmd and the slurmstepd of three rows"
    run.wait_for("moved rows", lambda: run.said.count("starts on ('n0',)") == 3, 120)
    run.wait_for("the end", lambda: lab.state(run.job) in ("COMPLETED", ""), 900)
    summary = run.check(80)
    assert summary["restarts"]["trainer"] == 1
    assert all(summary["restarts"][row] >= 1 for row in ("reward-custom", "generation-0", "worker-0"))
    assert summary["heldOut"]["last"] >= 0.85


def test_a_job_whose_time_runs_out_saves_and_goes_on_in_its_next_life(lab, digits, tmp_path):
    run = SlurmRun(lab, tmp_path / "run", "algorithm.maxSteps=24", options=("signal=B:TERM@60",))
    run.wait_for("step 6", lambda: run.step() >= 6, 600)
    lab.ask("scancel", "--batch", "--signal=TERM", run.job)  # what Slurm sends before the end of the time limit
    run.wait_for("a queued job", lambda: lab.state(run.job) == "PENDING", 120)
    saved = run.step()
    assert f"job {run.job} is queued again" in run.said
    assert 6 <= saved < 24
    stopped = json.loads((run.run_dir / "summary.json").read_text())
    assert stopped["status"] == "Stopped"
    lab.ask("scontrol", "update", f"jobid={run.job}", "StartTime=now")
    run.wait_for("the end", lambda: lab.state(run.job) in ("COMPLETED", ""), 900)
    summary = run.check(24)
    steps = [json.loads(line)["step"] for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(24)), "the checkpoint of the end was used: no step was made twice"
    assert summary["groups"]["trained"] == 24 * 16


def test_a_trainer_over_two_nodes_is_one_step_and_starts_again_as_a_whole(lab, digits, tmp_path):
    run = SlurmRun(lab, tmp_path / "run", "algorithm.maxSteps=16", "trainer.replicas=2")
    run.wait_for("step 5", lambda: run.step() >= 5, 600)
    step, nodes = lab.steps()["row-trainer"]
    assert nodes == "n[0-1]"
    lab.ask("scancel", "--signal=KILL", step)
    run.wait_for("the end", lambda: lab.state(run.job) in ("COMPLETED", ""), 900)
    assert run.check(16)["restarts"]["trainer"] == 1


def test_a_job_that_is_cancelled_is_not_queued_again(lab, digits, tmp_path):
    run = SlurmRun(lab, tmp_path / "run")
    run.wait_for("roles", lambda: "row-controller" in lab.steps(), 300)
    lab.ask("scancel", run.job)
    run.wait_for("its end", lambda: lab.state(run.job) in ("CANCELLED", "FAILED", ""), 120)
    time.sleep(5)
    assert lab.state(run.job) in ("CANCELLED", "FAILED", "")
    assert "is queued again" not in run.said
