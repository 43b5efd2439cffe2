"""A run whose servers mount nothing: they read versions over the network, and nothing is lost when anybody dies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.job_run import VICTIMS, JobRun

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(600)]

STEPS = 40


def fetched(run: JobRun) -> int:
    """How many versions servers read over the network."""
    return sum(log.read_text().count("read v0") for log in (run.run_dir / "logs").glob("generation-*.log"))


def test_servers_without_a_mount_go_on_through_deaths(start_job: Callable[..., JobRun]) -> None:
    run = start_job(f"algorithm.maxSteps={STEPS}", "generation.replicas=2", "weightSync.servers=Fetch")
    victims = {**VICTIMS, "weights": ("areal.processes.role", "weights")}
    for role in ("weights", "agent", "engine", "trainer"):
        known = fetched(run)
        run.wait_for(f"versions before the {role}", lambda known=known: fetched(run) >= known + 4, timeout_s=180)
        run.processes(*victims[role])[-1].kill()
    assert run.finish(timeout_s=240) == 0, run.output[-4000:]
    logs = "".join(log.read_text() for log in (run.run_dir / "logs").glob("generation-*.log"))
    assert "read model, " in logs

    audit = run.audit()
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (STEPS * 16, 0, 0)
    assert not any(audit["tombstoned"].get(reason) for reason in ("infra", "deadline", "poison"))
    assert run.summary()["staleness"]["max"] <= 2
