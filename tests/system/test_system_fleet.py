"""Two engines and two workers: one engine refuses a version, one lags, one dies in the middle of samples."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.job_run import ROOT, JobRun

pytestmark = [pytest.mark.system, pytest.mark.timeout(420)]


def agents(run: JobRun) -> list[psutil.Process]:
    """The two agents, by index."""
    return [run.processes("areal.processes.role", "generation", f"--index {index}")[-1] for index in (0, 1)]


def version_made_while_stopped(run: JobRun, stopped: list[psutil.Process]) -> Path:
    """Stop both agents in the hope that the trainer has a batch left to train; returns the version that nobody read.

    The agents are stopped when it returns. Without a new version they go on, and it is tried again.
    """
    for _ in range(40):
        for agent in stopped:
            agent.send_signal(signal.SIGSTOP)
        known = set((run.run_dir / "weights").rglob("manifest.json"))
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            fresh = set((run.run_dir / "weights").rglob("manifest.json")) - known
            visible = sorted(path.parent for path in fresh if not path.parent.name.startswith("."))
            if visible:
                return visible[-1]
            time.sleep(0.01)
        for agent in stopped:
            agent.send_signal(signal.SIGCONT)
        time.sleep(0.7)
    raise AssertionError(f"the trainer made no version while the agents were stopped:\n{run.output[-4000:]}")


def damage(version: Path) -> tuple[Path, bytes]:
    """Flip the last byte of a tensor file in place; returns the file and what was in it."""
    shard = next(iter(sorted(version.glob("*.safetensors"))))
    whole = shard.read_bytes()
    with shard.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(bytes([whole[-1] ^ 0xFF]))
    return shard, whole


@pytest.mark.nightly  # each landing: deaths in test_system_crashes.py, refusals in test_generation_mutants.py
def test_one_engine_refuses_one_lags_and_one_dies(start_job):
    run = start_job(
        "generation.replicas=2", "rollout.workers=2", "algorithm.maxSteps=40", "checkpoint.intervalSteps=10"
    )
    run.wait_for("step 4", lambda: run.step() >= 4, timeout_s=150)
    first, second = agents(run)

    version = version_made_while_stopped(run, [first, second])
    shard, whole = damage(version)
    first.send_signal(signal.SIGCONT)  # the second one lags
    log = run.run_dir / "logs" / "generation-0.log"
    run.wait_for("a refused version", lambda: "refus" in log.read_text(), timeout_s=30)
    shard.write_bytes(whole)
    second.send_signal(signal.SIGCONT)

    passed = run.step()
    run.wait_for("progress after the refusal", lambda: run.step() >= passed + 4, timeout_s=90)
    run.processes("areal.engine.main")[-1].kill()
    assert run.finish(timeout_s=240) == 0, run.output[-4000:]

    audit = run.audit()
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (40 * 16, 0, 0)
    assert not any(audit["tombstoned"].get(reason) for reason in ("infra", "deadline", "poison"))
    assert run.summary()["staleness"]["max"] <= 2


def all_wait(run: JobRun) -> bool:
    """Whether `areal status` tells of each role, and of somebody that waits."""
    asked = subprocess.run(
        [sys.executable, "-m", "areal.cli.main", "status", str(run.run_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert asked.returncode == 0, asked.stderr
    roles = ("trainer", "worker-0", "controller", "generation-0")
    return "wait" in asked.stdout.lower() and all(role in asked.stdout for role in roles)


@pytest.mark.nightly
def test_status_names_every_wait_of_a_run_that_stands_still(start_job):
    run = start_job("algorithm.maxSteps=10", "evaluation.intervalSteps=5")
    run.wait_for("step 3", lambda: run.step() >= 3, timeout_s=120)
    engine = run.processes("areal.engine.main")[-1]
    engine.send_signal(signal.SIGSTOP)
    try:
        run.wait_for("every role's wait in the status", lambda: all_wait(run), timeout_s=60)
    finally:
        engine.send_signal(signal.SIGCONT)
    assert run.finish(timeout_s=200) == 0, run.output[-4000:]
    evaluations = (run.run_dir / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(evaluations[-1])["version"] == 10
