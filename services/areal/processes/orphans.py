"""Sweep of orphans: the supervisor adopts the processes that a killed keeper leaves behind, and ends them.

A keeper that is killed with SIGKILL can't sweep. Its child dies by the kernel's parent-death signal; deeper descendants
become children of the nearest subreaper, which is the supervisor. They are told apart from the supervisor's own
helpers by their session: keepers and all below them live in other sessions.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Collection

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """Make this process the one that orphans below it fall to."""
    with contextlib.suppress(AttributeError):  # no prctl here: keepers alone must do
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def sweep(keepers: Collection[int], limit_s: float = 5.0) -> int:
    """Kill all children in other sessions that are no keeper, with everything below them; returns how many."""
    own_session = os.getsid(0)
    ended: set[int] = set()
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        strays = [
            child
            for child in psutil.Process().children()
            if child.pid not in keepers and _session(child.pid) not in (own_session, None)
        ]
        if not strays:
            break
        for stray in strays:
            for process in [*_below(stray), stray]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                    ended.add(process.pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stray.pid, 0)
    return len(ended)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
