"""`areal chaos` on a run of real processes: each role is killed and stopped, all come back, the audit is clean."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.job_run import ROOT, JobRun

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1800)]

ROLES = {"redis", "controller", "worker-0", "generation-0", "reward-custom", "trainer"}


def chaos(run_dir: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "areal.cli.main", "chaos", str(run_dir), "--json", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_each_role_is_killed_and_stopped_and_nothing_is_lost(start_job: Callable[..., JobRun]) -> None:
    run = start_job("algorithm.maxSteps=100000", "evaluation.intervalSteps=100000")
    run.wait_for("step 8", lambda: run.step() >= 8, 240)
    for words, kind in (((), "kill"), (("--stop", "3"), "stop 3 s")):
        told = chaos(run.run_dir, "--seed", "5", *words)
        assert {row["role"] for row in told["roles"]} == ROLES
        assert all(row["kind"] == kind and row["new_step"] is not None for row in told["roles"]), told["roles"]
        assert all(row["replaced"] is not None for row in told["roles"]), told["roles"]
        assert (told["audit"]["lost"], told["audit"]["duplicated"], told["audit"]["problems"]) == (0, 0, [])
    before = run.step()
    run.wait_for("further steps", lambda: run.step() >= before + 4, 240)
