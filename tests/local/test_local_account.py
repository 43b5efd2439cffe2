"""What is said of a run whose disk is full: what failed, not that its account can't be written."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest
from areal.errors import ConfigError, InfraError
from areal.local import run as local_run
from areal.local.staging import StagingRequest, load, stage
from areal.local.supervisor import RunOutcome, RunResult
from areal.processes.core import ChildPhase
from areal.processes.exits import classify
from areal.processes.supervise import ChildStatus
from areal.record.summary import RunEnd
from rich.console import Console
from support.tiny_job import make_tiny_job

pytestmark = pytest.mark.component  # the recipe is imported in a process of its own


def full(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_does_not_hide_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    request = StagingRequest(make_tiny_job(tmp_path))
    resolved = stage(request, load(request), lambda text: None)
    (resolved.layout.logs / "trainer.log").write_text("════ start 1 ════\nconfig error: no\n  fix: correct it\n")
    status = ChildStatus("trainer", ChildPhase.FAILED, 0, 0, 0, classify(64), "exit 64", 0.0, False)
    outcome = RunOutcome(RunResult.FAILED, status, "exit 64")
    monkeypatch.setattr(local_run.summary, "write", full)
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(ConfigError, match="trainer failed") as failed:
        local_run._account(request, resolved, outcome, RunEnd("Failed", 1.0, {}, 0.0, "no"), None, console)
    assert failed.value.fix == "correct it"
    assert "No space left on device" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_full_disk_is_the_machines_fault(tmp_path: Path) -> None:
    with (
        pytest.raises(InfraError, match="can't be written: No space left") as refused,
        local_run._disk_faults(tmp_path),
    ):
        full()
    assert "free space" in refused.value.fix
