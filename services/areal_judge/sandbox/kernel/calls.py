"""System calls that the standard library lacks, each as a function that raises OSError naming the call.

Owns the ctypes declarations. Knows nothing of cells or policies.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the functions behind `signal`, without its enumerations
import contextlib
import ctypes
import os
import platform
import resource
from collections.abc import Collection

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
libc.capset.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
libc.unshare.argtypes = (ctypes.c_int,)
libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_held = ctypes.PyDLL(None, use_errno=True)  # functions called with the interpreter's lock held

_AF_UNIX, _SOCK_STREAM = 1, 1
set_signal, DEFAULT_ACTION = _signal.signal, _signal.SIG_DFL

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2
CAP_CHOWN, CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 0, 5, 6, 7, 21
_ALL_SECUREBITS = 0xEF  # noroot, no_setuid_fixup, no ambient raise, each with its lock; keep_caps locked off
_CAPABILITY_VERSION_3 = 0x20080522

_BY_MACHINE = {"x86_64": {"pivot_root": 155, "seccomp": 317}, "aarch64": {"pivot_root": 41, "seccomp": 277}}
_EVERYWHERE = {"close_range": 436, "openat2": 437, "landlock_create_ruleset": 444, "landlock_add_rule": 445,
               "landlock_restrict_self": 446}  # fmt: skip
MACHINE = platform.machine()


def supported() -> bool:
    """Whether this processor's system call numbers are known here."""
    return MACHINE in _BY_MACHINE


def syscall(name: str, *arguments: object) -> int:
    """A raw system call by name."""
    number = _EVERYWHERE.get(name)
    if number is None:
        number = _BY_MACHINE[MACHINE][name]
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(libc.syscall(ctypes.c_long(number), *wide), name)


_with_numbers = ctypes.CDLL(None, use_errno=True)["syscall"]
_with_numbers.argtypes, _with_numbers.restype = (ctypes.c_long,) * 4, ctypes.c_long


def landlock_restrict_self(descriptor: int) -> None:
    _checked(_with_numbers(_EVERYWHERE["landlock_restrict_self"], descriptor, 0, 0), "landlock_restrict_self")


def _checked(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def prctl(option: int, second: int = 0, third: int = 0, fourth: int = 0, fifth: int = 0) -> int:
    result: int = libc.prctl(option, second, third, fourth, fifth)
    return result if result >= 0 else _checked(result, f"prctl {option}")


def unshare(flags: int) -> None:
    _checked(libc.unshare(flags), "unshare")


def fork() -> int:
    """Forks a process of one thread, without the interpreter's hooks: they would copy two hundred pages to find nothing
    to do. What they would do for `random` is left to the caller.
    """
    return _checked(_held.fork(), "fork")


def collect_sockets() -> None:
    """Has the kernel end sockets, and files, that are only in flight between one another: it looks when one closes."""
    os.close(_checked(_held.socket(_AF_UNIX, _SOCK_STREAM, 0), "socket"))


def enter_user_namespace(more: int = 0) -> None:
    """A user namespace, with `more` namespaces, in which this user is who it was. Needs its own /proc."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | more)
    for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(line)


def setns(descriptor: int, flags: int) -> None:
    _checked(libc.setns(descriptor, ctypes.c_int(flags)), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode() or None, flags, data.encode() or None)
    _checked(libc.mount(*arguments), f"mount {target}")


def umount(target: str, flags: int = MNT_DETACH) -> None:
    _checked(libc.umount2(target.encode(), flags), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    syscall("pivot_root", new.encode(), old.encode())


def peak_resident_bytes() -> int:
    """The most memory that this program held. Not `ru_maxrss` where it can be helped: that outlives an exec, so a small
    program which a large one started would answer for its parent.
    """
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def close_from(first: int) -> None:
    """Closes every descriptor from `first` on."""
    if _with_numbers(_EVERYWHERE["close_range"], first, 0xFFFFFFFF, 0) < 0:
        os.closerange(first, 65536)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def give_up_bounding() -> None:
    """Makes every capability impossible to get back, by exec or by user. Needs CAP_SETPCAP; keeps those held now."""
    prctl(PR_SET_SECUREBITS, _ALL_SECUREBITS)
    for capability in range(_last_capability() + 1):
        prctl(PR_CAPBSET_DROP, capability)


_THIS_PROCESS = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
_NOTHING = (ctypes.c_uint32 * 6)()
_TO_NOTHING = (ctypes.addressof(_THIS_PROCESS), ctypes.addressof(_NOTHING))


def drop_capabilities() -> None:
    """Gives up every capability held."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    _checked(libc.capset(*_TO_NOTHING), "capset")


def keep_capabilities(kept: Collection[int]) -> None:
    """Gives up every capability but these, as far as they are held."""
    held = capabilities() & sum(1 << capability for capability in kept)
    words = (ctypes.c_uint32 * 6)(held & 0xFFFFFFFF, held & 0xFFFFFFFF, 0, held >> 32, held >> 32, 0)
    _checked(libc.capset(ctypes.addressof(_THIS_PROCESS), ctypes.addressof(words)), "capset")


def capabilities() -> int:
    """The effective set, as a bit mask."""
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _checked(libc.capget(ctypes.byref(header), ctypes.byref(data)), "capget")
    return int(data[0]) | int(data[3]) << 32


_known_last: list[int] = []


def _last_capability() -> int:
    """The highest that the kernel knows; asked once, before anything is forked."""
    if not _known_last:
        number = 0
        while number < 64 and libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0:
            number += 1
        _known_last.append(number - 1)
    return _known_last[0]


_last_capability()
