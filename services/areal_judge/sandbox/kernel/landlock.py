"""Landlock: which files a process may read, run and write, and that it can signal and reach nobody outside.

Owns the masks, which grow with the kernel's ABI. Needs no privilege.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from areal_judge.sandbox.kernel import calls as kernel

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
_REMOVE_AND_MAKE = 0x1FF0  # remove_dir … make_sym
_MAKE_CHAR, _MAKE_BLOCK, _MAKE_SOCK = 1 << 6, 1 << 11, 1 << 9
_REFER = 1 << 13  # ABI 2
TRUNCATE = 1 << 14  # ABI 3
_IOCTL_DEV = 1 << 15  # ABI 5
_NET = 3  # bind and connect of TCP, ABI 4
_SCOPES = 3  # abstract sockets and signals, ABI 6
SCOPES_FROM = 6

READ = READ_FILE | READ_DIR
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | _IOCTL_DEV
_CREATE_VERSION = 1
_PATH_BENEATH = 1


@dataclass(frozen=True)
class PathRule:
    """What may be done below a path. A path that isn't there gives nothing."""

    path: str
    rights: int


def abi() -> int:
    """The kernel's version of Landlock; 0 where there is none."""
    try:
        return kernel.syscall("landlock_create_ruleset", 0, 0, _CREATE_VERSION)
    except OSError:
        return 0


def handled(version: int) -> int:
    """Every right that this version can take away."""
    mask = 0x1FFF
    for since, bit in ((2, _REFER), (3, TRUNCATE), (5, _IOCTL_DEV)):
        if version >= since:
            mask |= bit
    return mask


def writing(version: int) -> int:
    """Rights of a scratch directory: everything but devices and sockets."""
    made = _REMOVE_AND_MAKE & ~(_MAKE_CHAR | _MAKE_BLOCK | _MAKE_SOCK)
    return (READ | WRITE_FILE | TRUNCATE | _REFER | made) & handled(version)


class _Attributes(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def ruleset(rules: Sequence[PathRule], version: int) -> int:
    """A descriptor of these rules. Each process that applies it is in a scope of its own."""
    attributes = _Attributes(handled(version), _NET if version >= 4 else 0, _SCOPES if version >= SCOPES_FROM else 0)
    size = 24 if version >= SCOPES_FROM else 16 if version >= 4 else 8
    made = kernel.syscall("landlock_create_ruleset", ctypes.addressof(attributes), size, 0)
    try:
        for rule in rules:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError), _opened(rule.path) as at:
                rights = rule.rights & handled(version)
                if not stat.S_ISDIR(os.fstat(at).st_mode):
                    rights &= _FILE_RIGHTS
                if rights:
                    beneath = _Beneath(rights, at)
                    kernel.syscall("landlock_add_rule", made, _PATH_BENEATH, ctypes.addressof(beneath), 0)
    except BaseException:
        os.close(made)
        raise
    return made


def restrict(descriptor: int) -> None:
    """Holds the calling process to a ruleset, for good. Needs no_new_privs."""
    kernel.landlock_restrict_self(descriptor)
