"""Every role is killed five times: nothing is lost, doubled or too old, and each recovery is seen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.job_run import ROOT, VICTIMS

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(3600)]

FAULTS = 5


def test_five_deaths_of_each_role_lose_nothing_and_each_recovery_is_seen(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "chaos.jsonl"
    command = [sys.executable, "bench/chaos.py", "--faults", str(FAULTS), "--kinds", "kill", "--out", str(out)]
    done = subprocess.run([*command, "--roles", *VICTIMS], cwd=ROOT, capture_output=True, text=True, timeout=3500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    rows = [json.loads(line) for line in out.read_text().splitlines()]
    kills = [row for row in rows if row["kind"] == "kill"]
    assert Counter(row["role"] for row in kills) == dict.fromkeys(VICTIMS, FAULTS)
    stamps = ("detected", "replaced", "useful", "old_step", "pause")
    assert [row for row in kills if any(row[stamp] is None for stamp in stamps)] == []
    audits = [row for row in rows if row["kind"] == "job"]
    assert sum(row["faults"] for row in audits) == len(kills)
    assert all(row["ok"] and not row["problems"] for row in audits)
    assert {(row["lost"], row["duplicated"], row["healed"]) for row in audits} == {(0, 0, 0)}
