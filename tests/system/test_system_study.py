"""`areal study staleness` on real runs: ranked over seeds, drawn over η with bands, and gone on with for nothing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from support.job_run import ROOT

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1800)]

SMALL = [
    "algorithm.batchSize=16", "algorithm.maxSteps=6", "rollout.maxConcurrentRollouts=48", "evaluation.intervalSteps=6",
    "evaluation.rows=100", "checkpoint.intervalSteps=6",
]  # fmt: skip


def test_a_small_study_of_staleness(digits: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "areal.cli.main", "study", "staleness", "examples/quickstart.yaml", *SMALL,
        "--eta", "0,2", "--seeds", "2", "--run-dir", str(tmp_path / "study"),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "12 runs (6 variants, 2 seeds), 72 steps in all" in done.stdout
    rows = json.loads((tmp_path / "study/study.json").read_text())
    etas, kinds = ("0", "2", "unbounded"), ("naive", "decoupled")
    assert {row["name"] for row in rows} == {f"eta-{eta}_{kind}" for eta in etas for kind in kinds}
    assert all(len(row["scores"]) == 2 and math.isfinite(row["mean"]) and row["half95"] is not None for row in rows)
    ages = {}
    for row in rows:
        summary = json.loads((tmp_path / "study" / f"{row['name']}_seed-0/summary.json").read_text())
        assert summary["status"] == "Complete"
        ages[row["name"]] = summary["staleness"]["max"]
    assert max(ages[f"eta-0_{kind}"] for kind in kinds) == 0
    assert all(ages[f"eta-2_{kind}"] <= 2 for kind in kinds)
    assert max(ages[f"eta-unbounded_{kind}"] for kind in kinds) >= 2
    picture = (tmp_path / "study/study.svg").read_text()
    assert "η: 0, 2, ∞" in picture
    assert all(f"{kind}, 95 % {edge}" in picture for kind in kinds for edge in ("low", "high"))
    again = subprocess.run([*command, "--resume"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0
    assert "1 of 12" not in again.stdout, "what is complete is not run again"
