"""The first hour, as the tutorial has it: a new project of each kind, from nothing to a rising reward."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1800)]

AREAL = Path(sys.prefix) / "bin" / "areal"


def typed(line: str, cwd: Path) -> None:
    """One line of the project's README, in an environment that holds nothing but a PATH."""
    program, *words = line.split()
    command = [{"areal": str(AREAL), "python": sys.executable}[program], *words]
    environment = {"PATH": os.defpath, "HOME": str(cwd), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("kind", ["task", "reward", "environment", "agent"])
def test_a_new_project_learns_as_it_is(kind, tmp_path):
    typed(f"areal new {kind} words", tmp_path)
    made = tmp_path / "words"
    readme = (made / "README.md").read_text().split("```")[1]
    lines = [line.split("  ")[0] for line in readme.strip().splitlines()]
    assert lines[0] == "python rows.py"
    for line in lines[:-1]:  # the last one shows the page
        typed(line, made)
    summary = json.loads((made / "runs/words/summary.json").read_text())
    assert (summary["status"], summary["groups"]["lost"], summary["groups"]["duplicated"]) == ("Complete", 0, 0)
    assert summary["heldOut"]["last"] >= summary["heldOut"]["first"] + 0.05
    rows = [json.loads(line) for line in (made / "runs/words/metrics.jsonl").read_text().splitlines()]
    if kind == "reward":
        assert rows[-1]["figures"].keys() == {"right", "near", "letters"}
        assert rows[-1]["figures"]["near"] > rows[0]["figures"]["near"]
