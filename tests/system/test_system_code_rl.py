"""The programming example, as its file says: programs that a model wrote run in the sandbox and teach it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from areal.record.segment import Kind, frames, read
from areal.v1.record_pb2 import SampleRecord
from support.job_run import ROOT, JobRun

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

STEPS = 40
MARGIN = 0.2  # of the held-out tasks; seen are 0.44 more


@pytest.fixture(scope="module")
def start_model() -> None:
    """What the example's first lines make, once in the checkout (both are kept as long as nothing changes)."""
    subprocess.run([sys.executable, "examples/code_rl_data.py", "data/code"], cwd=ROOT, check=True, timeout=120)
    command = [sys.executable, "-m", "areal_trainer.init_model", "--out", "models/code-1m", "--until", "0.15"]
    command += ["--sft", "data/code/sft.jsonl", "--validation", "data/code/validation.jsonl"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)


@pytest.mark.usefixtures("start_model")
def test_programs_that_run_in_the_sandbox_teach_the_model(tmp_path: Path):
    run = JobRun(ROOT / "examples" / "code_rl.yaml", tmp_path / "run", [f"algorithm.maxSteps={STEPS}"]).start()
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
    assert sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10 + 0.05
    assert run.audit()["ok"]
    files = sorted((run.run_dir / "trajectories").glob("*.rec"))
    rows = [(path, frame) for path in files for frame in frames(path) if frame.header.kind is Kind.SAMPLE]
    verdicts = [SampleRecord.FromString(read(path, frame.offset)).sample.verdict for path, frame in rows]
    judged = [verdict for verdict in verdicts if verdict.status not in ("", "NO_PROGRAM")]
    assert {verdict.method for verdict in judged} == {"code"}
    assert {verdict.tier for verdict in judged} <= {"T2", "T3", "T4"}
    assert {"PASSED", "WRONG_ANSWER"} <= {verdict.status for verdict in judged}
