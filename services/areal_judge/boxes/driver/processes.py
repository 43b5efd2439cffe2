"""Processes below a box's driver: found, ended, waited for.

The driver is the reaper of whatever loses its parent in the box, so that a daemon is found among its children. Where
/proc can't be read, a process group is all that is known.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from areal_judge.sandbox.kernel import calls as kernel

_ROUNDS = 400
_ROUND_S = 0.005


def adopt() -> None:
    """Makes the calling process the parent of all below it that lose theirs."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)


def spawn(streams: dict[int, int], become: Callable[[], NoReturn]) -> int:
    """A child, in a session of its own, that has these descriptors (from) under these numbers (to), and is `become`."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        high = max((*streams, *streams.values())) + 1
        kept = {to: os.dup2(source, high + at) for at, (to, source) in enumerate(streams.items())}
        for to, source in kept.items():
            os.dup2(source, to)
        kernel.close_from(max(streams) + 1)
        become()
    finally:
        os._exit(127)


def parents(*, ended: bool = False) -> dict[int, int]:
    """The parent of every process that /proc shows, of ended ones too where asked; empty where there is none."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            stat = _stat(name) if name.isdigit() else []
            if stat and (ended or stat[0] != b"Z"):
                found[int(name)] = int(stat[1])
    return found


def _stat(name: str) -> list[bytes]:
    """The fields of a process' state from its third on; none when it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
    return []


def below(root: int, parent_of: dict[int, int], spared: frozenset[int]) -> list[int]:
    """Processes below `root`, without the spared ones and all below those. Pure."""
    children: dict[int, list[int]] = {}
    for pid, parent in parent_of.items():
        children.setdefault(parent, []).append(pid)
    found, look = [], [root]
    while look:
        for pid in children.get(look.pop(), ()):
            if pid not in spared:
                found.append(pid)
                look.append(pid)
    return found


def end_all_but(spared: frozenset[int], group: int) -> bool:
    """Ends everything below this process but the spared children and theirs; False when something goes on making
    processes.
    """
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(_ROUNDS):
        victims = below(os.getpid(), parents(), spared)
        for pid in victims:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        reap(spared)
        if not victims:
            return True
        time.sleep(_ROUND_S)
    return False


def reap(spared: frozenset[int]) -> None:
    """Waits for ended children, the spared ones left to their owners."""
    own = os.getpid()
    for pid, parent in parents(ended=True).items():
        if parent == own and pid not in spared:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def wait(pid: int, until: float) -> int | None:
    """A child's status as wait gives it; None when it is still there at that moment of the monotonic clock."""
    while True:
        with contextlib.suppress(ChildProcessError):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            if time.monotonic() >= until:
                return None
            time.sleep(_ROUND_S)
            continue
        return 0
