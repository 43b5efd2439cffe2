"""Whether a process lives."""

from __future__ import annotations

import psutil


def lives(process: psutil.Process) -> bool:
    """Neither gone nor a zombie, even when it goes meanwhile."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
