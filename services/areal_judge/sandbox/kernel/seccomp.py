"""The system call filter: a policy, assembled into classic BPF for x86_64 and aarch64.

Owns what is refused and how. `program` is pure; `install` puts it on the calling process. It refuses by name what
reaches beyond the run's own process and files, refuses calls newer than this table, and lets everything else through.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from areal_judge.sandbox.kernel import calls as kernel
from areal_judge.sandbox.kernel.bpf import ALLOW, JEQ, Assembler, Checks, choose, ranges

D = TypeVar("D", int, Checks)

KILL_PROCESS = 0x80000000
ERRNO = 0x00050000
SUCCEED = ERRNO  # errno 0: the call does nothing and returns 0
_AT_NUMBER = 0
_AT_ARCH = 4
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
NEWEST = 463  # of the kernel's table when calls.tbl was made; what came later is unknown here and is refused
_CLONE_NAMESPACES = 0x7E020080
_CLONE_THREAD = 0x00010000
_REACHING_IOCTLS = (0x5412, 0x541C, 0x8901, 0x8902)  # TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP
_READING_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIO(NBIO|NCLEX|CLEX)
_NAMELESS_FILE = 0x400000  # of O_TMPFILE, the bit that O_DIRECTORY has not
_LEASES = (1024, 1026)  # F_SETLEASE, F_NOTIFY
_RECIPIENTS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: the kernel signals whom they name when data is there
_RWF_NOWAIT = 0x8
_FADV_DONTNEED = 4
_MADV_COLD, _MADV_PAGEOUT = 20, 21
_SO_PASSPIDFD, _SO_PEERPIDFD = 76, 77
_LOCKS = (6, 7, 37, 38)  # F_SETLK(W) and their open-file-description forms
_S_IFMT, _S_IFIFO, _S_IFREG = 0xF000, 0x1000, 0x8000
_SOCK_TYPE_MASK, _SOCK_STREAM, _SOCK_SEQPACKET = 0xF, 1, 5

with open(os.path.join(os.path.dirname(__file__), "calls.tbl"), encoding="ascii") as _table:
    # Not YAML: the interpreter of programs has no library but Python's own.
    _ROWS = [line.split() for line in _table if line.strip() and not line.startswith("#")]
_NUMBERS = {name: {"x86_64": int(x86), "aarch64": int(arm)} for name, x86, arm, _ in _ROWS}
_REACHES = {
    reaches: [row[0] for row in _ROWS if row[3] == reaches] for reaches in dict.fromkeys(row[3] for row in _ROWS)
}

METADATA = _REACHES.pop("metadata")
"""Calls that change a file's mode, owner, attributes or times. Landlock has no right for them: whoever owns a file may,
without any right to write or even to read it."""
REFUSED = {reaches: names for reaches, names in _REACHES.items() if reaches != "-"}
"""Calls that always fail with EPERM, by what they would reach."""


@dataclass(frozen=True)
class Policy:
    """What differs between runs."""

    fork: bool = False  # otherwise only threads of the same process
    execute: bool = False
    metadata: bool = False  # METADATA and ioctls of files: only where a private root decides what can be changed
    memory_files: bool = True  # memory that no process's limit counts: only where a cgroup does
    only_signal: int | None = None  # the one process that may be signalled, where Landlock can't scope signals


class _Filter:
    """One filter in the making: what each call gets, by its number."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._decided: dict[int, int | Checks] = {}

    def refuse(self, errors: Mapping[str, int]) -> None:
        """Fails these calls, each with its error."""
        for name, error in errors.items():
            self._decide(name, ERRNO | error)

    def when(self, name: str) -> Checks:
        """Checks of one call's arguments, to fill."""
        return self._decide(name, Checks())

    def _decide(self, name: str, what: D) -> D:
        found = number(name, self._machine)
        if found is not None:
            self._decided[found] = what
        return what

    def assembled(self) -> bytes:
        """Calls of another processor's table end the process; those newer than ours don't exist."""
        out = Assembler()
        native = out.label()
        out.load(_AT_ARCH)
        out.add(JEQ, AUDIT_ARCH[self._machine], true=native)
        out.give(KILL_PROCESS)
        out.here(native)
        out.load(_AT_NUMBER)
        # What is above the newest call is also x86's x32 table, whose numbers have a bit of their own.
        choose(out, [*ranges(self._decided, ALLOW, NEWEST), (NEWEST + 1, ERRNO | errno.ENOSYS)])
        return out.assembled()


def program(policy: Policy, machine: str = kernel.MACHINE) -> bytes:
    """The filter as the kernel takes it: 8 bytes an instruction."""
    denied, again = ERRNO | errno.EPERM, ERRNO | errno.EAGAIN
    out = _Filter(machine)
    errors = {name: errno.EPERM for names in REFUSED.values() for name in names}
    # Their flags are behind a pointer; libraries fall back to clone and openat.
    errors |= dict.fromkeys(("clone3", "openat2"), errno.ENOSYS)
    if not policy.fork:
        errors |= dict.fromkeys(("fork", "vfork"), errno.EAGAIN)
    if not policy.memory_files:
        errors["memfd_create"] = errno.EPERM
    if not policy.execute:
        errors |= dict.fromkeys(("execve", "execveat"), errno.EPERM)
    if not policy.metadata:
        errors |= dict.fromkeys((*METADATA, "mincore"), errno.EPERM)
    if policy.only_signal is not None:
        errors["tkill"] = errno.EPERM
    out.refuse(errors)
    clone = out.when("clone")
    clone.if_any_bit(0, _CLONE_NAMESPACES & ~0xFF, denied)  # the lowest byte is the exit signal
    if not policy.fork:
        clone.unless_bit(0, _CLONE_THREAD, again)
    for name, argument in (("open", 1), ("openat", 2)):
        # A file without a name leaves no trace in its directory, but counts in the numbers that later files get.
        out.when(name).if_any_bit(argument, _NAMELESS_FILE, ERRNO | errno.EOPNOTSUPP)
    ioctl = out.when("ioctl")
    ioctl.if_equal(1, _REACHING_IOCTLS, denied)
    if not policy.metadata:  # flags of a file and its like are set by ioctls of its owner
        ioctl.unless_equal(1, _READING_IOCTLS, ERRNO | errno.ENOTTY)
    fcntl = out.when("fcntl")
    fcntl.if_equal(1, (*_LEASES, *_RECIPIENTS), denied)
    # What of a file is in memory would carry messages between runs: it is neither told nor changed.
    out.when("preadv2").if_any_bit(5, _RWF_NOWAIT, ERRNO | errno.EOPNOTSUPP)
    out.when("fadvise64").if_equal(3, (_FADV_DONTNEED,), SUCCEED)
    if not policy.metadata:  # an owner may do it to the pages of a file by its mapping
        out.when("madvise").if_equal(2, (_MADV_COLD, _MADV_PAGEOUT), denied)
    out.when("getsockopt").if_equal(2, (_SO_PEERPIDFD,), denied)
    out.when("setsockopt").if_equal(2, (_SO_PASSPIDFD,), denied)
    # Locks on files that every run can read would carry messages between runs. A single process needs none.
    fcntl.if_equal(1, _LOCKS, denied if policy.fork else SUCCEED)
    out.when("prctl").if_equal(0, (kernel.PR_SET_PDEATHSIG, kernel.PR_SET_SECCOMP), denied)
    # A datagram pair could be sent to any path or abstract name.
    out.when("socketpair").unless_equal(1, (_SOCK_STREAM, _SOCK_SEQPACKET), denied, mask=_SOCK_TYPE_MASK)
    out.when("sendto").unless_null(4, denied)
    for name, argument in (("mknod", 1), ("mknodat", 2)):
        out.when(name).unless_equal(argument, (_S_IFIFO, _S_IFREG, 0), denied, mask=_S_IFMT)
    for name in ("prlimit64", "sched_setaffinity"):
        out.when(name).unless_equal(0, (0,), denied)
    priority = out.when("setpriority")
    priority.unless_equal(0, (0,), denied)
    priority.unless_equal(1, (0,), denied)
    if policy.only_signal is not None:
        for name in ("kill", "tgkill"):
            out.when(name).unless_equal(0, (policy.only_signal,), denied)
    return out.assembled()


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class FilterImage:
    """A filter in memory, ready for the kernel: made before a fork, installed after it."""

    def __init__(self, assembled: bytes) -> None:
        self._instructions = ctypes.create_string_buffer(assembled, len(assembled))
        self._program = _FilterProgram(len(assembled) // 8, ctypes.cast(self._instructions, ctypes.c_void_p))
        self._address = ctypes.addressof(self._program)

    def install(self) -> None:
        """Filters the calling process and all that it will start. Needs no_new_privs, or CAP_SYS_ADMIN."""
        kernel.prctl(kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, self._address)


def install(assembled: bytes) -> None:
    """Filters the calling process, as `FilterImage.install`."""
    FilterImage(assembled).install()


def number(name: str, machine: str) -> int | None:
    """The call's number on this machine, None where there is no such call. Raises KeyError for a name not listed."""
    found = _NUMBERS[name][machine]
    return None if found < 0 else found
