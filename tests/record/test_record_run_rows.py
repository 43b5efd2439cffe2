"""Reading what a run writes while it is being written."""

from __future__ import annotations

import json

from areal.record.run_rows import Records


def row(step: int, **more: object) -> str:
    return (
        json.dumps({"step": step, "reward_mean": 0.5, "tokens": 10, "wall_s": 1.0, "at": 100.0 + step, **more}) + "\n"
    )


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    records = Records(metrics, tmp_path / "none.jsonl")
    assert records.refresh().trained == 0
    whole = row(0) + row(1)
    metrics.write_text(whole[:-7])
    assert records.refresh().trained == 1
    metrics.write_text(whole)
    assert records.refresh().trained == 2


def test_a_step_that_is_trained_again_counts_once_and_anew(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(
        row(0) + row(1, reward_mean=0.1) + "{torn\n" + "[" * 10**5 + "\n" + row(1, reward_mean=0.9, fence=2)
    )
    records = Records(metrics, tmp_path / "none.jsonl").refresh()
    assert [step.reward for step in records.steps] == [0.5, 0.9]


def test_who_follows_a_run_keeps_the_newest_steps_and_the_curve_of_all(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.touch()
    records, whole = Records(metrics, tmp_path / "none.jsonl", 4), Records(metrics, tmp_path / "none.jsonl")
    for step in [*range(50), *range(20, 60)]:  # a trainer that went back by thirty steps
        with metrics.open("a") as file:
            file.write(row(step, reward_mean=None if step == 7 else float(step + 100 * (step >= 20)), loss=1.0))
        records.refresh()
        assert len(records.steps) <= 8
    assert records.trained == 60
    assert records.steps == whole.refresh().steps[-len(records.steps) :]
    rewards = [*records.earlier, *(step.reward for step in records.steps)]
    assert rewards == [step.reward for step in whole.steps if step.step != 7]
    assert whole.earlier == []


def test_figures_that_a_step_lacks_are_zero(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(row(0, reward_mean=None, staleness_mean=None, staleness_max=None))
    (step,) = Records(metrics, tmp_path / "none.jsonl").refresh().steps
    assert (step.reward, step.staleness_mean, step.staleness_max) == (None, 0.0, 0)


def test_time_spent_waiting_is_told_apart(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(row(0, seconds={"wait": 0.6, "train": 0.3}))
    (step,) = Records(metrics, tmp_path / "none.jsonl").refresh().steps
    assert (step.wait_seconds, step.phases["train"]) == (0.6, 0.3)


def test_evaluations_come_by_version(tmp_path):
    path = tmp_path / "evaluations.jsonl"
    lines = [{"version": 10, "mean": 0.7, "rows": 5}, {"version": 0, "mean": 0.6}, {"version": 20, "mean": None}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    held_out = Records(tmp_path / "none.jsonl", path).refresh().held_out
    assert [(one.version, one.mean) for one in held_out] == [(0, 0.6), (10, 0.7)]
