"""On-policy distillation as a whole run: a new student, its own samples, a teacher, and nobody who scores."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.job_run import ROOT, JobRun

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(600)]

STEPS = 16


def test_a_student_nears_its_teacher_on_its_own_samples_without_a_reward_service(digits: Path, tmp_path: Path) -> None:
    given = [
        "model.path=models/new-1m", "recipe=null", "dataset.evaluation=null", "evaluation=null",
        "algorithm.batchSize=16", f"algorithm.maxSteps={STEPS}", "optimizer.learningRate=1e-3",
        "optimizer.lrSchedule=constant", "rollout.maxConcurrentRollouts=48", "checkpoint.intervalSteps=8",
    ]  # fmt: skip
    run = JobRun(ROOT / "examples/on_policy_distill.yaml", tmp_path / "taught", given).start()
    try:
        run.wait_for("a step", lambda: run.step() > 0, 300)
        assert not run.processes("areal.processes.role", "reward")
        assert run.finish(400) == 0, run.output
    finally:
        run.stop()
    summary = run.summary()
    groups = summary["groups"]
    assert (summary["steps"], groups["trained"], groups["lost"], groups["duplicated"]) == (STEPS, STEPS * 16, 0, 0)
    run.audit()
    rows = run.metrics()
    assert {row["reward_mean"] for row in rows} == {0.0}
    assert all(row["staleness_max"] <= 2 for row in rows)
    divergence = [row["teacher_kl"] for row in rows]
    assert sum(divergence[-3:]) / 3 < 0.9 * divergence[0], divergence
