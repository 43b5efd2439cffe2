"""The README's first command, word for word, and the bar it promises."""

from __future__ import annotations

import json
import subprocess
import sys

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
    assert held_out["first"] <= 0.75
    assert held_out["last"] >= 0.9
    assert held_out["best"] - held_out["last"] <= 0.03
    print(json.dumps(summary))
    rows = [json.loads(line) for line in (ROOT / "runs" / "digits" / "metrics.jsonl").read_text().splitlines()]
    with_figure = [row["step"] for row in rows if row["behaviour_gap"] is not None]
    assert len(with_figure) >= 0.95 * len(rows), "how far trainer and engine are apart is known nearly always"
    asked = [sys.executable, "-m", "areal.cli.main", "why", "runs/digits", "--slow", "--json"]
    told = json.loads(subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout)
    for causes in told["ledger"]["roles"].values():
        assert sum(causes.values()) == pytest.approx(told["seconds"], rel=1e-6)
    assert told["ledger"]["roles"].keys() == {"trainer", "generation-0"}
    modelled, measured = told["forecast"]["modelled_s"], told["forecast"]["measured_s"]
    assert modelled == pytest.approx(measured, rel=0.35), "the model knows this run's pace"
    print(f"a step: {modelled:.2f} s modelled, {measured:.2f} s measured")
