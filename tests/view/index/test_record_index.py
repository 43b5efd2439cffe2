"""The index of a recording: it says what the segments hold, follows them, and can always be made again."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from areal.v1 import common_pb2 as common
from areal.v1 import record_pb2 as record
from areal_view.index.record_index import RecordIndex
from support.recorded_run import RecordedRun, made_sample, sample_frame


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    made = RecordedRun(tmp_path / "run")
    for step in range(3):
        made.train(step)
    return made


def opened(run: RecordedRun, path: Path | None = None) -> RecordIndex:
    return refreshed(RecordIndex(path or run.root / "index.sqlite", run.directories))


def refreshed(index: RecordIndex) -> RecordIndex:
    """What is written by now, taken in whole: a busy machine would go on with it beside."""
    return index.refresh(60)


def test_every_sample_is_found_as_it_was_recorded(run):
    index = opened(run)
    for (group, number), made in run.samples.items():
        (row,) = [row for row in index.samples(group) if row.index == number]
        assert (row.reward, row.version, row.outcome) == (made.reward, made.newest_version, "complete")
        assert index.sample(row.place) == made
    assert index.outcomes() == {"complete": len(run.samples)}


def test_steps_and_groups_have_the_figures_of_their_samples(run):
    index = opened(run)
    for step in range(3):
        found = index.groups(step)
        assert [row.group for row in found] == list(range(step * run.batch, (step + 1) * run.batch))
        for row in found:
            rewards = [made.reward for (group, _), made in run.samples.items() if group == row.group]
            assert (row.mean, row.low, row.high) == (np.mean(rewards), min(rewards), max(rewards))
            assert row.teaches == (len(set(rewards)) > 1)
            assert index.group(row.group) == row
        told = index.step(step)
        assert told is not None
        assert np.frombuffer(told.groups, "<u8").tolist() == [g for g in range(step * 3, step * 3 + 3) for _ in "ab"]
    assert index.step(3) is None
    assert index.groups(3) == []
    assert index.group(99) is None


def test_a_replayed_step_counts_as_its_newest_trainer_trained_it(run):
    run.train(1, fence=2, name="trainer-2-000000")
    index = opened(run)
    told = index.step(1)
    assert told is not None
    assert told.fence == 2
    assert len(index.groups(1)) == run.batch
    assert index.tokens(1, 2, 4)
    assert index.tokens(1, 1, 4)
    assert not index.tokens(1, 3, 4)


def test_it_follows_what_is_written_and_forgets_what_is_deleted(run):
    index = opened(run)
    run.train(3)
    assert index.groups(3) == []
    refreshed(index)
    assert len(index.groups(3)) == run.batch
    (run.root / "trajectories" / "worker-0-1-000000.rec").unlink()
    refreshed(index)
    assert index.outcomes() == {}
    assert len(index.groups(3)) == run.batch


def test_a_torn_tail_is_taken_once_it_is_whole(run):
    path = run.root / "trajectories" / "worker-0-1-000000.rec"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    index = opened(run)
    assert index.outcomes() == {"complete": len(run.samples) - 1}
    path.write_bytes(whole)
    assert refreshed(index).outcomes() == {"complete": len(run.samples)}


@pytest.mark.parametrize("damage", [b"", b"not a database" * 200], ids=["missing", "damaged"])
def test_an_index_that_is_missing_or_damaged_is_built_again(run, damage):
    path = run.root / "index.sqlite"
    before = opened(run)
    rows = before.find()
    before.close()
    path.unlink()
    if damage:
        path.write_bytes(damage)
    assert opened(run).find() == rows


def test_failures_and_rewards_are_searched(run):
    failure = record.SampleRecord(
        sample=common.Sample(key=common.SampleKey(group=77, index=1)), outcome="infra", newest_version=-1
    )
    run.append("trajectories", "worker-1-1-000000", sample_frame(failure))
    index = opened(run)
    assert [(row.group, row.index) for row in index.find(outcome="infra")] == [(77, 1)]
    best = {key for key, made in run.samples.items() if made.reward == 1.0}
    assert {(row.group, row.index) for row in index.find(outcome="complete", low=1.0)} == best
    assert len(index.find(limit=2)) == 2


def test_rows_of_evaluations_are_no_samples_of_training(run):
    for row in range(4):
        made = made_sample(row, 0, seed=9)
        made.evaluation_id = "10.f1-abc"
        run.append("trajectories", "worker-0-1-000000", sample_frame(made))
    index = opened(run)
    ((name, rows, mean),) = index.evaluations()
    assert (name, rows) == ("10.f1-abc", 4)
    assert mean == np.mean([row.reward for row in index.evaluated(name)])
    assert len(index.samples(0)) == run.size


def test_a_long_recording_is_taken_in_beside_its_readers(tmp_path):
    run = RecordedRun(tmp_path)
    for step in range(40):
        run.train(step)
    index = RecordIndex(tmp_path / "index.sqlite", run.directories).refresh(0.0)
    assert index.behind > 0
    deadline = time.monotonic() + 60
    while index.behind and time.monotonic() < deadline:
        time.sleep(0.01)
    assert refreshed(index).outcomes() == {"complete": 40 * run.batch * run.size}
    assert {(row.group, row.index) for row in index.find(limit=10_000)} == set(run.samples)
    index.close()
