"""Algorithms beside GRPO, which the quickstart's test trains, learn the same task: two of `make learn`'s rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.job_run import ROOT

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.mark.usefixtures("digits")
def test_a_ratio_by_sequence_and_a_plain_policy_gradient_reach_the_bar(tmp_path: Path):
    command = [
        sys.executable,
        "tools/learn",
        "--only",
        "GSPO,LitePPO",
        "--steps",
        "60",
        "--run-dir",
        str(tmp_path / "runs"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    rows = json.loads((tmp_path / "runs" / "comparison.json").read_text())
    assert [row["name"] for row in rows] == ["GSPO", "LitePPO"]
    for row in rows:
        assert row["heldOut"][0]["mean"] <= 0.75
        assert row["heldOut"][-1]["mean"] >= 0.88
