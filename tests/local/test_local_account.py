"""What is said of a run whose disk is full: what failed, not that its account can't be written."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest
from areal.errors import ConfigError, InfraError
from areal.local import run as local_run
from areal.local.staging import StagingRequest, load, stage
from areal.local.status import RunView
from areal.local.supervisor import RunOutcome, RunResult
from areal.observe.live import Live, read_live, write_live
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
    died = classify(64, error=ConfigError("no", fix="correct it"))
    status = ChildStatus("trainer", ChildPhase.FAILED, 0, 0, 0, died, died.reason, 0.0, False)
    outcome = RunOutcome(RunResult.FAILED, status, died.reason)
    last = RunView(Live(at=0.0, pid=os.getpid(), pid_began=0.0, step=0, max_steps=3))
    monkeypatch.setattr(local_run.summary, "write", full)
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(ConfigError, match="trainer: no, at step 0 of 3") as failed:
        local_run._account(resolved, outcome, RunEnd("Failed", 1.0, {}, 0.0), None, last, console)
    assert failed.value.fix == "correct it"
    assert "No space left on device" in console.file.getvalue()  # type: ignore[attr-defined]


def test_an_error_of_the_run_itself_is_the_end_that_its_files_tell(tmp_path: Path) -> None:
    write_live(tmp_path / "live.json", Live(at=0.0, pid=os.getpid(), pid_began=0.0, step=1, max_steps=3))
    with pytest.raises(InfraError, match="the disk is full") as refused, local_run._recorded(tmp_path):
        full()
    live = read_live(tmp_path / "live.json")
    assert live is not None
    assert live.cause is not None
    assert (live.ended, live.cause.cause) == (True, refused.value.cause) == (True, "disk-full")
    assert live.cause.sentence == refused.value.message
    with pytest.raises(InfraError, match="no more files") as refused, local_run._recorded(tmp_path):
        raise OSError(errno.EMFILE, "Too many open files")
    assert refused.value.cause == "no-descriptors"
    assert read_live(tmp_path / "live.json").cause.cause == "disk-full", "the first end stays"  # type: ignore[union-attr]
