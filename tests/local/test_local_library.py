"""Runs from Python, as a notebook starts them: inside a running event loop."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import areal
import numpy as np
import pandas
import psutil
import pytest
import yaml
from areal.errors import ArealError, ConfigError
from areal.observe.live import Live, write_live
from areal.spec import load_job
from areal.workflow.recipe import load_recipe
from areal.workflow.rlvr import RLVRWorkflow
from areal_view.job_files import JobFiles, JobParts
from areal_view.library import Run, _Child
from support.recorded_run import ANSWER, RecordedRun
from support.run_summary import run_summary
from support.tiny_job import make_tiny_job

HALF = 0.5


def graded(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    return float(completions == answer) + HALF


def compute_advantages(batch):
    return batch.rewards - batch.rewards.mean()


class Shouting(RLVRWorkflow):
    """As the built-in one."""


async def test_a_job_that_is_refused_raises_inside_a_running_loop(tmp_path: Path) -> None:
    job = make_tiny_job(tmp_path)
    with pytest.raises(ConfigError, match="did you mean maxSteps"):
        areal.run(job, "algorithm.maxStep=3")


@pytest.mark.component
async def test_what_a_run_refuses_later_is_raised_by_waiting_as_the_command_line_has_it(tmp_path: Path) -> None:
    job = make_tiny_job(tmp_path)
    command = [sys.executable, "-m", "areal.cli.main", "run", str(job), "algorithm.groupSize=1"]
    said = subprocess.run(  # noqa: ASYNC221 (as a notebook blocks)
        command, capture_output=True, text=True, check=False, cwd=tmp_path
    ).stderr
    started = areal.run(job, "algorithm.groupSize=1", run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"\[group-size\]") as refused:
        await asyncio.to_thread(started.wait, 60)
    assert said.startswith(f"config error: {refused.value}\n")
    with pytest.raises(ConfigError, match=r"\[group-size\]"):
        list(started.watch())
    assert not started.running
    assert "refused" in repr(started)
    assert not (tmp_path / "run").exists()


def test_a_run_that_another_process_holds_is_followed_stopped_and_waited_for(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, "reward_mean": 0.5}) + "\n")
    (tmp_path / "evaluations.jsonl").write_text(json.dumps({"version": 0, "mean": 0.25, "avg@2": 0.5}) + "\n")
    (tmp_path / "summary.json").write_text(json.dumps(run_summary()))
    (tmp_path / "resolved.json").write_text("{}")
    holding = (  # the kernel ends it: a handler of Python's that is called just before the pause would wait for its end
        "import fcntl, os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        "fcntl.flock(os.open('.', 0), fcntl.LOCK_EX); print(1, flush=True); signal.pause()"
    )
    other = subprocess.Popen([sys.executable, "-c", holding], cwd=tmp_path, stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    going = areal.open(tmp_path)
    assert going.running
    assert going.summary() is None
    with pytest.raises(ConfigError, match="is in use"):
        areal.run({"model": {"path": "x"}}, run_dir=tmp_path)
    assert going.evaluations() == [{"version": 0, "mean": 0.25, "avg@2": 0.5}]
    steps = going.watch(show=None)
    assert next(steps)["reward_mean"] == 0.5
    with pytest.raises(TimeoutError):
        going.wait(0.01)
    live = Live(at=time.time(), pid=other.pid, pid_began=psutil.Process(other.pid).create_time(), step=1, max_steps=2)
    write_live(tmp_path / "live.json", live)
    going.stop()
    assert list(steps) == []
    assert going.wait() == run_summary()
    assert other.wait() == -signal.SIGINT


def test_an_interrupt_stops_the_run_and_waits_for_its_clean_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[int] = []

    class Interrupted(areal.Run):
        def stop(self) -> None:
            stops.append(1)

        @property
        def running(self) -> bool:
            if not stops:
                raise KeyboardInterrupt
            return len(stops) > 1

    with pytest.raises(KeyboardInterrupt):
        Interrupted(tmp_path).wait()
    assert stops == [1]


@pytest.mark.component
def test_a_forgotten_handle_ends_no_run(tmp_path: Path) -> None:
    started = Run(tmp_path, _Child([sys.executable, "-c", "import time; time.sleep(60)"]))
    process = psutil.Process(started._child.process.pid)  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del started
        gc.collect()
    assert process.is_running()
    process.kill()


def test_a_dict_is_a_job_whole_or_its_spec_alone(tmp_path: Path) -> None:
    spec = {"model": {"path": Path("m")}, "algorithm": {"name": "GRPO", "maxSteps": np.int64(3)}}
    short = JobFiles.of({"name": "mine", **spec}, {"algorithm.clipLow": 0.1, "seed": 3})
    whole = JobFiles.of(
        {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "mine"}, "spec": spec}, ()
    )
    assert short.document.values == whole.document.values
    assert short.overrides == ("algorithm.clipLow=0.1", "seed=3")
    assert (short.name, JobFiles.of(spec, "metadata.name=other").name) == ("mine", "other")
    with pytest.raises(ConfigError, match="it holds a object"):
        JobFiles.of({"model": object()}, ())


def test_functions_rows_and_a_workflow_become_files_that_a_shell_can_run(tmp_path: Path) -> None:
    job = make_tiny_job(tmp_path)
    values = yaml.safe_load(job.read_text())["spec"]
    del values["recipe"], values["dataset"]
    rows = [{"prompt": "1=", "answer": "1", "weight": np.float32(0.5)}]
    frame = pandas.DataFrame({"prompt": ["2="], "answer": ["002"]})
    parts = JobParts(graded, Shouting, [compute_advantages], rows, frame)
    made = JobFiles.of({"name": "mine", **values}, ()).written(parts, tmp_path / "mine.job")
    loaded = load_job(made.document.path, made.overrides)
    spec = loaded.spec
    assert spec.recipe is not None
    assert spec.dataset.train.jsonl == str(tmp_path / "mine.job/train.jsonl")
    assert json.loads((tmp_path / "mine.job/train.jsonl").read_text()) == {"prompt": "1=", "answer": "1", "weight": 0.5}
    assert json.loads((tmp_path / "mine.job/evaluation.jsonl").read_text()) == {"prompt": "2=", "answer": "002"}
    recipe = load_recipe(Path(spec.recipe.file or ""))
    assert recipe.reward is not None
    assert recipe.reward("1=", "1", [], [], answer="1") == 1.5
    assert (spec.rollout.workflow, list(recipe.workflows)) == ("Shouting", ["Shouting"])
    assert "compute_advantages" in Path(spec.trainer.hooks or "").read_text()
    assert (tmp_path / "mine.job").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (JobParts(reward=lambda **row: 0.0), "it is a lambda"),
        (JobParts(rows=[{"prompt": "x"}, {"prompt": object()}]), r"rows\[1\] is no row"),
        (JobParts(held_out=[{"prompt": "x"}]), "the job has dataset.evaluation, and Python gives rows too"),
        (JobParts(hooks=[math.sqrt]), "sqrt is no hook"),
    ],
)
def test_what_can_t_be_written_is_refused_by_name(tmp_path: Path, parts: JobParts, why: str) -> None:
    job = make_tiny_job(tmp_path)
    files = JobFiles.of(job, ())
    values = {**files.document.values["spec"]}
    values["dataset"] = {"evaluation": values["dataset"]["evaluation"]}
    with pytest.raises(ArealError, match=why):
        JobFiles.of(values, ()).written(parts, tmp_path / "place")
    assert not (tmp_path / "place").exists()


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
        assert row["prompt"] + row["text"] == kept.texts[0].text.decode()
        assert (len(row["prompt"]), row["answer"]) == (ANSWER, None)
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


def test_a_page_that_can_t_be_served_raises_its_own_error_and_waits_for_nothing(tmp_path, monkeypatch):
    def broken(*arguments):
        raise OSError(98, "Address already in use")

    monkeypatch.setattr("areal_view.pages.main.serve", broken)
    with pytest.raises(OSError, match="in use"):
        Run(tmp_path).page()
