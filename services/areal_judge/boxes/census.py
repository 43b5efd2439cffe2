"""Count of what a sandbox's zygotes have below them, from the operating system: the proof that ended boxes are gone."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from areal_judge.boxes.driver.processes import below, parents
from areal_judge.sandbox.host.runner import Sandbox

_OF_ZYGOTE = 2  # the process outside its pid namespace, and the one inside
_OF_CELL = 2  # its first process, and a program that waits
_KINDS = 3  # of cells without a run: ready ones, idle ones, and some of another shape


@dataclass(frozen=True)
class Census:
    """Processes below the zygotes, directories of their cells' groups, and what they may be while no box is there."""

    processes: int
    process_floor: int
    groups: int
    group_floor: int
    descriptors: int  # open in this process


def count(sandbox: Sandbox) -> Census:
    """Counts now. A walk through /proc: for tests, metrics and people, not for each box."""
    zygotes = sandbox.zygotes()
    parent_of = parents()
    processes = sum(1 + len(below(zygote.pid, parent_of, frozenset())) for zygote in zygotes)
    waiting = _KINDS * sandbox.spares
    return Census(
        processes=processes,
        process_floor=len(zygotes) * (_OF_ZYGOTE + _OF_CELL * waiting),
        groups=sum(_directories(zygote.groups) for zygote in zygotes),
        group_floor=len(zygotes) * waiting,
        descriptors=len(os.listdir("/proc/self/fd")),
    )


def _directories(paths: tuple[str, ...]) -> int:
    """Groups of cells below a zygote's; each hierarchy has one of each, so the fullest counts."""
    most = 0
    for path in paths:
        with contextlib.suppress(OSError):
            most = max(most, sum(entry.is_dir() for entry in os.scandir(path)))
    return most
