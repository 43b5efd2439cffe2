"""Attacks of `make chaos`: a full disk, a minute's stop of each role, a store killed three times, few descriptors, a
teacher that is away.

The run goes on, or says in a sentence why it can't; and it trains no group twice.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from areal.observe.causes import why
from areal.observe.live import read_live
from areal.plan.layout import RunLayout
from support.engine_server import EngineServer
from support.job_run import ROOT, SMALL, VICTIMS, JobRun
from support.small_disk import fill, small_disk
from support.stall_matrix import WITHIN_S

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

STOPPED_S = 60.0
LONG = 100_000  # steps: the run is stopped
DESCRIPTORS = 128
DISK_MB = 160


@pytest.fixture(autouse=True)
def _attacks(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--attacks"):
        pytest.skip("minutes each: make chaos")


def further(run: JobRun, steps: int, timeout_s: float) -> None:
    """Wait for so many more steps."""
    wanted = run.step() + steps
    run.wait_for(f"step {wanted}", lambda: run.step() >= wanted, timeout_s)


def stopped(run: JobRun) -> tuple[int, int, int]:
    """Stop the run as Ctrl-C does, which saves; its exit code, groups lost, groups trained twice."""
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    code, audit = run.finish(timeout_s=180), run.audit()
    return code, audit["lost"], audit["duplicated"]


def test_a_full_disk_stops_a_run_and_room_lets_it_go_on(digits: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_MB) as disk:
        (disk / "run.out").symlink_to(tmp_path / "run.out")  # what is printed needs no room there
        job = [*SMALL, f"algorithm.maxSteps={LONG}", "evaluation.intervalSteps=100000"]
        run = JobRun(ROOT / "examples/quickstart.yaml", disk / "run", job).start()
        try:
            run.wait_for("step 6", lambda: run.step() >= 6, 240)
            ballast = fill(disk)
            run.wait_for("its name", lambda: said(RunLayout(run.run_dir)).startswith("disk-full"), WITHIN_S)
            run.wait_for("a role that restarts", lambda: "restarts" in run.output, 120)
            ballast.unlink()
            further(run, 6, 240)
            assert stopped(run) == (143, 0, 0), run.output[-4000:]
        finally:
            run.stop()


def test_each_role_may_be_stopped_for_a_minute(start_job: Callable[..., JobRun]) -> None:
    run = start_job(f"algorithm.maxSteps={LONG}", "evaluation.intervalSteps=100000")
    further(run, 4, 240)
    told = []
    for role, words in VICTIMS.items():
        victim = run.processes(*words)[-1]
        victim.suspend()
        time.sleep(STOPPED_S)
        if victim.is_running() and victim.status() == psutil.STATUS_STOPPED:
            victim.resume()
        began, step = time.monotonic(), run.step()
        further(run, 4, 240)
        told.append(f"  {role:<12} {run.step() - step} steps {time.monotonic() - began:.0f} s after its minute")
    print("\n" + "\n".join(told))
    assert stopped(run) == (143, 0, 0), run.output[-4000:]


def test_a_store_that_is_killed_three_times(start_job: Callable[..., JobRun]) -> None:
    run = start_job("algorithm.maxSteps=40")
    further(run, 4, 240)
    for _ in range(3):
        run.kill(*VICTIMS["redis"])
        further(run, 4, 240)
    assert run.finish(timeout_s=300) == 0, run.output[-4000:]
    audit = run.audit()
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (40 * 16, 0, 0)


def test_a_run_with_few_descriptors_ends_or_says_why_it_can_not(start_job: Callable[..., JobRun]) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    run = start_job("algorithm.maxSteps=12", "rollout.maxConcurrentRollouts=256")
    assert run.process is not None
    resource.prlimit(run.process.pid, resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), min(DESCRIPTORS, hard)))
    code = run.finish(timeout_s=600)
    print(f"\n{run.output[-3000:]}")
    assert code in (0, 75), run.output[-4000:]
    assert code == 0 or "descriptors" in run.output or "Too many open files" in run.output
    assert "please report" not in run.output


def test_a_served_teacher_that_is_killed_in_the_middle_is_waited_for(digits: Path, tmp_path: Path) -> None:
    teacher = EngineServer("embedded", ROOT / "runs/digits-sft/model").start()
    address = f"http://127.0.0.1:{teacher.port}"
    given = [
        "model.path=models/new-1m", "recipe=null", "dataset.evaluation=null", "evaluation=null",
        f"algorithm.teacher.endpoint={address}", "algorithm.batchSize=16", "algorithm.maxSteps=16",
        "rollout.maxConcurrentRollouts=48", "checkpoint.intervalSteps=4",
    ]  # fmt: skip
    run = JobRun(ROOT / "examples/on_policy_distill.yaml", tmp_path / "taught", given).start()
    try:
        run.wait_for("step 5", lambda: run.step() >= 5, 300)
        os.killpg(teacher.pid, signal.SIGKILL)
        layout = RunLayout(run.run_dir)
        run.wait_for("its name", lambda: "waits-for-model" in said(layout) and address in said(layout), 90)
        at = run.step()
        teacher.start()
        run.wait_for("a step with it", lambda: run.step() > at, 120)
        os.killpg(teacher.pid, signal.SIGKILL)
        run.wait_for("a trainer that goes back to its checkpoint", lambda: "restarts" in run.output, 300)
        teacher.start()
        assert run.finish(400) == 0, run.output[-4000:]
    finally:
        run.stop()
        teacher.stop()
    audit = run.audit()
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (16 * 16, 0, 0)


def said(layout: RunLayout) -> str:
    """What `areal why` says, with the cause's name."""
    live = read_live(layout.live)
    answer = why(live) if live is not None else None
    return f"{answer.cause}: {answer.sentence}" if answer is not None else ""
