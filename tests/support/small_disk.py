"""A disk of a test's own that can be filled: a tmpfs, where this process may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """`place` as a disk of so many megabytes; skips where mounting is not allowed."""
    place.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "none", str(place)]
    mounted = subprocess.run(["mount", *options], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"this process may not mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, leave: int = 0) -> Path:
    """Take all of it but `leave` bytes; returns the file that holds them."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:  # others may write, too, and be faster
        while os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > leave:
            file.write(bytes(4096))
    return ballast
