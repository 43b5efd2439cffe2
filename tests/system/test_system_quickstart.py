"""The README's first command, word for word, and the bar it promises."""

from __future__ import annotations

import json
import subprocess

import pytest
from support.job_run import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def test_make_quickstart_trains_to_a_rising_reward():
    done = subprocess.run(["make", "quickstart"], cwd=ROOT, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    summary = json.loads((ROOT / "runs" / "digits" / "summary.json").read_text())
    assert summary["status"] == "Complete"
    assert summary["steps"] == 160
    assert summary["groups"] == {"trained": 160 * 64, "tombstoned": {}, "lost": 0, "duplicated": 0}
    assert summary["staleness"]["max"] <= 2
    held_out = summary["heldOut"]
    assert held_out["first"] <= 0.7
    assert held_out["last"] >= 0.9
    assert held_out["best"] - held_out["last"] <= 0.03
    print(json.dumps(summary))
