"""Figures of one's own over deaths of the trainer: each step's are everywhere once, made of what it trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import areal
import numpy as np
import pytest
from areal_view.tracking.tracker import STEP, FigureRows
from support.job_run import VICTIMS, JobRun

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1800)]

STEPS, GROUPS, SIZE = 16, 16, 8
KILL_AT = (6, 10)  # between two checkpoints, every four steps: one step at least is trained again
RECIPE = """
def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    said = completions.strip()
    return {"right": float(said == answer), "length": float(len(completion_ids)), "digits": float(said.isdigit())}
"""


def test_each_step_s_figures_are_those_of_its_samples_once_everywhere(
    start_job: Callable[..., JobRun], tmp_path: Path
) -> None:
    recipe = tmp_path / "parts.py"
    recipe.write_text(RECIPE)
    weights = "reward.weights={right: 1.0, digits: 0.1}"
    run = start_job(f"recipe.file={recipe}", f"algorithm.maxSteps={STEPS}", f"algorithm.groupSize={SIZE}", weights)
    for at in KILL_AT:
        run.wait_for(f"step {at}", lambda at=at: run.step() >= at, timeout_s=600)
        victim = run.processes(*VICTIMS["trainer"])[-1]
        before = {process.pid for process in run.processes(*VICTIMS["trainer"])}
        victim.kill()
        run.wait_for(
            "another trainer",
            lambda before=before: bool({one.pid for one in run.processes(*VICTIMS["trainer"])} - before),
            timeout_s=300,
        )
    assert run.finish(timeout_s=600) == 0, run.output[-4000:]
    assert len(run.metrics()) > STEPS, "no step was trained again: the kill came right after a checkpoint"
    run.audit()

    opened = areal.open(run.run_dir)
    rows = opened.metrics()
    assert rows.column("step") == list(range(STEPS))
    trained = trained_figures(opened)
    names = sorted(trained[0][0])
    assert names == ["digits", "length", "right"]
    assert sum(map(len, trained)) == STEPS * GROUPS * SIZE
    for name in names:
        means = [float(np.mean([sample[name] for sample in samples])) for samples in trained]
        assert rows.column(f"figures.{name}") == pytest.approx(means, abs=1e-6)
        assert sum(value * GROUPS * SIZE for value in rows.column(f"figures.{name}")) == pytest.approx(
            sum(sample[name] for samples in trained for sample in samples), rel=1e-6
        )
        assert tracked(opened, name) == rows.column(f"figures.{name}")
        assert drawn(opened, name) == pytest.approx(rows.column(f"figures.{name}"), rel=1e-5)
        assert name in (run.run_dir / "report.html").read_text()
    rewards = [1.0 * right + 0.1 * digits for right, digits in zip(
        rows.column("figures.right"), rows.column("figures.digits"), strict=True)]  # fmt: skip
    assert rows.column("reward_mean") == pytest.approx(rewards, abs=1e-6)


def trained_figures(run: areal.Run) -> list[list[dict[str, float]]]:
    """Of each step the figures of the very samples that its newest trainer trained, from the workers' recording."""
    found = []
    with run.index() as index:
        for step in range(STEPS):
            told = index.step(step)
            assert told is not None
            groups, indices = np.frombuffer(told.groups, "<u8"), np.frombuffer(told.indices, "<u4")
            trained = set(zip(groups.tolist(), indices.tolist(), np.frombuffer(told.xxh3, "<u8").tolist(), strict=True))
            made = {}
            for group in sorted(set(groups.tolist())):
                for row in index.samples(group):
                    if (sample := index.sample(row.place)) is not None and (group, row.index, sample.xxh3) in trained:
                        made[group, row.index] = dict(sample.sample.verdict.figures)
            assert len(made) == len(trained)
            found.append(list(made.values()))
    return found


def tracked(run: areal.Run, name: str) -> list[float]:
    """What W&B, MLflow and Trackio are sent."""
    sent = FigureRows(run.directory / "metrics.jsonl", run.directory / "evaluations.jsonl").refresh()
    by_step = {row.at_axis: row.figures[f"figures/{name}"] for row in sent if row.axis == STEP}
    assert len([row for row in sent if row.axis == STEP]) == len(by_step)
    return [by_step[step] for step in sorted(by_step)]


def drawn(run: areal.Run, name: str) -> list[float]:
    """What TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.directory / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    scalars = events.Scalars(f"figures/{name}")
    assert [one.step for one in scalars] == list(range(STEPS)), "a step is drawn twice, or not at all"
    return [one.value for one in scalars]
