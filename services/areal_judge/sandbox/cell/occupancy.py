"""State of one cell in its zygote, and of the run that it has."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from enum import Enum
from typing import Any

from areal_judge.sandbox.cell.messages import CellShape
from areal_judge.sandbox.kernel.cgroups import CellGroup


class CellState(Enum):
    MAKING = "making"  # its program isn't ready yet
    READY = "ready"  # its program waits for a run
    RUNNING = "running"
    REPORTED = "reported"  # of a run that is over, or of a program that failed
    IDLE = "idle"  # its warden has no program


@dataclass(eq=False)
class Assignment:
    """A run and its descriptors."""

    order: dict[str, Any]
    descriptors: list[int]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


@dataclass(eq=False)
class Cell:
    """One child."""

    pid: int
    shape: CellShape
    slot: int
    entry: socket.socket | None
    control: socket.socket | None
    group: CellGroup | None
    alive: bool = True
    ending: bool = False  # killed as a whole
    used: bool = False  # has had a program
    state: CellState = CellState.MAKING
    run: Assignment | None = None
    handed: float = 0.0  # when its program was given the run
    went: float | None = None  # when that began
    cpu_before_s: float = 0.0
    group_before_s: float | None = None  # its group's CPU time when it was given a run of several processes
    deadline: float | None = None
    reason: str = ""
    failure: str = ""
    cold: bool = False
    kill_at: float | None = None

    @property
    def spare(self) -> bool:
        """Whether it may have the next run: its program is there, or in the making."""
        waits = self.run is None and self.state in (CellState.MAKING, CellState.READY)
        return waits and not self.ending and self.entry is not None

    @property
    def idle(self) -> bool:
        return self.state is CellState.IDLE and not self.ending

    def rest(self) -> None:
        """Its program is gone; nothing of the run stays."""
        self.state, self.used = CellState.IDLE, True
        self.run = self.went = self.deadline = self.kill_at = None
        self.cpu_before_s = 0.0
        self.group_before_s = None
        self.reason = self.failure = ""
        self.cold = False
