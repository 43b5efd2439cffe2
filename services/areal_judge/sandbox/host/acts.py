"""The forbidden acts of the probes: each applies a mechanism to its own process and then attempts what it forbids.

Every act is a function that runs in a process of its own and may ruin it. It returns what it saw when the mechanism
held, and raises `NotHeld` or OSError when it didn't. "Present" proves nothing: a kernel may accept a filter, a limit or
a namespace and then not enforce it.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from areal_judge.sandbox.kernel import calls as kernel
from areal_judge.sandbox.kernel import landlock, seccomp

ELSEWHERE_UID = 200000
_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWNET
STAGES = ("/mnt", "/media", "/srv", "/opt", "/tmp")
SHMGET = {"x86_64": 29, "aarch64": 194}
_SYS_PTRACE = {"x86_64": 101, "aarch64": 117}
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_SYS_SYSLOG = {"x86_64": 103, "aarch64": 116}
_SYSLOG_READ_ALL = 3
_GVISOR_FIRST_LINE = b"Starting gVisor..."


class NotHeld(Exception):
    """The forbidden act succeeded, or the mechanism can't be had."""


@dataclass(frozen=True)
class Outside:
    """What acts try to reach: things of the process that asks, made before it forks."""

    pid: int  # the asking process
    abstract_name: str  # a listening abstract socket
    port: int  # a listening TCP socket on loopback
    shared_memory_key: int  # of a System V segment
    file: str  # a file that the asking process can read


Act = Callable[[Outside], str]


def refused(act: Callable[[], object], *expected: int, what: str) -> None:
    """Raises NotHeld unless `act` fails with one of the expected errors."""
    try:
        act()
    except OSError as error:
        if error.errno in expected:
            return
        raise NotHeld(f"{what}: {os.strerror(error.errno or 0)}") from error
    raise NotHeld(f"{what} succeeded")


def _no_new_privileges() -> None:
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)


def raw(number: int, *arguments: int) -> int:
    result = int(kernel.libc.syscall(ctypes.c_long(number), *(ctypes.c_long(value) for value in arguments)))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}")
    return result


def _fork_once() -> None:
    """One process more, which is gone at once."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _in_child(act: Callable[[], None]) -> None:
    """Runs `act` in a child; raises what it raised, as NotHeld."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        code = 1
        try:
            act()
            code = 0
        except BaseException as error:
            os.write(writer, str(error).encode()[:500])
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as words:
        said = words.read().decode()
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise NotHeld(said or f"ended with {code}")


# --- filters ---------------------------------------------------------------------------------------------------------


def _name_recipient(descriptor: int, pid: int) -> None:
    """Names the process that the kernel signals when the descriptor becomes ready."""
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, pid)


def filter_of_calls(outside: Outside) -> str:
    socket.socket().close()  # what is forbidden below works now
    own = os.memfd_create("probe")
    _name_recipient(own, outside.pid)
    _name_recipient(own, 0)
    os.fchmod(own, 0o600)
    os.utime(own)
    _no_new_privileges()
    seccomp.install(seccomp.program(seccomp.Policy()))
    refused(socket.socket, errno.EPERM, what="socket")
    refused(_fork_once, errno.EAGAIN, what="fork")
    refused(lambda: os.execv("/bin/true", ["true"]), errno.EPERM, what="exec")
    refused(lambda: raw(_SYS_PTRACE[kernel.MACHINE], 0, 0, 0, 0), errno.EPERM, what="ptrace")
    refused(lambda: kernel.unshare(kernel.CLONE_NEWUSER), errno.EPERM, what="unshare")
    refused(lambda: _name_recipient(own, outside.pid), errno.EPERM, what="naming a process that the kernel signals")
    refused(lambda: os.fchmod(own, 0o600), errno.EPERM, what="a change of mode")
    refused(lambda: os.utime(own), errno.EPERM, what="a change of times")
    return "socket, fork, exec, ptrace, unshare, recipients of signals and changes of metadata were refused"


def files_outside(outside: Outside) -> str:
    os.close(os.open(outside.file, os.O_RDONLY))
    version = landlock.abi()
    if not version:
        raise NotHeld("the kernel has no Landlock")
    rules = landlock.ruleset([landlock.PathRule("/dev/null", landlock.READ_FILE)], version)
    _no_new_privileges()
    landlock.restrict(rules)
    os.close(os.open("/dev/null", os.O_RDONLY))
    refused(lambda: os.open(outside.file, os.O_RDONLY), errno.EACCES, what=f"opening {outside.file}")
    return f"a file outside could not be opened; ABI {version}"


def _scoped() -> None:
    version = landlock.abi()
    if version < landlock.SCOPES_FROM:
        raise NotHeld(f"Landlock's ABI is {version}; it scopes from {landlock.SCOPES_FROM} on")
    rules = landlock.ruleset([], version)
    _no_new_privileges()
    landlock.restrict(rules)


def signals_by_landlock(outside: Outside) -> str:
    os.kill(outside.pid, 0)
    _scoped()
    refused(lambda: os.kill(outside.pid, 0), errno.EPERM, what="a signal to a process outside")
    return "a signal to a process outside was refused"


def abstract_sockets_by_landlock(outside: Outside) -> str:
    with socket.socket(socket.AF_UNIX) as before:
        before.connect("\0" + outside.abstract_name)
    _scoped()
    with socket.socket(socket.AF_UNIX) as after:
        refused(lambda: after.connect("\0" + outside.abstract_name), errno.EPERM, what="an abstract socket outside")
    return "an abstract socket outside could not be reached"


def signals_by_filter(outside: Outside) -> str:
    os.kill(outside.pid, 0)
    _no_new_privileges()
    seccomp.install(seccomp.program(seccomp.Policy(only_signal=os.getpid())))
    refused(lambda: os.kill(outside.pid, 0), errno.EPERM, what="a signal to a process outside")
    os.kill(os.getpid(), 0)
    return "a signal to another process was refused"


# --- namespaces ------------------------------------------------------------------------------------------------------


def root_namespaces(outside: Outside) -> str:
    if os.getuid() != 0:
        raise NotHeld(f"uid {os.getuid()} is not root")
    kernel.unshare(_NAMESPACES)
    return "made as root"


def user_namespace(outside: Outside) -> str:
    if os.getuid() == 0:
        os.setresuid(ELSEWHERE_UID, ELSEWHERE_UID, ELSEWHERE_UID)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # its own /proc is root's otherwise
    _enter_user_namespace(_NAMESPACES)
    if os.getuid() != 0:
        raise NotHeld("the user map did not apply")
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    return "made through a user namespace, by an ordinary user"


def _enter_user_namespace(more: int) -> None:
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(kernel.CLONE_NEWUSER | more)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _enter(flags: int) -> str:
    """New namespaces, as root or else through a user namespace; which way it was."""
    if os.getuid() == 0:
        with contextlib.suppress(OSError):
            kernel.unshare(flags)
            return "as root"
    _enter_user_namespace(flags)
    return "through a user namespace"


def own_processes(outside: Outside) -> str:
    """Nothing outside can be signalled, and whatever leaves the session dies with the first process."""
    way = _enter(kernel.CLONE_NEWPID)
    alive_reader, alive_writer = os.pipe()

    def first() -> None:
        if os.getpid() != 1:
            raise NotHeld(f"the first process is number {os.getpid()}")
        refused(lambda: os.kill(outside.pid, 0), errno.ESRCH, what="a signal to a process outside")
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:  # the daemon: holds the pipe until it dies
                os.close(alive_reader)
                signal.pause()
            os._exit(0)
        os.wait()

    _in_child(first)
    os.close(alive_writer)
    if os.read(alive_reader, 1):
        raise NotHeld("a daemon outlived its namespace")
    return f"no process outside could be signalled, and a daemon died with its namespace; {way}"


def private_root(outside: Outside) -> str:
    way = _enter(kernel.CLONE_NEWNS)
    os.close(os.open(outside.file, os.O_RDONLY))
    _tmpfs_root("size=64k")
    refused(lambda: os.open(outside.file, os.O_RDONLY), errno.ENOENT, what=f"opening {outside.file}")
    refused(lambda: os.open("/new", os.O_CREAT | os.O_WRONLY), errno.EROFS, what="writing to the root")
    refused(lambda: os.open("..", os.O_PATH | os.O_NOFOLLOW) and os.open("../etc", os.O_PATH), errno.ENOENT,
             what="leaving the root")  # fmt: skip
    return f"nothing of the machine was left; {way}"


def _tmpfs_root(options: str) -> str:
    """Pivots into an empty read-only tmpfs that has an empty /scratch mounted with these options."""
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    stage = next(path for path in STAGES if os.path.isdir(path))
    kernel.mount("tmpfs", stage, "tmpfs", 0, "size=64k")
    os.mkdir(f"{stage}/scratch")
    os.mkdir(f"{stage}/old")
    kernel.mount("tmpfs", f"{stage}/scratch", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    os.chdir(stage)
    kernel.pivot_root(".", "old")
    os.chdir("/")
    kernel.umount("/old")
    kernel.mount("none", "/", flags=kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY)
    return "/scratch"


def quota_of_bytes(outside: Outside) -> str:
    way = _enter(kernel.CLONE_NEWNS)
    scratch = _tmpfs_root("size=64k")
    with open(f"{scratch}/small", "wb", buffering=0) as file:
        file.write(bytes(16 << 10))

        def fill() -> None:
            for _ in range(64):
                if file.write(bytes(16 << 10)) == 0:
                    break

        refused(fill, errno.ENOSPC, what="filling a quota of 64 kB with 1 MB")
    return f"a full quota refused more; {way}"


def quota_of_inodes(outside: Outside) -> str:
    way = _enter(kernel.CLONE_NEWNS)
    scratch = _tmpfs_root("size=1m,nr_inodes=16")

    def fill() -> None:
        for number in range(64):
            os.close(os.open(f"{scratch}/{number}", os.O_CREAT | os.O_WRONLY))

    refused(fill, errno.ENOSPC, what="64 files in a quota of 16")
    return f"a full quota refused more files; {way}"


def own_ipc(outside: Outside) -> str:
    number = SHMGET[kernel.MACHINE]
    raw(number, outside.shared_memory_key, 4096, 0)
    way = _enter(kernel.CLONE_NEWIPC)
    refused(lambda: raw(number, outside.shared_memory_key, 4096, 0), errno.ENOENT, what="shared memory outside")
    return f"shared memory outside could not be found; {way}"


def own_network(outside: Outside) -> str:
    with socket.create_connection(("127.0.0.1", outside.port), timeout=1):
        pass
    way = _enter(kernel.CLONE_NEWNET)
    refused(
        lambda: socket.create_connection(("127.0.0.1", outside.port), timeout=1).close(),
        errno.ENETUNREACH, errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EHOSTUNREACH, what="a service on loopback",
    )  # fmt: skip
    with socket.socket(socket.AF_UNIX) as abstract:
        refused(
            lambda: abstract.connect("\0" + outside.abstract_name),
            errno.ECONNREFUSED,
            what="an abstract socket outside",
        )
    return f"no service on loopback and no abstract socket could be reached; {way}"


def own_proc(outside: Outside) -> str:
    way = _enter(kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)

    def mounted() -> None:
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        if seen := [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]:
            raise NotHeld(f"processes {seen[:3]} are seen")

    _in_child(mounted)
    return f"/proc shows no process outside; {way}"


def other_user(outside: Outside) -> str:
    uid = ELSEWHERE_UID
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    refused(lambda: os.setresuid(0, 0, 0), errno.EPERM, what="becoming root again")
    refused(lambda: os.kill(outside.pid, 0), errno.EPERM, what="a signal to a process of another user")
    return "a user of its own could not go back, and could signal nobody"


# --- limits ----------------------------------------------------------------------------------------------------------


def _limit(name: int, value: int) -> None:
    resource.setrlimit(name, (value, value))


def limit_of_memory(outside: Outside) -> str:
    _limit(resource.RLIMIT_AS, 512 << 20)
    mmap.mmap(-1, 1 << 20).close()
    refused(lambda: mmap.mmap(-1, 1 << 30), errno.ENOMEM, what="1 GB where 512 MB are allowed")
    return "memory above the limit was refused"


def limit_of_file_size(outside: Outside) -> str:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _limit(resource.RLIMIT_FSIZE, 4096)
    file = os.memfd_create("probe")
    os.write(file, bytes(4096))
    refused(lambda: os.write(file, b"x"), errno.EFBIG, what="a file of 4097 bytes where 4096 are allowed")
    return "a file could not grow above the limit"


def limit_of_open_files(outside: Outside) -> str:
    _limit(resource.RLIMIT_NOFILE, 32)
    refused(lambda: [os.dup(2) for _ in range(64)], errno.EMFILE, what="64 descriptors where 32 are allowed")
    return "descriptors above the limit were refused"


def limit_of_processor_time(outside: Outside) -> str:
    """Read back only: its least value is a second, which `selftest` burns instead."""
    _limit(resource.RLIMIT_CPU, 1)
    if resource.getrlimit(resource.RLIMIT_CPU) != (1, 1):
        raise NotHeld("the limit did not stay")
    refused(lambda: _raise_again(resource.RLIMIT_CPU), errno.EPERM, what="raising the limit again")
    return "the limit stays; the self-test runs into it"


def _raise_again(name: int) -> None:
    kernel.drop_capabilities()
    try:
        resource.setrlimit(name, (60, 60))
    except ValueError as error:  # what Python makes of EPERM
        raise OSError(errno.EPERM, str(error)) from error


def limit_of_processes(outside: Outside) -> str:
    """Counts per user, so only a user of its own makes it a bound; root is never bound."""
    if os.getuid() == 0:
        os.setresuid(ELSEWHERE_UID, ELSEWHERE_UID, ELSEWHERE_UID)
    _limit(resource.RLIMIT_NPROC, 1)
    refused(_fork_once, errno.EAGAIN, what="a second process where one is allowed")
    return "a process above the limit was refused"


def kernel_of_gvisor(outside: Outside) -> str:
    """Whether gVisor's kernel answers instead of Linux.

    Two behaviours that no Linux has, both without privilege, and both have to be there. Its system log begins with a
    line of its own, and the first is the oldest: Linux's begins otherwise, and only root can write to it. And it
    answers perf_event_open with ENODEV before it looks at the arguments, where Linux says EFAULT for a null pointer. A
    container's filter that hides one of them makes this say no: too low a tier, never too high. Version strings are
    no evidence: gVisor lets its operator choose them.
    """
    buffer = ctypes.create_string_buffer(4096)
    length = raw(_SYS_SYSLOG[kernel.MACHINE], _SYSLOG_READ_ALL, ctypes.addressof(buffer), len(buffer))
    first = buffer.raw[:length].partition(b"\n")[0]
    if not first.endswith(_GVISOR_FIRST_LINE):
        raise NotHeld("the system log is Linux's")
    refused(lambda: raw(_SYS_PERF_EVENT_OPEN[kernel.MACHINE], 0, 0, -1, -1, 0), errno.ENODEV, what="perf_event_open")
    return "gVisor answers: its own system log, and no perf events"
