"""Durable file operations: atomic replacement, installation of directories, append-only lines with torn-tail detection.

Promises that a reader sees a file as it was before or as it is after, and that what is durable survives a power cut
when the call returns: the content and the name. Raises OSError; its callers know what the file is for.
"""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PART = ".part"  # ends the name of a file that is being written


def write_atomically(path: Path, data: bytes, *, private: bool = False, durable: bool = True) -> None:
    """Replace the file as a whole, its directory made when it is missing.

    A private file is never readable by another user. What isn't durable may be lost in a power cut, never half-written
    by a crash of the process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + PART)
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    part.replace(path)
    if durable:
        sync_directory(path.parent)


def install_directory(staging: Path, target: Path) -> None:
    """Give a finished directory its name, durably; an older one of that name is replaced.

    A crash in between leaves no directory of that name, never half of one. The caller syncs what `staging` holds.
    """
    aside = target.with_name(f".{target.name}.old.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        target.rename(aside)
    staging.rename(target)
    sync_directory(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def sync_file(path: Path) -> None:
    """Put a file's content on disk."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Put the names in a directory on disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def append_lines(path: Path, lines: Iterable[bytes]) -> int:
    """Append lines, given without their newlines; returns the file's size. A torn last line is ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.write(b"".join([b"" if _ends_whole(file.fileno()) else b"\n", *(line + b"\n" for line in lines)]))
        file.flush()
        return file.tell()


@dataclass(frozen=True, slots=True)
class LinesOfFile:
    """What a file of lines holds."""

    whole: list[bytes]
    torn: bytes = b""  # after the last newline: its writer died, or is still writing


def read_lines(path: Path, offset: int = 0) -> LinesOfFile:
    """The lines of a file from `offset` on, without newlines, empty ones included; none when there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            *whole, torn = file.read().split(b"\n")
    except FileNotFoundError:
        return LinesOfFile([])
    return LinesOfFile(whole, torn)


def ends_whole(path: Path) -> bool:
    """Whether the file is empty or its last line has its newline."""
    with path.open("rb") as file:
        return _ends_whole(file.fileno())


def _ends_whole(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
