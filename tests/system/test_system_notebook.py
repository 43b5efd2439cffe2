"""GRPO in a notebook: its cells run as Jupyter runs them, whole in the night, short for a landing."""

from __future__ import annotations

import _thread
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import areal
import pytest
from areal.errors import ConfigError
from support.job_run import ROOT, SMALL

pytestmark = pytest.mark.system

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
ASKED = """{
    "rewards": run.metrics().column("reward_mean"),
    "parts": run.metrics().column("figures.right"),
    "heldOut": run.evaluations().column("mean"),
    "summary": run.summary(),
    "again": areal.open("runs/sorting").metrics() == run.metrics(),
    "sample": {name: run.samples(limit=1)[0][name] for name in ("prompt", "text", "answer", "reward", "figures.right")},
    "logged": len(run.logs("trainer")),
}"""


def ran(folder: Path, *words: str, timeout_s: float) -> dict[str, Any]:
    """The notebook's cells in a directory of their own; answers what `ASKED` is at their end."""
    program = [sys.executable, str(ROOT / "tests/support/notebook.py"), str(NOTEBOOK), "--print", ASKED, *words]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "MPLBACKEND": "Agg"}
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=timeout_s, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.rpartition("PRINTED ")[2])
    return told


def faults(told: dict[str, Any], steps: int) -> list[str]:
    """What is not as it must be of a run of so many steps, by its cells' own figures."""
    summary, sample = told["summary"], told["sample"]
    ended = (summary["status"], summary["groups"]["lost"], summary["groups"]["duplicated"])
    answered = sample["text"].removesuffix("<eos>").strip() == sample["answer"]
    holds = {
        f"ended as {ended}": ended == ("Complete", 0, 0),
        f"{len(told['rewards'])} rewards": len(told["rewards"]) == len(told["parts"]) == steps,
        "not opened again": told["again"],
        "nothing logged": told["logged"] > 0,
        f"the sample {sample}": sample["answer"] == "".join(sorted(sample["prompt"].rstrip("="))),
        f"the part of {sample}": (sample["figures.right"] == 1.0) == answered,
    }
    return [fault for fault, right in holds.items() if not right]


@pytest.mark.nightly  # each landing: the library's calls in test_local_library.py
def test_the_notebook_s_cells_run_as_they_are_and_short(digits, tmp_path):
    """Without the cell that teaches the start model: the quickstart's is here."""
    set_here = [
        "--set",
        f"model, steps = {str(digits)!r}, 6",
        "--set",
        "train = train[:2000]; held_out = held_out[:50]",
    ]
    assert faults(ran(tmp_path, "--skip", "start", *set_here, timeout_s=170), 6) == []


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_notebook_trains_from_nothing_to_a_rising_reward(tmp_path):
    told = ran(tmp_path, timeout_s=1700)
    assert faults(told, 80) == []
    first, last = (sum(part) / 10 for part in (told["rewards"][:10], told["rewards"][-10:]))
    assert last > first + 0.1
    assert told["heldOut"][-1] > told["heldOut"][0] + 0.05


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_runs_go_on_at_once_in_threads_and_an_interrupt_leaves_one_that_goes_on(digits, tmp_path):
    job = ROOT / "examples/quickstart.yaml"
    first, second = (areal.run(job, SMALL, run_dir=tmp_path / name) for name in ("a", "b"))
    with ThreadPoolExecutor() as threads:
        whole = threads.submit(second.wait, 800)
        next(first.watch(show=None))
        threading.Timer(0.2, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            first.wait()
        stopped = first.summary()
        assert stopped is not None
        assert (stopped["status"], first.running) == ("Stopped", False)
        with pytest.raises(ConfigError, match="already holds a run"):
            areal.run(job, SMALL, run_dir=tmp_path / "a", wait=True)
        again = areal.run(job, SMALL, run_dir=tmp_path / "a", resume=True, wait=True).summary()
        assert again is not None
        ended = (again, whole.result())
    for summary in ended:
        counts = (summary["groups"]["lost"], summary["groups"]["duplicated"])
        assert (summary["status"], summary["steps"], counts) == ("Complete", 24, (0, 0))


def test_the_cell_that_trains_has_at_most_fifteen_lines():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    (cell,) = (cell for cell in cells if "grpo" in cell["metadata"].get("tags", []))
    assert len([line for line in cell["source"] if line.strip()]) <= 15
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")
