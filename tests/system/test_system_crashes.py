"""Each role is killed once in the middle of a run: the run ends well, nothing is lost, nothing is trained twice."""

from __future__ import annotations

import pytest
from support.job_run import VICTIMS

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

HEALED = ("infra", "deadline", "poison")  # reasons that a fault which healed must not leave behind


@pytest.mark.parametrize("role", VICTIMS)
def test_a_run_survives_the_death_of(role, start_job):
    run = start_job()
    run.wait_for("step 7", lambda: run.step() >= 7, timeout_s=120)
    victim = run.processes(*VICTIMS[role])[-1]  # of torchrun and its rank, the rank
    before = {process.pid for process in run.processes(*VICTIMS[role])}
    victim.kill()
    run.wait_for(
        "another process in its place",
        lambda: bool({process.pid for process in run.processes(*VICTIMS[role])} - before),
        timeout_s=60,
    )
    assert run.finish(timeout_s=180) == 0, run.output[-4000:]

    audit = run.audit()
    assert audit["trained"] == 24 * 16
    assert (audit["lost"], audit["duplicated"]) == (0, 0)
    assert not {reason: n for reason, n in audit["tombstoned"].items() if reason in HEALED and n}
    assert run.summary()["status"] == "Complete"


def test_an_audit_finds_a_planted_duplicate(start_job):
    run = start_job("algorithm.maxSteps=3")
    assert run.finish(timeout_s=120) == 0, run.output[-4000:]
    assert run.audit()["duplicated"] == 0
    evidence = next(path for path in sorted((run.run_dir / "evidence").iterdir()) if path.stat().st_size)
    lines = evidence.read_text().splitlines(keepends=True)
    trained = next(line for line in lines if "trained" in line)
    evidence.write_text("".join([*lines, trained]))
    with pytest.raises(AssertionError, match="duplicated"):
        run.audit()
