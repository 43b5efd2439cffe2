"""State of a run at one moment, and the live file that keeps it: replaced once a second while the run goes on.

The one model of what a run does: terminal, page, `areal status` and `areal why` render it. Owns its form, and the
question whether the run still goes on. Who reads the file dials nobody, and finds the last words of a run that died.
"""

import os
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import orjson
import psutil
from pydantic import TypeAdapter, ValidationError

from areal.errors import Cause, Kind

_MAX_BYTES = 16 << 20
_FRESH_S = 30.0  # it is written once a second; a shared disk may show it late


class IdleCause(StrEnum):
    """Why the controller admits nothing."""

    OVER = "over"
    STALLED = "stalled"  # it can't go on without help
    LAST_EVALUATION = "last-evaluation"
    NO_WEIGHTS = "no-weights"
    NO_SERVER = "no-server"
    NO_WORKER = "no-worker"
    UNTRAINED_GROUPS = "untrained-groups"  # too many in a row ended without being trained
    BYTES_FULL = "bytes-full"
    ALL_ADMITTED = "all-admitted"
    CONCURRENCY = "concurrency"  # as many groups in work as may be
    ONE_VERSION = "one-version"  # an evaluation keeps the servers at its version
    GATE_CLOSED = "gate-closed"  # generation is as far ahead of training as it may be
    NO_PLACE = "no-place"  # groups wait for a place at a worker
    TRAINING_TURN = "training-turn"  # the trainer has the cards that it shares with the servers


@dataclass(frozen=True)
class Diagnosis:
    """Why nothing happens, why it ended, or that all is well (`cause` is "none"): what every place shows.

    `cause` is an `areal.errors.Cause` of a run, and of a job on a cluster that or a condition's reason.
    """

    cause: str
    text: str
    fix: str = ""
    role: str = ""
    pid: int = 0
    since_s: float | None = None
    pod: str = ""  # on a cluster

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        place = self.pod or self.role
        where = f"{place}, pid {self.pid}: " if place and self.pid else f"{place}: " if place else ""
        since = f", for {time_span(self.since_s)}" if self.since_s is not None else ""
        return f"{where}{self.text}{since}"

    @property
    def named(self) -> str:
        """The sentence with the cause's identifier."""
        return self.sentence if self.cause == Cause.NONE else f"{self.sentence} [{self.cause}]"


def time_span(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Idle:
    """Why nothing is admitted: for programs, and for people."""

    cause: IdleCause
    text: str


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
    phase: str  # a `Phase` of areal.processes
    pid: int = 0
    restarts: int = 0
    reason: str = ""  # of its phase, or of its last exit
    cause: str = ""  # of its last exit, while it is not back; a `Cause`
    fix: str = ""  # likewise
    doing: str = ""
    policy: str = ""
    silent_s: float = 0.0  # how long it has not answered; 0 while it does, or can't be asked
    unready_s: float | None = None  # how long a process that was ready is not; a server is not while it swaps weights
    waits: Sequence[LiveWait] = ()
    warning: str = ""  # half of its restarts are used, and for what
    stopped: int = 0  # pid of a stopped process of its family; 0 without one


@dataclass(frozen=True)
class RolloutFlow:
    """Groups and bytes as the controller counts them."""

    leased: int = 0
    ready: int = 0  # complete, not yet taken
    reserved_bytes: int = 0
    budget_bytes: int = 0
    tombstones: Mapping[str, int] = field(default_factory=dict)  # by reason
    episode_ends: Mapping[str, int] = field(default_factory=dict)  # by how they ended
    token_fates: Mapping[str, int] = field(default_factory=dict)  # by what became of them


@dataclass(frozen=True)
class Live:
    """A run at one moment."""

    at: float  # unix seconds
    pid: int  # of `areal run`
    pid_began: float  # unix seconds: pids are used again
    step: int
    max_steps: int
    policy: str = ""
    idle: Idle | None = None
    idle_s: float = 0.0  # for how long of this cause
    batch_waits: str = ""  # the group that keeps the next batch from being chosen, in words
    stalled: str = ""  # why nothing can go on without help
    stalled_by: Kind = Kind.INFRA  # whose fault that is
    flow: RolloutFlow | None = None  # None: the controller does not answer, or there is none
    ended: bool = False
    roles: Sequence[LiveRole] = ()
    name: str = ""
    max_staleness: int = 0
    elapsed_s: float = 0.0  # since its roles were started
    generation_tps: float = 0.0  # tokens per second
    base_urls: Sequence[str] = ()  # of its gateways, for agents
    resume: str = "areal run JOB.yaml --resume"  # command that goes on with it
    cause: Diagnosis | None = None  # what `areal run` found last; of a run that ended, what ended it
    alive: bool = False  # whether `areal run` is still there; found out by the reader
    age_s: float = 0.0  # since it was written; likewise
    disk_free: int | None = None  # bytes that the disk of the run can still take; likewise
    place: str = ""  # its directory; likewise
    host: str = ""  # whose process `pid` is

    @property
    def goes_on(self) -> bool:
        """Whether the run has not ended, and its process is there."""
        return self.alive and not self.ended

    @property
    def restarts(self) -> int:
        """Of all roles together."""
        return sum(role.restarts for role in self.roles)


def read_live(path: Path, now: float | None = None) -> Live | None:
    """State in the live file; None when there is none or it can't be read."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        found = TypeAdapter(Live).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    age = max(0.0, (time.time() if now is None else now) - found.at)
    elsewhere = found.host not in ("", platform.node())  # its process can't be looked at: a file that is new tells
    there = age < _FRESH_S if elsewhere else _is_there(found.pid, found.pid_began)
    return replace(found, alive=there, age_s=age, disk_free=free_bytes(path), place=str(path.parent))


def write_live(path: Path, live: Live) -> None:
    """Replace the file. Raises OSError."""
    part = path.with_name(f"{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(orjson.dumps(replace(live, host=platform.node())))
    part.replace(path)


def _is_there(pid: int, began: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - began) < 1.0
    except psutil.Error:
        return False


def free_bytes(path: Path) -> int | None:
    """Room on the disk of a file's directory; None when it can't be asked."""
    try:
        return shutil.disk_usage(path.parent).free
    except OSError:
        return None
