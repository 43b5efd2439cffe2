"""Data and start models that several tests share: targets of the Makefile, made once in the checkout."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def made(target: str) -> Path:
    """The path of a target of the Makefile, which is up to date; processes that ask for the same wait in line."""
    (ROOT / "runs").mkdir(exist_ok=True)
    with (ROOT / "runs" / ".made.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", target], cwd=ROOT, check=True, timeout=600)
    return ROOT / target
