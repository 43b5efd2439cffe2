"""Trainer and engine on the same devices by turns: a run learns, and whoever is killed in any phase loses nothing."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from areal.cards import CardSide
from areal.plan import ResolvedJob
from areal.weights.publish import versions
from areal.weights.stage import memory_directory
from support.job_run import ROOT, VICTIMS, JobRun

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1800)]

SHARED = ("placement=shared", "rollout.maxConcurrentRollouts=32")
HEALED = ("infra", "deadline", "poison")  # reasons that a fault which healed must not leave behind
PHASES = (*CardSide, "switching")
DEATHS = [(role, phase) for phase in PHASES for role in ("trainer", "engine", "agent", "controller")]
APART = 3  # steps that are trained between one death and the next: the run is whole again


def has_cards(run: JobRun, side: CardSide) -> bool:
    """Whether somebody of a side holds the lock."""
    path = run.run_dir / "cards" / side
    if not path.exists():
        return False
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def phase(run: JobRun) -> str:
    """Whose the cards are now, or that they are on their way."""
    return next((side.value for side in CardSide if has_cards(run, side)), "switching")


def kill(run: JobRun, role: str, when: str) -> None:
    """Kill a role's process as soon as the cards are where they are to be."""
    run.wait_for(f"{role} while {when}", lambda: phase(run) == when and bool(run.processes(*VICTIMS[role])), 120)
    for victim in run.processes(*VICTIMS[role])[-1:]:
        victim.kill()


def check(run: JobRun, steps: int) -> None:
    audit = run.audit()
    assert audit["trained"] == steps * 16
    assert (audit["lost"], audit["duplicated"]) == (0, 0)
    assert not {reason: n for reason, n in audit["tombstoned"].items() if reason in HEALED and n}


@pytest.mark.parametrize("staleness", [0, 1])
def test_whoever_is_killed_in_whichever_phase_loses_nothing(start_job: Callable[..., JobRun], staleness: int) -> None:
    steps = (APART + 1) * len(DEATHS)
    run = start_job(*SHARED, f"algorithm.maxSteps={steps}", f"algorithm.maxStaleness={staleness}")
    for role, when in DEATHS:
        after = min(steps - 1, run.step() + APART)
        run.wait_for(f"step {after}", lambda after=after: run.step() >= after, timeout_s=240)
        kill(run, role, when)
    assert run.finish(timeout_s=600) == 0, run.output[-4000:]
    check(run, steps)


@pytest.mark.parametrize("side", CardSide)
def test_a_run_that_is_stopped_saves_what_it_has_and_goes_on_from_there(
    start_job: Callable[..., JobRun], side: CardSide
) -> None:
    rare = ("algorithm.maxStaleness=1", "checkpoint.intervalSteps=24")
    run = start_job(*SHARED, *rare)
    run.wait_for("step 4", lambda: run.step() >= 4, timeout_s=240)
    run.wait_for(side, lambda: has_cards(run, side), timeout_s=120)
    assert run.process is not None
    run.process.terminate()
    run.finish(timeout_s=120)
    again = start_job(*SHARED, *rare, resume=run)
    assert again.finish(timeout_s=400) == 0, again.output[-4000:]
    log = (run.run_dir / "logs" / "trainer.log").read_text()
    started = [int(line.rpartition("at step ")[2]) for line in log.splitlines() if "starts under fence" in line]
    assert started[-1] >= 4, "asked to stop it took the cards, to save its newest step"
    check(again, 24)


def memory_of(run: JobRun) -> Path:
    """Where the run's trainer hands versions over."""
    return memory_directory(ResolvedJob.load(run.run_dir).uid)


def test_versions_are_handed_over_in_memory_and_one_that_is_lost_with_it_is_handed_over_again(
    start_job: Callable[..., JobRun],
) -> None:
    auto = ("weightSync.mode=Auto", "algorithm.maxStaleness=1", "algorithm.maxSteps=12", "checkpoint.intervalSteps=8")
    run = start_job(*SHARED, *auto)
    run.wait_for("a version that the volume doesn't have", lambda: 3 <= run.step() <= 5, timeout_s=600)
    memory = memory_of(run)
    assert versions(memory), "what servers read is in memory"
    assert [policy.version for policy in versions(run.run_dir / "weights")] == [0]

    # the machine's memory is gone with the trainer and the server: as when their pod is
    for role in ("trainer", "agent"):
        for victim in run.processes(*VICTIMS[role]):
            victim.kill()
    shutil.rmtree(memory)
    assert run.finish(timeout_s=1200) == 0, run.output[-4000:]
    check(run, 12)
    assert "is lost with the memory that it was in" in (run.run_dir / "logs" / "trainer.log").read_text()
    assert max(policy.version for policy in versions(run.run_dir / "weights")) == 12
    assert not memory.exists()
    assert (run.run_dir / "model" / "model.safetensors").exists()


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("engine", ["embedded", pytest.param("sglang", marks=pytest.mark.sglang_real)])
def test_the_quickstart_reaches_its_bar_through_a_death_in_each_phase(
    digits: Path, tmp_path: Path, engine: str
) -> None:
    told = tmp_path / "told.json"
    command = [sys.executable, "bench/shared_cards.py", f"--engine={engine}", f"--run-dir={tmp_path / 'run'}"]
    subprocess.run([*command, f"--json={told}"], cwd=ROOT, check=True, timeout=7000)
    run = json.loads(told.read_text())
    assert (run["exit"], run["status"], run["steps"]) == (0, "Complete", 160)
    assert run["groups"] == {"trained": 160 * 64, "tombstoned": {}, "lost": 0, "duplicated": 0}
    assert run["held_out"]["last"] >= 0.9
    assert {kill["phase"] for kill in run["kills"]} == {*CardSide, "switching"}
    assert {kill["role"] for kill in run["kills"]} == {"trainer", "engine", "agent", "controller"}
