"""Ends what a run left behind where no pid namespace does: its orphans become children of the zygote."""

from __future__ import annotations

import contextlib
import os
import signal
import time

_ROUNDS = 200  # a program that forks faster than it is killed is stopped first; this bounds the effort
_PATIENCE_S = 2.0


def end(parent: int, known: frozenset[int]) -> None:
    """Kills and reaps every descendant of `parent` that isn't `known` or below one of those."""
    until = time.monotonic() + _PATIENCE_S
    for _ in range(_ROUNDS):
        found = _descendants(parent, known)
        if not found or time.monotonic() > until:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):  # none of them forks while the others are killed
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _descendants(parent: int, known: frozenset[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                children.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(name))
    found: list[int] = []
    todo = [pid for pid in children.get(parent, []) if pid not in known]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found
