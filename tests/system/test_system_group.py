"""A run whose weights come by a process group: an engine and the trainer die, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.job_run import VICTIMS, JobRun

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(600)]

STEPS = 48


def came_by_group(run: JobRun) -> int:
    """How many versions servers took from the trainer itself."""
    return sum(log.read_text().count("came by the group") for log in (run.run_dir / "logs").glob("generation-*.log"))


def test_servers_take_versions_from_the_trainer_before_and_after_deaths(start_job: Callable[..., JobRun]) -> None:
    run = start_job(
        f"algorithm.maxSteps={STEPS}", "generation.replicas=2", "weightSync={mode: Group, bucketBytes: 64Ki}"
    )
    for role in ("engine", "trainer"):
        known = came_by_group(run)
        run.wait_for("versions by the group", lambda known=known: came_by_group(run) >= known + 4, timeout_s=180)
        run.processes(*VICTIMS[role])[-1].kill()
    known = came_by_group(run)
    run.wait_for("versions by the next group", lambda: came_by_group(run) >= known + 2, timeout_s=180)
    assert run.finish(timeout_s=240) == 0, run.output[-4000:]

    audit = run.audit()
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (STEPS * 16, 0, 0)
    assert not any(audit["tombstoned"].get(reason) for reason in ("infra", "deadline", "poison"))
    assert run.summary()["staleness"]["max"] <= 2
