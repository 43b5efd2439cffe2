"""Errors that people and other processes understand.

An `ArealError` says whose fault something is (its class), what happened (the message) and what to do next (`fix`).
The class also decides the exit code, so a failure policy can tell a broken job file from a lost machine.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from enum import IntEnum, StrEnum
from pathlib import Path


class ExitCode(IntEnum):
    """Exit codes of every role and of the command line."""

    DONE = 0
    CONFIG = 64  # the job file or an argument is wrong
    DATA = 65  # the dataset, model or recipe is wrong
    BUG = 70  # our fault
    INFRA = 75  # the world's fault: try again
    DRAINED = 143  # asked to stop, stopped cleanly


class Kind(StrEnum):
    """Whose fault an error is."""

    INFRA = "infra"
    DATA = "data"
    CONFIG = "config"
    BUG = "bug"


class ArealError(Exception):
    """Base of all errors with an owner. `fix` is one sentence in the imperative; it may be empty for bugs."""

    kind: Kind = Kind.BUG
    exit_code: ExitCode = ExitCode.BUG

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message


class InfraError(ArealError):
    """A machine, process or network failed. Trying again may help."""

    kind = Kind.INFRA
    exit_code = ExitCode.INFRA


class DataError(ArealError):
    """The user's data, model or recipe is at fault. Trying again won't help."""

    kind = Kind.DATA
    exit_code = ExitCode.DATA


class ConfigError(ArealError):
    """The job file or a command-line argument is at fault."""

    kind = Kind.CONFIG
    exit_code = ExitCode.CONFIG


class BugError(ArealError):
    """A promise of our own is broken."""


class FencedError(ArealError):
    """A newer incarnation of this role is alive: this one must stop at once, changing nothing more."""

    kind = Kind.INFRA
    exit_code = ExitCode.INFRA


def by_kind(kind: Kind, message: str, *, fix: str = "") -> ArealError:
    """The error class for a kind that came over the wire."""
    classes: dict[Kind, type[ArealError]] = {
        Kind.INFRA: InfraError,
        Kind.DATA: DataError,
        Kind.CONFIG: ConfigError,
        Kind.BUG: BugError,
    }
    return classes[kind](message, fix=fix)


_MACHINE = {
    errno.ENOSPC: ("the disk is full", "make room there, then go on with --resume"),
    errno.EDQUOT: (
        "the quota of this volume is used up",
        "make room there or raise the quota, then go on with --resume",
    ),
    errno.EROFS: ("the disk can't be written", "mount it for writing, or name another directory"),
    errno.EIO: ("the disk fails", "look at the machine's kernel log, or name a directory on another disk"),
    errno.EMFILE: ("this process may open no more files", "raise the limit: ulimit -n 65536"),
    errno.ENFILE: ("this machine may open no more files", "raise fs.file-max, or end what holds them"),
    errno.ENOMEM: ("no memory is left", "end other processes, or give the machine or the pod more memory"),
    errno.ENETDOWN: ("the network is down", "connect this machine, then go on with --resume"),
    errno.ENETUNREACH: ("the network can't be reached", "connect this machine, then go on with --resume"),
    errno.EHOSTUNREACH: ("the host can't be reached", "look at the address and the network between"),
}
_ROOM = 1 << 30  # bytes; a place with so many is not the full one
_IN_A_TEXT = re.compile(r"\(os error (\d+)\)|\bcode: (\d+), kind: |\[Errno (\d+)\]")
"""How libraries in Rust and C++ write an errno into a message that is no OSError."""


def of_machine(error: BaseException) -> InfraError | None:
    """The failure of a machine behind `error`, or None: a full disk, no memory, no descriptor, no network.

    Looks through causes, contexts and groups, and into the messages of libraries that raise no OSError. The message has
    the place and how many bytes are free there.
    """
    for one in _behind(error):
        if isinstance(one, ArealError):
            return None  # whoever raised it knew more
        number = errno.ENOMEM if isinstance(one, MemoryError) else _errno(one)
        if number in _MACHINE:
            words, fix = _MACHINE[number]
            return InfraError(words + _where(one, number), fix=fix)
    return None


def _behind(error: BaseException) -> Iterator[BaseException]:
    """`error`, and what it came from, nearest first."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        waiting += [cause for cause in (*inner, one.__cause__, one.__context__) if cause is not None]


def _errno(error: BaseException) -> int:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _IN_A_TEXT.search(str(error))
    return int(next(number for number in found.groups() if number)) if found else 0


def _where(error: BaseException, number: int) -> str:
    """The file in question and the room beside it. A write to an open file names none: the fullest place is told."""
    name = getattr(error, "filename", None)
    if isinstance(name, str | bytes):
        place = Path(os.fsdecode(name)).absolute()
    elif number in (errno.ENOSPC, errno.EDQUOT):
        usual = (Path.cwd(), Path(os.environ.get("TMPDIR", "/tmp")), Path("/dev/shm"))
        place = min((one for one in usual if one.exists()), key=_free)
        if _free(place) > _ROOM:
            return ""
    else:
        return f": {error}" if str(error) else ""
    there = next(one for one in (place, *place.parents) if one.exists())
    return f": {place} ({_free(there):,} bytes free)"


def _free(place: Path) -> int:
    return shutil.disk_usage(place).free
