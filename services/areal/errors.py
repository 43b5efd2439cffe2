"""Errors that people and other processes understand.

An `ArealError` says whose fault something is (its class), what happened (the message) and what to do next (`fix`).
The class also decides the exit code, so a failure policy can tell a broken job file from a lost machine.
"""

import errno
import os
import re
import shutil
import socket
import traceback
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


class Cause(StrEnum):
    """Identifiers of why a run ended, failed, stalls or waits. docs/causes.md has a line for each."""

    NONE = "none"
    # ends
    COMPLETE = "complete"
    STOPPED = "stopped"
    ENDED = "ended"  # of a run that left no cause
    NOTHING_LEARNED = "nothing-learned"
    AUDIT_FAILED = "audit-failed"
    RUN_GONE = "run-gone"
    RUN_SILENT = "run-silent"
    # whose fault an error is, where nothing below says more
    CONFIG = "config"
    DATA = "data"
    BUG = "bug"
    INFRA = "infra"
    # machines
    DISK_FULL = "disk-full"
    DISK_FAILS = "disk-fails"
    NO_DESCRIPTORS = "no-descriptors"
    NO_MEMORY = "no-memory"
    NO_NETWORK = "no-network"
    PORT_TAKEN = "port-taken"
    # roles
    ROLE_KILLED = "role-killed"
    ROLE_HUNG = "role-hung"
    ROLE_ENDED = "role-ended"
    ROLE_STOPPED = "role-stopped"
    ROLE_STARTS = "role-starts"
    ROLE_SILENT = "role-silent"
    ENGINE_SILENT = "engine-silent"
    STORE_SILENT = "store-silent"
    STORE_FULL = "store-full"
    # waits
    STALLED = "stalled"
    USER_CODE = "user-code"
    OLD_VERSION = "old-version"
    NO_WEIGHTS = "no-weights"
    NO_SERVER = "no-server"
    NO_WORKER = "no-worker"
    BYTES_FULL = "bytes-full"
    UNTRAINED_GROUPS = "untrained-groups"
    LAST_EVALUATION = "last-evaluation"
    WAITS_FOR_MODEL = "waits-for-model"
    WAITS_FOR_GROUPS = "waits-for-groups"
    OVERDUE = "overdue"


class ArealError(Exception):
    """Base of all errors with an owner. `fix` is one sentence in the imperative; it may be empty for bugs."""

    kind: Kind = Kind.BUG
    exit_code: ExitCode = ExitCode.BUG

    def __init__(self, message: str, *, fix: str = "", cause: Cause | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self._cause = cause

    @property
    def cause(self) -> Cause:
        """Identifier of what is behind it: a machine's failure that it was raised from, else its kind."""
        if self._cause is not None or self.kind is not Kind.INFRA:
            return self._cause or Cause(self.kind)
        numbers = (_errno(one) for one in _behind(self) if not isinstance(one, ArealError))
        return next((_MACHINE[number][0] for number in numbers if number in _MACHINE), Cause.INFRA)

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


def by_kind(kind: Kind, message: str, *, fix: str = "", cause: Cause | None = None) -> ArealError:
    """The error class for a kind that came over the wire."""
    classes: dict[Kind, type[ArealError]] = {
        Kind.INFRA: InfraError,
        Kind.DATA: DataError,
        Kind.CONFIG: ConfigError,
        Kind.BUG: BugError,
    }
    return classes[kind](message, fix=fix, cause=cause)


def line_in(trace: str, file: Path | str) -> int | None:
    """The line of `file` that a traceback's text names last; None where it names none."""
    lines = re.findall(rf'File "{re.escape(str(file))}", line (\d+)', trace)
    return int(lines[-1]) if lines else None


def as_bug(error: BaseException) -> BugError:
    """An error that nobody expected: its type, its words, and the innermost line of its stack."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return BugError(f"{type(error).__name__}: {error}{place}", fix="please report it with the log")


_CONNECT = "connect this machine to the network"
_MACHINE = {
    errno.ENOSPC: (Cause.DISK_FULL, "the disk is full", "make room there"),
    errno.EDQUOT: (Cause.DISK_FULL, "the quota of this volume is used up", "make room there or raise the quota"),
    errno.EROFS: (Cause.DISK_FAILS, "the disk can't be written", "mount it for writing, or name another directory"),
    errno.EIO: (Cause.DISK_FAILS, "the disk fails", "look at the kernel's log, or name a directory on another disk"),
    errno.EMFILE: (Cause.NO_DESCRIPTORS, "this process may open no more files", "raise the limit: ulimit -n 65536"),
    errno.ENFILE: (Cause.NO_DESCRIPTORS, "this machine may open no more files", "raise fs.file-max"),
    errno.ENOMEM: (Cause.NO_MEMORY, "no memory is left", "end other processes, or give this machine more"),
    errno.ENETDOWN: (Cause.NO_NETWORK, "the network is down", _CONNECT),
    errno.ENETUNREACH: (Cause.NO_NETWORK, "the network can't be reached", _CONNECT),
    errno.EHOSTUNREACH: (Cause.NO_NETWORK, "the host can't be reached", "look at the address and the network between"),
    socket.EAI_AGAIN: (Cause.NO_NETWORK, "no name server answers", _CONNECT),
    socket.EAI_NONAME: (Cause.NO_NETWORK, "the host's name is not known", "look at the address and the network"),
    errno.EADDRINUSE: (Cause.PORT_TAKEN, "the port is taken", "end what uses it, or name another port"),
}
_ROOM = 1 << 30  # bytes; a place with so many is not the full one
_IN_A_TEXT = re.compile(r"\(os error (\d+)\)|\bcode: (\d+), kind: |\[Errno (\d+)\]|\bError code (\d+) \(")
"""How libraries in Rust and C++ write an errno into a message that is no OSError."""


def of_machine(error: BaseException) -> InfraError | None:
    """The failure of a machine behind `error`, or None: a full disk, no memory, no descriptor, no network.

    Looks through causes, contexts and groups, and into the messages of libraries that raise no OSError. The message has
    the place and how many bytes are free there.
    """
    for one in _behind(error):
        if isinstance(one, ArealError):
            return None  # whoever raised it knew more
        if (number := _errno(one)) in _MACHINE:
            cause, words, fix = _MACHINE[number]
            return InfraError(words + _where(one, number), fix=fix, cause=cause)
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
    if isinstance(error, MemoryError):
        return errno.ENOMEM
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
