"""The words of a failure, and the cause that every place shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.errors import ArealError, BugError, ConfigError, DataError, InfraError, Kind
from areal.local import run
from areal.local.run import ended_by, failure, with_log
from areal.local.supervisor import RunOutcome, RunResult
from areal.observe.live import Diagnosis, Live
from areal.plan import RunLayout
from areal.processes.core import ChildPhase
from areal.processes.exits import classify
from areal.processes.supervise import ChildStatus

LIVE = Live(at=0.0, pid=1, pid_began=0.0, step=6, max_steps=400, resume="areal run job.yaml --resume")
STALLED = RunOutcome(RunResult.FAILED, None, "stalled for 60 s: all rejected", kind=Kind.DATA)


def failed(code: int, error: ArealError | None = None) -> RunOutcome:
    exit_ = classify(code, error=error)
    status = ChildStatus("worker-0", ChildPhase.FAILED, 0, 0, 0, exit_, exit_.reason, 0.0, False)
    return RunOutcome(RunResult.FAILED, status, exit_.reason)


def told(outcome: RunOutcome, folder: Path) -> tuple[ArealError, Diagnosis]:
    """The error and the cause of an end."""
    error = failure(outcome, RunLayout(folder))
    assert error is not None
    end = ended_by(outcome, error, LIVE)
    return with_log(end, error, folder), end


@pytest.mark.parametrize(
    ("code", "kind", "cause"),
    [
        (64, ConfigError, "config"), (65, DataError, "data"), (70, BugError, "bug"), (75, InfraError, "infra"),
        (-9, InfraError, "role-killed"), (1, BugError, "role-ended"),
    ],
)  # fmt: skip
def test_a_failure_keeps_whose_fault_it_was(tmp_path, code, kind, cause):
    (tmp_path / "worker-0.log").write_text("════ start 1 of worker-0 ════\nTraceback\nValueError: odd\n")
    error, end = told(failed(code), tmp_path)
    assert type(error) is kind
    assert end.cause == error.cause == cause
    assert end.sentence in error.message
    assert end.sentence.startswith("worker-0: ")
    assert "ValueError: odd" in error.message
    assert str(tmp_path / "worker-0.log") in error.message
    assert ("--resume" in end.fix) == (kind in (InfraError, BugError))


def test_a_role_speaks_by_the_error_that_it_left(tmp_path):
    error, end = told(failed(65, DataError("recipe x.py is broken", fix="correct line 3")), tmp_path)
    assert error.message.startswith("worker-0: recipe x.py is broken, at step 6 of 400\n  last lines of")
    assert (error.fix, end.fix) == ("correct line 3", "correct line 3")


def test_a_stall_is_of_whom_it_was_told(tmp_path):
    error, end = told(STALLED, tmp_path)
    assert (type(error), error.message) == (DataError, "stalled for 60 s: all rejected, at step 6 of 400")
    assert "recipe" in error.fix
    assert (end.cause, end.role) == ("stalled", "")


def test_a_disk_that_is_full_is_behind_whatever_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "free_bytes", lambda path: 4096)
    error, end = told(failed(70), tmp_path)
    assert (type(error), end.cause) == (InfraError, "disk-full")
    assert "4,096 bytes are free" in end.fix
    assert str(tmp_path) in end.fix
    assert "report" not in error.fix
    assert told(failed(64), tmp_path)[1].cause == "config"


def test_who_stopped_a_run_is_said(tmp_path):
    outcome = RunOutcome(RunResult.STOPPED, None, "you stopped it (Ctrl-C)")
    assert failure(outcome, RunLayout(tmp_path)) is None
    end = ended_by(outcome, None, LIVE)
    assert (end.cause, end.named) == ("stopped", "you stopped it (Ctrl-C), at step 6 of 400 [stopped]")
    assert end.fix == "go on with `areal run job.yaml --resume`"


def test_a_failure_without_words_of_its_own_shows_those_of_the_start_before(tmp_path):
    log = "════ start 1 of worker-0 ════\nValueError: odd\n════ start 2 of worker-0 ════\n"
    (tmp_path / "worker-0.log").write_text(log)
    error, _ = told(failed(-9), tmp_path)
    assert "ValueError: odd" in error.message
    assert "these are of start 1 of worker-0" in error.message
