"""Every role is killed in the middle of one run: the run ends well, nothing is lost, nothing is trained twice."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from areal.errors import ConfigError
from areal.local.inspect import set_hot
from areal.weights.exports import exported_steps
from support.job_run import VICTIMS, JobRun

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

HEALED = ("infra", "deadline", "poison")  # reasons that a fault which healed must not leave behind
ROLES = ("redis", "agent", "trainer", "controller", "engine", "worker", "reward")  # in the order of their deaths
ENDLESS = 400  # steps of the job as it begins
FIRST_STEP = 5
APART = 3  # steps that are trained between one death and the next: the run is whole again
AFTER = 6  # steps that are trained after the last death


def kill(run: JobRun, role: str) -> None:
    """Kills a role's process and waits for another in its place."""
    victim = run.processes(*VICTIMS[role])[-1]  # of torchrun and its rank, the rank
    before = {process.pid for process in run.processes(*VICTIMS[role])}
    victim.kill()
    run.wait_for(
        f"another process in the place of {role}",
        lambda: bool({process.pid for process in run.processes(*VICTIMS[role])} - before),
        timeout_s=60,
    )


def test_a_run_survives_the_death_of_each_role(start_job: Callable[..., JobRun]) -> None:
    sampled = ("evaluation.samples=1", "evaluation.oneVersion=true", "export.intervalSteps=4")
    run = start_job(f"algorithm.maxSteps={ENDLESS}", *sampled)
    for role in ROLES:
        after = max(FIRST_STEP, run.step() + APART)
        run.wait_for(f"step {after}", lambda after=after: run.step() >= after, timeout_s=120)
        kill(run, role)
    steps = run.step() + AFTER
    assert set_hot(run.run_dir, {"algorithm.maxSteps": steps})["algorithm.maxSteps"] == steps
    with pytest.raises(ConfigError, match="maxStaleness"):
        set_hot(run.run_dir, {"algorithm.maxStaleness": 5000})
    assert run.finish(timeout_s=180) == 0, run.output[-4000:]

    audit, summary = run.audit(), run.summary()
    assert (summary["status"], steps <= summary["steps"] < ENDLESS) == ("Complete", True)
    assert audit["trained"] == summary["steps"] * 16
    assert (audit["lost"], audit["duplicated"]) == (0, 0)
    assert not {reason: n for reason, n in audit["tombstoned"].items() if reason in HEALED and n}
    evaluated = [json.loads(line) for line in (run.run_dir / "evaluations.jsonl").read_text().splitlines()]
    assert all(one["oldest_version"] == one["newest_version"] == one["version"] for one in evaluated)
    assert exported_steps(run.run_dir / "exports")


def test_every_role_is_killed() -> None:
    assert sorted(ROLES) == sorted(VICTIMS)
