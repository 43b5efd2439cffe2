"""A random mutant of the ledger is found out by its tests, and the checkout is left as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.component, pytest.mark.nightly]
ROOT = Path(__file__).resolve().parents[2]


def test_a_mutant_that_a_test_notices_is_killed_and_the_checkout_stays_whole():
    """`room` one step short: the gate's own tests notice."""
    gate = ROOT / "services" / "areal" / "ledger" / "gate.py"
    before = gate.read_text()
    line = next(number for number, text in enumerate(before.splitlines(), 1) if "policy.ahead + 1" in text)
    file = "services/areal/ledger/gate.py"
    tests = ["--tests", "tests/ledger/test_ledger_gate.py", "--schedules", "0"]
    command = [sys.executable, "tools/mutants", file, "--only", f"{file}:{line}", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "arithmetic: window.newest_version + policy.ahead + 1" in done.stdout
    assert "SURVIVED" not in done.stdout
    assert "survivors by kind: none" in done.stdout
    assert gate.read_text() == before
