"""A zygote: a warm interpreter that forks cells. `main` is what the service starts.

It begins with an empty environment, imports what cells need, moves into namespaces and the private root that all its
cells will share, finds out how this machine does each step, and then serves until the service closes its line. It never
sees a source, an input or an expected value: orders pass through it as descriptors.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import signal
import site
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn

from areal_judge.sandbox.cell import messages, program, scratch
from areal_judge.sandbox.cell.cell_table import CellTable
from areal_judge.sandbox.cell.confinement import Confinement, seal_ipc
from areal_judge.sandbox.cell.means import Means
from areal_judge.sandbox.cell.warm_up import warm_up
from areal_judge.sandbox.kernel import calls as kernel
from areal_judge.sandbox.kernel import landlock, mounts
from areal_judge.sandbox.kernel.cgroups import Groups
from areal_judge.sandbox.values import Layers

FATAL = 119
_MORE_NAMESPACES = (kernel.CLONE_NEWIPC, kernel.CLONE_NEWUTS, kernel.CLONE_NEWNET, kernel.CLONE_NEWCGROUP)
_IMPORTED_EARLY = ("bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "json",
                   "itertools", "linecache", "math", "operator", "random", "re", "string", "traceback",
                   "typing")  # fmt: skip


def main(descriptor: int) -> NoReturn:
    """Serves on this descriptor, a SOCK_SEQPACKET socket whose first message is the configuration."""
    link = socket.socket(fileno=descriptor)
    link.set_inheritable(False)
    try:
        config, given = messages.receive(link, 16)
        assert config is not None
        _serve(link, config, given)
    except BaseException:
        with contextlib.suppress(OSError):
            messages.send(link, {"event": "fatal", "message": traceback.format_exc(limit=-6)})
        os._exit(FATAL)


def _serve(link: socket.socket, config: dict[str, Any], groups_given: list[int]) -> NoReturn:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != config["parent"]:
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its end is the service's to decide
    os.setsid()
    layers = Layers(**config["layers"])
    sys.path += config["import_paths"]
    for module in (*_IMPORTED_EARLY, *config["drivers"], *config["preload"]):
        importlib.import_module(module)
    site.setquit()
    site.sethelper()
    sys.path[:] = [path for path in sys.path if path not in config["hidden_paths"]]
    mapped, tasks = _mapped_bytes(), _tasks_of_user()
    # Descriptors and the ruleset of the machine's own paths come first: the private root hides them.
    capabilities = kernel.capabilities()
    may_setuid = bool(capabilities >> kernel.CAP_SETUID & 1) and os.geteuid() == 0
    wanted = bool(config["namespaces"]) and layers.namespaces
    in_user_namespace = wanted and not capabilities >> kernel.CAP_SYS_ADMIN & 1
    if wanted:
        _enter_namespaces(in_user_namespace, layers)
    abi = landlock.abi()
    rules = None
    if not wanted or not layers.private_root:
        own = may_setuid and not in_user_namespace and _reachable_by_others(mounts.interpreter_paths())
        rules = _rules_without_private_root(config, abi) if abi and not wanted else None
    else:
        own = not in_user_namespace
    proc = wanted and _try(mounts.mount_proc)
    if wanted and layers.private_root:
        mounts.enter_private_root(config["readable"], 0 if own else os.getuid(), proc=proc)
    means = Means(
        namespaces=wanted,
        own_user=own and may_setuid,
        proc=proc,
        more_namespaces=sum(flag for flag in _MORE_NAMESPACES if wanted and _try(partial(kernel.unshare, flag))),
        count_inodes=wanted and _try(_inodes_counted),
        return_to_pid_namespace=wanted and _try(_pid_namespace_returns),
        user_namespace=in_user_namespace,
        own_tasks=in_user_namespace and proc and _try(_tasks_counted_apart),
        bounding=_try(kernel.give_up_bounding, mounts_apart=False),
        sealed_ipc=proc and _try(_ipc_sealed),
        shows_changes=wanted and _try(partial(scratch.shows_every_change, "/tmp")),
        landlock_abi=abi,
        limits=_settable_limits(),
    )
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    _silence()
    groups = Groups.given(config["groups"], groups_given) if layers.cgroup else Groups.none()
    confinement = Confinement(means, layers, bool(groups))
    confinement.begin()
    program.prepare(mounts.box(layers.private_root) if wanted else "/", clean=layers.environment)
    warm_up()
    gc.collect()
    gc.freeze()  # cells share these pages
    cells = CellTable(link, means, layers, confinement, rules, groups, config["first_uid"], config["spares"])
    rss = kernel.peak_resident_bytes()
    ready = {"event": "ready", "means": asdict(means), "rss": rss, "address_space": mapped, "tasks": tasks}
    messages.send(link, ready)
    cells.serve()
    os._exit(0)


def _enter_namespaces(in_user_namespace: bool, layers: Layers) -> None:
    """Moves this process into its own namespaces; the pid namespace needs a fork, in whose child this returns."""
    flags = kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    if layers.network:
        flags |= kernel.CLONE_NEWNET
    if in_user_namespace:
        kernel.enter_user_namespace(flags)
    else:
        kernel.unshare(flags)
    child = os.fork()
    if child:
        _stand_by(child)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)


def _stand_by(child: int) -> NoReturn:
    """The process outside the pid namespace: it ends with the zygote, and the zygote with it."""
    kernel.close_from(3)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _try(act: Callable[[], Any], *, mounts_apart: bool = True) -> bool:
    """Whether the act works, tried in a child; with `mounts_apart` one that has a mount namespace to lose."""
    child = os.fork()
    if child == 0:
        try:
            if mounts_apart:
                kernel.unshare(kernel.CLONE_NEWNS)
            act()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return status == 0


def _settable_limits() -> tuple[int, ...]:
    """Kinds of rlimits that this kernel lets a process set at all."""
    found = []
    for kind in {value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, resource.getrlimit(kind))
            found.append(kind)
    return tuple(sorted(found))


def _inodes_counted() -> None:
    kernel.mount("tmpfs", "/tmp", "tmpfs", 0, "nr_inodes=16")


def _ipc_sealed() -> None:
    kernel.unshare(kernel.CLONE_NEWIPC)
    mounts.mount_proc()
    seal_ipc()


def _pid_namespace_returns() -> None:
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    for _ in range(2):
        kernel.unshare(kernel.CLONE_NEWPID)
        child = os.fork()
        if child == 0:
            os._exit(0)
        kernel.setns(own, kernel.CLONE_NEWPID)
        os.waitpid(child, 0)


def _mapped_bytes() -> int:
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
    return 128 << 20


def _tasks_counted_apart() -> None:
    """Raises OSError unless a limit of two tasks lets this process, in a user namespace of its own, have one child."""
    kernel.enter_user_namespace()
    kernel.drop_capabilities()
    resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
    children = [_waiting_child()]
    try:
        children.append(_waiting_child())
    except BlockingIOError:
        return
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    raise OSError("a task above the limit was let through")


def _waiting_child() -> int:
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    return child


def _tasks_of_user() -> int:
    """Processes and threads that this user has, as far as /proc shows them."""
    found = 0
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                    found += len(os.listdir(f"/proc/{name}/task"))
    return found


def _reachable_by_others(paths: tuple[str, ...]) -> bool:
    """Whether another user could still import the standard library."""
    for path in paths:
        while path != "/":
            with contextlib.suppress(OSError):
                if not os.stat(path).st_mode & 0o001:
                    return False
            path = os.path.dirname(path)
    return True


def _rules_without_private_root(config: dict[str, Any], abi: int) -> int:
    paths = (*mounts.library_paths(), *config["readable"])
    rules = [landlock.PathRule(path, landlock.READ) for path in paths]
    rules += [landlock.PathRule(f"/dev/{name}", landlock.READ_FILE) for name in ("zero", "full", "random", "urandom")]
    rules.append(landlock.PathRule("/dev/null", landlock.READ_FILE | landlock.WRITE_FILE))
    return landlock.ruleset(rules, abi)


def _silence() -> None:
    """From here on nothing is printed: what went wrong is a message."""
    nothing = os.open("/dev/null", os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    os.close(nothing)
