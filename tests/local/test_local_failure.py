"""The words of a failure."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.errors import BugError, ConfigError, DataError, InfraError, Kind
from areal.local.run import explain, sentence
from areal.local.supervisor import RunOutcome, RunResult
from areal.processes.core import ChildPhase
from areal.processes.exits import classify
from areal.processes.supervise import ChildStatus


def failed(code: int, log: str, tmp_path: Path) -> RunOutcome:
    (tmp_path / "worker-0.log").write_text(f"════ start 1 of worker-0 ════\n{log}")
    exit_ = classify(code)
    status = ChildStatus("worker-0", ChildPhase.FAILED, 0, 0, 0, exit_, exit_.reason, 0.0, False)
    return RunOutcome(RunResult.FAILED, status, exit_.reason)


@pytest.mark.parametrize(
    ("code", "kind"), [(64, ConfigError), (65, DataError), (70, BugError), (75, InfraError), (-9, InfraError)]
)
def test_a_failure_keeps_whose_fault_it_was(tmp_path, code, kind):
    error = explain(failed(code, "Traceback\nValueError: odd\n", tmp_path), tmp_path)
    assert type(error) is kind
    assert "worker-0 failed" in error.message
    assert "ValueError: odd" in error.message
    assert str(tmp_path / "worker-0.log") in error.message
    assert error.fix


def test_a_stall_is_of_whom_it_was_told(tmp_path):
    error = explain(RunOutcome(RunResult.FAILED, None, "stalled for 60 s: all rejected", kind=Kind.DATA), tmp_path)
    assert (type(error), error.message) == (DataError, "stalled for 60 s: all rejected")
    assert "recipe" in error.fix


def test_the_sentence_of_a_failure_is_the_roles_own(tmp_path):
    log = "12:00:00 error  worker-0  data error: recipe x.py is broken\n  fix: correct line 3\n"
    said = sentence(failed(65, log, tmp_path), tmp_path)
    assert said.startswith("worker-0: recipe x.py is broken (exit 65")
    assert (
        sentence(RunOutcome(RunResult.FAILED, None, "stalled for 60 s: no group"), tmp_path)
        == "stalled for 60 s: no group"
    )
    assert sentence(RunOutcome(RunResult.STOPPED, None, "asked to stop"), tmp_path) == ""


def test_a_failure_gives_the_fix_that_the_role_gave(tmp_path):
    log = "12:00:00 error  worker-0  data error: recipe x.py is broken\n  fix: correct line 3\n"
    assert explain(failed(65, log, tmp_path), tmp_path).fix == "correct line 3"


def test_a_failure_without_words_of_its_own_shows_those_of_the_start_before(tmp_path):
    error = explain(failed(-9, "ValueError: odd\n════ start 2 of worker-0 ════\n", tmp_path), tmp_path)
    assert "ValueError: odd" in error.message
    assert "these are of start 1 of worker-0" in error.message
