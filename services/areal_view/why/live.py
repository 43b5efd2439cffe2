"""The live file of a run: what every role last said of itself, replaced once a second while the run goes on.

Owns its form, and the question whether the run still goes on. Who reads it dials nobody, and finds the last words of a
run that died.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import psutil
from pydantic import TypeAdapter, ValidationError

_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class LiveWait:
    """A named wait of a role."""

    name: str
    waits_for: str
    age_s: float
    deadline_s: float = 0.0


@dataclass(frozen=True)
class LiveRole:
    """A role as its supervisor and it itself describe it."""

    name: str
    phase: str
    pid: int = 0
    restarts: int = 0
    reason: str = ""  # of its last exit
    doing: str = ""
    policy: str = ""
    silent_s: float = 0.0  # how long it has not answered; 0 while it does, or can't be asked
    unready_s: float | None = None  # how long a process that was ready is not; a server is not while it swaps weights
    waits: Sequence[LiveWait] = ()
    stopped: int = 0  # pid of a stopped process of its family; 0 without one


@dataclass(frozen=True)
class Live:
    """A run at one moment."""

    at: float  # unix seconds
    pid: int  # of `areal run`
    pid_began: float  # unix seconds: pids are used again
    step: int
    max_steps: int
    policy: str = ""
    idle: str = ""  # why nothing is admitted, in the controller's words
    idle_s: float = 0.0  # for how long it has begun with these words
    stalled: str = ""  # why nothing can go on without help
    answers: bool = True  # whether the controller did
    ended: bool = False
    roles: Sequence[LiveRole] = ()
    alive: bool = False  # whether `areal run` is still there; found out by the reader
    age_s: float = 0.0  # since it was written; likewise
    disk_free: int | None = None  # bytes that the disk of the run can still take; likewise

    @property
    def goes_on(self) -> bool:
        """Whether the run has not ended, and its process is there."""
        return self.alive and not self.ended


def read_live(path: Path, now: float | None = None) -> Live | None:
    """What the file says; None when there is none or it can't be read."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        found = TypeAdapter(Live).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    age = max(0.0, (time.time() if now is None else now) - found.at)
    there = _is_there(found.pid, found.pid_began)
    return replace(found, alive=there, age_s=age, disk_free=_free(path))


def write_live(path: Path, live: Live) -> None:
    """Replace the file. Raises OSError."""
    part = path.with_name(f"{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(orjson.dumps(live))
    part.replace(path)


def _is_there(pid: int, began: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - began) < 1.0
    except psutil.Error:
        return False


def _free(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path.parent).free
    except OSError:
        return None
