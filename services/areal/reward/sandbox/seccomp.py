"""The system call filter: a policy, assembled into classic BPF for x86_64 and aarch64.

Owns what is refused and how. `program` is pure; `install` puts it on the calling process. It refuses by name what
reaches beyond the run's own process and files, refuses calls newer than this table, and lets everything else through.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from areal.reward.sandbox import kernel
from areal.reward.sandbox.syscall_numbers import AUDIT_ARCH, NEWEST, X32_BIT, number

KILL_PROCESS = 0x80000000
ERRNO = 0x00050000
ALLOW = 0x7FFF0000
SUCCEED = ERRNO  # errno 0: the call does nothing and returns 0

_LD_W_ABS = 0x20
_ALU_AND = 0x54
_JMP_JA = 0x05
_JEQ = 0x15
_JGT = 0x25
_JGE = 0x35
_JSET = 0x45
_RET = 0x06
_BLOCK = 12  # calls
_AT_NUMBER = 0
_AT_ARCH = 4
_CLONE_NAMESPACES = 0x7E020080
_CLONE_THREAD = 0x00010000
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_NAMELESS_FILE = 0x400000  # of O_TMPFILE, the bit that O_DIRECTORY has not
_LEASES = (1024, 1026)  # F_SETLEASE, F_NOTIFY
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
    "keyring": ("add_key", "request_key", "keyctl"),
    "ipc": ("shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd",
            "msgrcv", "msgctl", "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify",
            "mq_getsetattr", "flock"),
    "identity": ("setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid",
                 "setgroups"),
    "priority": ("sched_setscheduler", "sched_setparam", "sched_setattr", "ioprio_set"),
}  # fmt: skip
"""Calls that always fail with EPERM, by what they would reach."""


@dataclass(frozen=True)
class Policy:
    """What differs between runs."""

    fork: bool = False  # otherwise only threads of the same process
    execute: bool = False
    memory_files: bool = True  # memory that no process's limit counts: only where a cgroup does
    only_signal: int | None = None  # the one process that may be signalled, where Landlock can't scope signals


@dataclass(frozen=True)
class _Jump:
    """An instruction whose branches are labels, or None for the next instruction."""

    code: int
    operand: int
    true: str | None = None
    false: str | None = None


class _Assembler:
    """Instructions with labels; forward jumps only, as the kernel wants them."""

    def __init__(self) -> None:
        self._items: list[_Jump | str] = []
        self._labels = 0

    def label(self) -> str:
        self._labels += 1
        return f"l{self._labels}"

    def here(self, label: str) -> None:
        self._items.append(label)

    def add(self, code: int, operand: int, true: str | None = None, false: str | None = None) -> None:
        self._items.append(_Jump(code, operand, true, false))

    def load(self, offset: int) -> None:
        self.add(_LD_W_ABS, offset)

    def give(self, action: int) -> None:
        self.add(_RET, action)

    def assembled(self) -> bytes:
        places: dict[str, int] = {}
        position = 0
        for item in self._items:
            if isinstance(item, str):
                places[item] = position
            else:
                position += 1
        out = bytearray()
        position = 0
        for item in self._items:
            if isinstance(item, str):
                continue
            position += 1
            true, false = (0 if target is None else places[target] - position for target in (item.true, item.false))
            if item.code == _JMP_JA:
                out += struct.pack("=HBBI", item.code, 0, 0, true)
            else:
                out += struct.pack("=HBBI", item.code, true, false, item.operand)
        return bytes(out)


def _low(argument: int) -> int:
    return 16 + 8 * argument  # both processors are little-endian here


def _high(argument: int) -> int:
    return 20 + 8 * argument


class _Filter:
    """One filter in the making."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._out = _Assembler()

    def begin(self) -> None:
        out = self._out
        known, native = out.label(), out.label()
        out.load(_AT_ARCH)
        out.add(_JEQ, AUDIT_ARCH[self._machine], true=known)
        out.give(KILL_PROCESS)
        out.here(known)
        out.load(_AT_NUMBER)
        if self._machine == "x86_64":
            out.add(_JGE, X32_BIT, false=native)
            out.give(ERRNO | errno.ENOSYS)
            out.here(native)
        recent = out.label()
        out.add(_JGT, NEWEST, false=recent)
        out.give(ERRNO | errno.ENOSYS)
        out.here(recent)

    def refuse(self, errors: Mapping[str, int]) -> None:
        """Fails these calls, each with its error. The number is in the accumulator before and after.

        In blocks by number, of which a call skips all but one: the kernel runs the filter once for each call that it
        knows when it is installed, and at each call whose arguments count.
        """
        known = ((number(name, self._machine), error) for name, error in errors.items())
        ordered = sorted((found, error) for found, error in known if found is not None)
        out = self._out
        for block in (ordered[at : at + _BLOCK] for at in range(0, len(ordered), _BLOCK)):
            after = out.label()
            out.add(_JGT, block[-1][0], true=after)
            stops = {error: out.label() for error in sorted({error for _, error in block})}
            for found, error in block:
                out.add(_JEQ, found, true=stops[error])
            out.add(_JMP_JA, 0, true=after)
            for error, stop in stops.items():
                out.here(stop)
                out.give(ERRNO | error)
            out.here(after)

    def when(self, name: str) -> _Case | None:
        """A block for one call; its checks end in an action. None where the machine has no such call."""
        found = number(name, self._machine)
        return None if found is None else _Case(self._out, found)

    def finish(self) -> bytes:
        self._out.give(ALLOW)
        return self._out.assembled()


class _Case:
    """Checks of one call's arguments, in order; falls through to ALLOW."""

    def __init__(self, out: _Assembler, found: int) -> None:
        self._out = out
        self._after = out.label()
        out.add(_JEQ, found, false=self._after)

    def if_any_bit(self, argument: int, bits: int, action: int) -> None:
        on = self._out.label()
        self._out.load(_low(argument))
        self._out.add(_JSET, bits, false=on)
        self._out.give(action)
        self._out.here(on)

    def unless_bit(self, argument: int, bits: int, action: int) -> None:
        on = self._out.label()
        self._out.load(_low(argument))
        self._out.add(_JSET, bits, true=on)
        self._out.give(action)
        self._out.here(on)

    def if_equal(self, argument: int, values: Sequence[int], action: int) -> None:
        stop, on = self._out.label(), self._out.label()
        self._out.load(_low(argument))
        for value in values:
            self._out.add(_JEQ, value, true=stop)
        self._out.add(_JMP_JA, 0, true=on)
        self._out.here(stop)
        self._out.give(action)
        self._out.here(on)

    def unless_equal(self, argument: int, values: Sequence[int], action: int, mask: int = 0xFFFFFFFF) -> None:
        on = self._out.label()
        self._out.load(_low(argument))
        if mask != 0xFFFFFFFF:
            self._out.add(_ALU_AND, mask)
        for value in values:
            self._out.add(_JEQ, value, true=on)
        self._out.give(action)
        self._out.here(on)

    def unless_null(self, argument: int, action: int) -> None:
        stop, on = self._out.label(), self._out.label()
        self._out.load(_high(argument))
        self._out.add(_JEQ, 0, false=stop)
        self._out.load(_low(argument))
        self._out.add(_JEQ, 0, true=on)
        self._out.here(stop)
        self._out.give(action)
        self._out.here(on)

    def end(self) -> None:
        self._out.give(ALLOW)
        self._out.here(self._after)


def program(policy: Policy, machine: str = kernel.MACHINE) -> bytes:
    """The filter as the kernel takes it: 8 bytes an instruction."""
    denied, again = ERRNO | errno.EPERM, ERRNO | errno.EAGAIN
    out = _Filter(machine)
    out.begin()
    errors = {name: errno.EPERM for names in REFUSED.values() for name in names}
    # Their flags are behind a pointer; libraries fall back to clone and openat.
    errors |= dict.fromkeys(("clone3", "openat2"), errno.ENOSYS)
    if not policy.fork:
        errors |= dict.fromkeys(("fork", "vfork"), errno.EAGAIN)
    if not policy.memory_files:
        errors["memfd_create"] = errno.EPERM
    if not policy.execute:
        errors |= dict.fromkeys(("execve", "execveat"), errno.EPERM)
    if policy.only_signal is not None:
        errors["tkill"] = errno.EPERM
    out.refuse(errors)
    if case := out.when("clone"):
        case.if_any_bit(0, _CLONE_NAMESPACES & ~0xFF, denied)  # the lowest byte is the exit signal
        if not policy.fork:
            case.unless_bit(0, _CLONE_THREAD, again)
        case.end()
    for name, argument in (("open", 1), ("openat", 2)):
        if case := out.when(name):
            # A file without a name leaves no trace in its directory, but counts in the numbers that later files get.
            case.if_any_bit(argument, _NAMELESS_FILE, ERRNO | errno.EOPNOTSUPP)
            case.end()
    if case := out.when("ioctl"):
        case.if_equal(1, _TERMINAL_INJECTION, denied)
        case.end()
    if case := out.when("fcntl"):
        case.if_equal(1, _LEASES, denied)
        # Locks on files that every run can read would carry messages between runs. A single process needs none.
        case.if_equal(1, _LOCKS, denied if policy.fork else SUCCEED)
        case.end()
    if case := out.when("prctl"):
        case.if_equal(0, (kernel.PR_SET_PDEATHSIG, kernel.PR_SET_SECCOMP), denied)
        case.end()
    if case := out.when("socketpair"):
        # A datagram pair could be sent to any path or abstract name.
        case.unless_equal(1, (_SOCK_STREAM, _SOCK_SEQPACKET), denied, mask=_SOCK_TYPE_MASK)
        case.end()
    if case := out.when("sendto"):
        case.unless_null(4, denied)
        case.end()
    for name, argument in (("mknod", 1), ("mknodat", 2)):
        if case := out.when(name):
            case.unless_equal(argument, (_S_IFIFO, _S_IFREG, 0), denied, mask=_S_IFMT)
            case.end()
    for name in ("prlimit64", "sched_setaffinity"):
        if case := out.when(name):
            case.unless_equal(0, (0,), denied)
            case.end()
    if case := out.when("setpriority"):
        case.unless_equal(0, (0,), denied)
        case.unless_equal(1, (0,), denied)
        case.end()
    if policy.only_signal is not None:
        for name in ("kill", "tgkill"):
            if case := out.when(name):
                case.unless_equal(0, (policy.only_signal,), denied)
                case.end()
    return out.finish()


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class Prepared:
    """A filter in memory, ready for the kernel: made before a fork, installed after it."""

    def __init__(self, assembled: bytes) -> None:
        self._instructions = ctypes.create_string_buffer(assembled, len(assembled))
        self._program = _Program(len(assembled) // 8, ctypes.cast(self._instructions, ctypes.c_void_p))
        self._address = ctypes.addressof(self._program)

    def install(self) -> None:
        """Filters the calling process and all that it will start. Needs no_new_privs, or CAP_SYS_ADMIN."""
        kernel.prctl(kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, self._address)


def install(assembled: bytes) -> None:
    """Filters the calling process, as `Prepared.install`."""
    Prepared(assembled).install()
