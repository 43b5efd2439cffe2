"""The words of a failure."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.errors import BugError, ConfigError, DataError, InfraError
from areal.launch.core import Phase
from areal.launch.exits import classify
from areal.launch.supervise import ChildStatus
from areal.local.failure import explain
from areal.local.supervisor import Ended, Outcome


def failed(code: int, log: str, tmp_path: Path) -> Outcome:
    (tmp_path / "worker-0.log").write_text(f"════ start 1 of worker-0 ════\n{log}")
    exit_ = classify(code)
    status = ChildStatus("worker-0", Phase.FAILED, 0, 0, 0, exit_, exit_.reason, 0.0, False)
    return Outcome(Ended.FAILED, status, exit_.reason)


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


def test_a_failure_gives_the_fix_that_the_role_gave(tmp_path):
    log = "12:00:00 error  worker-0  data error: recipe x.py is broken\n  fix: correct line 3\n"
    assert explain(failed(65, log, tmp_path), tmp_path).fix == "correct line 3"
