"""Nothing grows: what every role holds after a tenth of the steps it holds near the end.

`make nightly` counts live objects for a minute; `make chaos` runs ten thousand steps (`--soak-steps`) and looks at
memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import soak
from support.job_run import ROOT, SMALL, JobRun

pytestmark = [
    pytest.mark.system,
    pytest.mark.nightly,
    pytest.mark.timeout(0),
]  # each wait has a deadline that grows with the steps

PER_STEP = 1.0  # objects of one type; a step has two groups, and event loops hold up to 100 cancelled timers
MOST_MB = 1.0  # a thousand steps
LONG = 5000  # steps after which memory's slope says more than the allocator's noise


def test_no_role_holds_more_after_many_steps(request: pytest.FixtureRequest, digits: Path, tmp_path: Path) -> None:
    steps = int(request.config.getoption("--soak-steps"))
    job = [
        *SMALL, f"algorithm.maxSteps={steps}", "algorithm.batchSize=2", "algorithm.groupSize=2",
        "rollout.maxConcurrentRollouts=6", f"evaluation.intervalSteps={steps}", "evaluation.rows=2",
        f"checkpoint.intervalSteps={steps // 30}",  # the first look comes after three
    ]  # fmt: skip
    counts = tmp_path / "counts"
    run = JobRun(ROOT / "examples/quickstart.yaml", tmp_path / "run", job, environment=soak.environment(counts)).start()
    within_s = 120 + steps
    try:
        run.wait_for("a tenth of the steps", lambda: run.step() >= steps // 10, within_s)
        early = soak.look(run, counts)
        run.wait_for("most of the steps", lambda: run.step() >= steps * 9 // 10, within_s)
        late = soak.look(run, counts)
    finally:
        run.stop()
    print(soak.table(early, late))
    assert {role: held.pid for role, held in early.items()} == {role: held.pid for role, held in late.items()}
    more = {role: soak.growing(early[role], late[role], PER_STEP) for role in early}
    assert {role: kinds for role, kinds in more.items() if kinds} == {}
    if steps >= LONG:
        slopes = {role: round(soak.slope_mb(early[role], late[role]), 2) for role in early}
        assert {role: slope for role, slope in slopes.items() if slope > MOST_MB} == {}
        assert all(late[role].descriptors <= early[role].descriptors + 4 for role in early)
        assert all(late[role].threads <= early[role].threads + 4 for role in early)
