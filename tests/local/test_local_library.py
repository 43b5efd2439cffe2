"""Runs from Python, as a notebook starts them: inside a running event loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import areal
import pytest
from areal.errors import ConfigError
from areal_view.library import Run
from support.recorded_run import RecordedRun
from support.run_summary import run_summary
from support.tiny_job import make_tiny_job


async def test_a_job_that_is_refused_raises_inside_a_running_loop(tmp_path: Path) -> None:
    job = make_tiny_job(tmp_path)
    with pytest.raises(ConfigError, match="did you mean maxSteps"):
        areal.run(job, "algorithm.maxStep=3")


@pytest.mark.component
async def test_what_a_run_refuses_later_is_raised_by_waiting(tmp_path: Path) -> None:
    job = make_tiny_job(tmp_path)
    started = areal.run(job, "algorithm.groupSize=1", run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"\[group-size\]"):
        started.wait(60)
    assert not started.running
    assert not (tmp_path / "run").exists()


def test_steps_and_summary_are_read_from_the_directory(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, "reward_mean": 0.5}) + "\n")
    (tmp_path / "evaluations.jsonl").write_text(json.dumps({"version": 0, "mean": 0.25}) + "\n")
    (tmp_path / "summary.json").write_text(json.dumps(run_summary()))
    sleeping = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    with open(os.devnull, "rb") as nothing:
        going = Run(tmp_path, sleeping, nothing)
        assert going.running
        assert going.summary() is None
        assert [step.reward for step in going.steps()] == [0.5]
        assert [one.mean for one in going.evaluations()] == [0.25]
        with pytest.raises(TimeoutError):
            going.wait(0.01)
        sleeping.kill()
        sleeping.wait()
        assert going.summary() == run_summary()


def test_importing_areal_imports_nothing_of_ours() -> None:
    program = "import sys, areal; print([m for m in sys.modules if m.startswith('areal.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
    assert {"run", "Run", "open", "Table"} <= set(dir(areal))


def test_an_opened_run_has_tables(tmp_path: Path) -> None:
    made = RecordedRun(tmp_path)
    for step in range(2):
        made.train(step)
    rows = [{"step": 0, "reward_mean": 0.5, "seconds": {"wait": 1.5}}, {"step": 1, "reward_mean": 0.25, "loss": None}]
    again = {"step": 0, "reward_mean": 0.75, "seconds": {"wait": 1.0}}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*rows, again)))
    (tmp_path / "resolved.json").write_text("{}")
    run = areal.open(tmp_path)
    metrics = run.metrics()
    assert metrics.columns == ["step", "reward_mean", "seconds.wait", "loss"]
    assert (metrics.column("reward_mean"), metrics.column("seconds.wait")) == ([0.75, 0.25], [1.0, None])
    samples = run.samples(limit=5)
    assert len(samples) == 5
    for row in samples:
        kept = made.samples[row["group"], row["index"]]
        assert (row["reward"], row["sequences"][0]["text"]) == (kept.reward, kept.texts[0].text.decode())
    assert {row["reward"] for row in run.samples(low=1.0)} == {1.0}
    assert (run.summary(), run.why()) == (None, None)


@pytest.mark.component
def test_a_table_is_a_data_frame_where_pandas_is() -> None:
    table = areal.Table([{"step": 0, "reward": 0.75}, {"step": 1, "loss": 0.5}])
    frame = table.frame()
    assert list(frame.columns) == table.columns
    assert frame["reward"].tolist()[0] == 0.75


def test_a_directory_that_is_no_run_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run directory"):
        areal.open(tmp_path)
