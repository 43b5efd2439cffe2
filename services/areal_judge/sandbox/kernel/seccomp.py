"""The system call filter: a policy, assembled into classic BPF for x86_64 and aarch64.

Owns what is refused and how. `program` is pure; `install` puts it on the calling process. It refuses by name what
reaches beyond the run's own process and files, refuses calls newer than this table, and lets everything else through.
"""

from __future__ import annotations

import ctypes
import errno
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

REFUSED: dict[str, tuple[str, ...]] = {
    "network": ("socket", "bind", "connect", "listen", "accept", "accept4"),
    "trace": ("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "process_madvise", "process_mrelease",
              "pidfd_open", "pidfd_getfd", "pidfd_send_signal", "perf_event_open", "move_pages", "migrate_pages",
              "set_mempolicy_home_node", "rt_sigqueueinfo", "rt_tgsigqueueinfo"),
    "mount": ("mount", "umount", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount",
              "fspick", "mount_setattr", "setns", "unshare", "swapon", "swapoff", "quotactl", "quotactl_fd", "sysfs",
              "ustat", "name_to_handle_at", "open_by_handle_at", "fanotify_init", "fanotify_mark", "lookup_dcookie"),
    "kernel": ("bpf", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup", "io_destroy",
               "io_submit", "io_cancel", "io_getevents", "io_pgetevents", "vmsplice", "memfd_secret", "seccomp",
               "init_module", "finit_module", "delete_module", "create_module", "query_module", "get_kernel_syms",
               "kexec_load", "kexec_file_load", "reboot", "syslog", "acct", "iopl", "ioperm", "modify_ldt", "vhangup",
               "personality", "uselib", "nfsservctl", "afs_syscall", "tuxcall", "security", "vserver", "putpmsg",
               "getpmsg", "_sysctl", "epoll_ctl_old", "epoll_wait_old", "cachestat", "map_shadow_stack"),
    "clock": ("settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname"),
    "watch": ("inotify_init", "inotify_init1", "inotify_add_watch"),
    "keyring": ("add_key", "request_key", "keyctl"),
    "ipc": ("shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd",
            "msgrcv", "msgctl", "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify",
            "mq_getsetattr", "flock"),
    "identity": ("setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid",
                 "setgroups"),
    "priority": ("sched_setscheduler", "sched_setparam", "sched_setattr", "ioprio_set"),
}  # fmt: skip
"""Calls that always fail with EPERM, by what they would reach."""

METADATA = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "setxattr", "lsetxattr",
    "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr", "utime", "utimes", "futimesat",
    "utimensat",
)  # fmt: skip
"""Calls that change a file's mode, owner, attributes or times. Landlock has no right for them: whoever owns a file may,
without any right to write or even to read it."""


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


# ---- Numbers of the system calls that the filter names, on both processors. Taken from the kernel's own headers


AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
NEWEST = 463  # of the kernel's table when this one was made; what came later is unknown here and is refused

# name: (x86_64, aarch64); -1 where the processor has no such call
_NUMBERS = {
    "_sysctl": (156, -1), "accept": (43, 202), "accept4": (288, 242), "acct": (163, 89), "add_key": (248, 217),
    "adjtimex": (159, 171), "afs_syscall": (183, -1), "bind": (49, 200), "bpf": (321, 280), "chroot": (161, 51),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435),
    "connect": (42, 203), "create_module": (174, -1), "delete_module": (176, 106), "epoll_ctl_old": (214, -1),
    "epoll_wait_old": (215, -1), "execve": (59, 221), "execveat": (322, 281), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "fcntl": (72, 25), "finit_module": (313, 273), "flock": (73, 32), "fork": (57, -1),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "futex_waitv": (449, 449), "get_kernel_syms": (177, -1), "getpmsg": (181, -1), "init_module": (175, 105),
    "io_cancel": (210, 3), "io_destroy": (207, 1), "io_getevents": (208, 4), "io_pgetevents": (333, 292),
    "io_setup": (206, 0), "io_submit": (209, 2), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "ioctl": (16, 29), "ioperm": (173, -1), "iopl": (172, -1), "ioprio_set": (251, 30),
    "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
    "kill": (62, 129), "landlock_create_ruleset": (444, 444), "listen": (50, 201), "lookup_dcookie": (212, 18),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "migrate_pages": (256, 238), "mknod": (133, -1), "mknodat": (259, 33),
    "modify_ldt": (154, -1), "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429),
    "move_pages": (279, 239), "mq_getsetattr": (245, 185), "mq_notify": (244, 184), "mq_open": (240, 180),
    "mq_timedreceive": (243, 183), "mq_timedsend": (242, 182), "mq_unlink": (241, 181), "msgctl": (71, 187),
    "msgget": (68, 186), "msgrcv": (70, 188), "msgsnd": (69, 189), "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42), "open": (2, -1), "openat": (257, 56), "openat2": (437, 437),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "perf_event_open": (298, 241),
    "personality": (135, 92), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41), "prctl": (157, 167), "prlimit64": (302, 261), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "putpmsg": (182, -1), "query_module": (178, -1), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "reboot": (169, 142), "request_key": (249, 218), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "seccomp": (317, 277), "security": (185, -1),
    "semctl": (66, 191), "semget": (64, 190), "semop": (65, 193), "semtimedop": (220, 192), "sendto": (44, 206),
    "set_mempolicy_home_node": (450, 450), "setdomainname": (171, 162), "setfsgid": (123, 152),
    "setfsuid": (122, 151), "setgid": (106, 144), "setgroups": (116, 159), "sethostname": (170, 161),
    "setns": (308, 268), "setpriority": (141, 140), "setregid": (114, 143), "setresgid": (119, 149),
    "setresuid": (117, 147), "setreuid": (113, 145), "settimeofday": (164, 170), "setuid": (105, 146),
    "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197), "shmget": (29, 194), "socket": (41, 198),
    "socketpair": (53, 199), "swapoff": (168, 225), "swapon": (167, 224), "symlink": (88, -1), "sysfs": (139, -1),
    "syslog": (103, 116), "tgkill": (234, 131), "tkill": (200, 130), "tuxcall": (184, -1), "umount": (166, 39),
    "unshare": (272, 97), "uselib": (134, -1), "userfaultfd": (323, 282), "ustat": (136, -1), "vfork": (58, -1),
    "vhangup": (153, 58), "vmsplice": (278, 75), "vserver": (236, -1),
    "cachestat": (451, 451), "map_shadow_stack": (453, 453), "getsockopt": (55, 209), "setsockopt": (54, 208),
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1),
    "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1),
    "utimensat": (280, 88), "inotify_init": (253, -1), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "preadv2": (327, 286), "fadvise64": (221, 223), "madvise": (28, 233), "mincore": (27, 232),
}  # fmt: skip
_COLUMN = {"x86_64": 0, "aarch64": 1}


def number(name: str, machine: str) -> int | None:
    """The call's number on this machine, None where there is no such call. Raises KeyError for a name not listed."""
    found = _NUMBERS[name][_COLUMN[machine]]
    return None if found < 0 else found
