"""The programming example, as its file says: programs that a model wrote run in the sandbox and teach it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from areal.record.segment import FrameKind, frames, read
from areal.v1.record_pb2 import SampleRecord
from support.job_run import ROOT, JobRun
from support.made import made

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(900)]

STEPS = 16
MARGIN = 0.05  # of the held-out tasks


@pytest.fixture(scope="module")
def start_model() -> None:
    """What the example's first lines make, once in the checkout."""
    made("runs/code-sft/model")


@pytest.mark.usefixtures("start_model")
def test_programs_that_run_in_the_sandbox_teach_the_model(tmp_path: Path):
    run = JobRun(
        ROOT / "examples" / "code_rl.yaml",
        tmp_path / "run",
        [f"algorithm.maxSteps={STEPS}", f"evaluation.intervalSteps={STEPS}"],
    ).start()
    try:
        assert run.finish(800) == 0, run.output[-6000:]
    finally:
        run.stop()
    summary = run.summary()
    print(json.dumps(summary))
    assert summary["status"] == "Complete"
    assert summary["steps"] == STEPS
    assert summary["groups"]["tombstoned"] == {}, "no infrastructure fault, no unfit row"
    held_out = summary["heldOut"]
    assert held_out["first"] <= 0.5
    assert held_out["last"] >= held_out["first"] + MARGIN
    rewards = [entry["reward_mean"] for entry in run.metrics()]
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.02
    assert run.audit()["ok"]
    files = sorted((run.run_dir / "trajectories").glob("*.rec"))
    rows = [(path, frame) for path in files for frame in frames(path) if frame.header.kind is FrameKind.SAMPLE]
    verdicts = [SampleRecord.FromString(read(path, frame.offset)).sample.verdict for path, frame in rows]
    judged = [verdict for verdict in verdicts if verdict.status not in ("", "NO_PROGRAM")]
    assert {verdict.method for verdict in judged} == {"code"}
    assert {verdict.tier for verdict in judged} <= {"T2", "T3", "T4"}
    assert {"PASSED", "WRONG_ANSWER"} <= {verdict.status for verdict in judged}
