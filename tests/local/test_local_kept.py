"""What lies on the disk: listed as it is, and removed only where nobody needs it."""

from __future__ import annotations

import fcntl
import json
import os

import pytest
from areal.cli.main import app
from areal.errors import ConfigError
from areal.local.kept import kept, look, refuse_cleaned, remove
from support.run_summary import run_summary
from typer.testing import CliRunner

PARTS = ("checkpoints", "weights")
STAY = ("metrics.jsonl", "summary.json", "model", "trajectories", "evidence")


def make(root, status="Complete", steps=40, kilobytes=64):
    root.mkdir(parents=True)
    for part in (*PARTS, "model", "trajectories", "evidence"):
        (root / part).mkdir()
        (root / part / "data").write_bytes(os.urandom(kilobytes << 10))
    os.link(root / "weights/data", root / "weights/same")
    (root / "metrics.jsonl").write_text("{}\n")
    if status:
        held_out = {"first": 0.1, "best": 0.8, "last": 0.75}
        (root / "summary.json").write_text(json.dumps(run_summary(status=status, steps=steps, heldOut=held_out)))
    (root / "resolved.json").write_text("{}")
    return root


def invoke(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def names(root):
    return {one.name for one in root.iterdir()}


def test_runs_of_a_sweep_are_found_with_what_each_came_to(tmp_path):
    make(tmp_path / "runs/digits")
    make(tmp_path / "runs/sweep/eta-2/seed-1", "Failed", steps=3)
    make(tmp_path / "runs/half", "")
    (make(tmp_path / "runs/hurt") / "summary.json").write_text("{")
    (tmp_path / "runs/other/deep/er/than/runs").mkdir(parents=True)
    found = {run.place.name: run for run in kept([tmp_path / "runs", tmp_path / "gone"])}
    assert {name: run.status for name, run in found.items()} == {
        "digits": "Complete", "seed-1": "Failed", "half": "Unfinished", "hurt": "Damaged",
    }  # fmt: skip
    digits = found["digits"]
    assert (digits.steps, digits.held_out) == (40, 0.75)
    assert 5 * 64 << 10 <= digits.size < 6 * 64 << 10  # a file with two names counts once
    assert digits.spare == 2 * 64 << 10


def test_only_what_going_on_needs_is_removed_of_a_complete_run_and_it_is_not_gone_on_with(tmp_path):
    run = make(tmp_path / "digits")
    refuse_cleaned(run)
    remove(look(run), whole=False)
    assert not {one for one in names(run) if one.startswith(PARTS)}
    assert names(run) >= set(STAY)
    assert look(run).spare == 0
    with pytest.raises(ConfigError, match=r"can't be gone on with.*areal clean"):
        refuse_cleaned(run)


def test_what_an_interrupted_removal_left_is_removed_by_the_next(tmp_path):
    run = make(tmp_path / "digits")
    (run / "checkpoints").rename(run / "checkpoints.going")
    assert look(run).spare == 2 * 64 << 10
    remove(look(run), whole=False)
    assert not {one for one in names(run) if one.startswith(PARTS)}


def test_a_run_that_a_process_holds_is_running_and_keeps_everything(tmp_path):
    run = make(tmp_path / "digits")
    descriptor = os.open(run, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert look(run).status == "Running"
        with pytest.raises(ConfigError, match="in use"):
            remove(look(run), whole=True)
        assert "left alone" in invoke("clean", run, "--whole", "--stopped", "--yes")
        assert names(run) >= {*PARTS, *STAY}
    finally:
        os.close(descriptor)


def test_two_who_list_see_no_run_in_each_other(tmp_path):
    run = make(tmp_path / "digits")
    descriptor = os.open(run, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        assert look(run).status == "Complete"
    finally:
        os.close(descriptor)


def test_the_command_shows_first_and_removes_what_it_showed(tmp_path):
    done, stopped = make(tmp_path / "done"), make(tmp_path / "stopped", "Stopped")
    assert "say --yes" in invoke("clean", tmp_path)  # nobody to ask
    assert names(done) >= set(PARTS)
    said = invoke("clean", tmp_path, "--yes")
    assert "removed 128.0 KiB" in said
    assert "1 left alone" in said
    assert (names(done) & set(PARTS), names(stopped) >= set(PARTS)) == (set(), True)
    assert "nothing to remove" in invoke("clean", tmp_path, "--yes")
    invoke("clean", tmp_path, "--yes", "--stopped", "--whole")
    assert not done.exists()
    assert not stopped.exists()
    assert "no run in" in invoke("runs", tmp_path)


def test_cleaning_for_scripts_never_asks_and_says_what_went(tmp_path):
    done = make(tmp_path / "done")
    make(tmp_path / "stopped", "Stopped")
    told = json.loads(invoke("clean", tmp_path, "--json"))
    assert (told["removed"], told["bytes"], told["leftAlone"]) == (False, 2 * 64 << 10, 1)
    assert [row["place"] for row in told["runs"]] == [str(done)]
    assert names(done) >= set(PARTS)
    assert json.loads(invoke("clean", tmp_path, "--json", "--yes")) == {**told, "removed": True}
    assert not names(done) & set(PARTS)
    assert json.loads(invoke("clean", tmp_path, "--json"))["runs"] == []


def test_the_list_is_json_for_scripts(tmp_path):
    make(tmp_path / "done")
    (row,) = json.loads(invoke("runs", tmp_path, "--json"))
    assert (row["status"], row["steps"], row["held_out"]) == ("Complete", 40, 0.75)
    assert "Complete" in invoke("runs", tmp_path)
