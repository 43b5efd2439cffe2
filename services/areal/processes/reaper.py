"""Zombie reaper of the first process of a container: collects ended processes that it never started.

A process whose parent dies becomes the first process' child, programs started by `kubectl exec` among them; nobody
else would collect it, and it would stay a zombie until the container ends. Keepers are left alone: their `Popen` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Collection

import psutil


def install(keepers: Collection[int]) -> None:
    """Collect strangers on every SIGCHLD of the running loop. `keepers` is looked at each time."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, collect, keepers)


def collect(keepers: Collection[int]) -> list[int]:
    """Collect all ended children that are no keepers; returns their pids."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if (
                child.pid not in keepers
                and child.status() == psutil.STATUS_ZOMBIE
                and os.waitpid(child.pid, os.WNOHANG)[0]
            ):
                found.append(child.pid)
    return found
