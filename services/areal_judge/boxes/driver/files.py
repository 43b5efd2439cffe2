"""Reading and writing files of a box as the box's own user. Relative paths are below its directory."""

from __future__ import annotations

import os
import stat


def read(path: str, most_bytes: int) -> bytes:
    """A regular file. Raises OSError, with words for the caller."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _regular(descriptor)
        parts, left = [], most_bytes + 1
        while left and (part := os.read(descriptor, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
        if not left:
            raise OSError(f"it is longer than {most_bytes} bytes")
        return b"".join(parts)
    finally:
        os.close(descriptor)


def write(path: str, data: bytes, *, executable: bool) -> None:
    """Replaces or makes a regular file and the directories above it. Raises OSError."""
    if directory := os.path.dirname(path):
        os.makedirs(directory, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o755 if executable else 0o644)
    try:
        _regular(descriptor)
        os.ftruncate(descriptor, 0)
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        if executable:
            os.fchmod(descriptor, 0o755)
    finally:
        os.close(descriptor)


def _regular(descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError("it is no regular file")
