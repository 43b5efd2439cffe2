"""What a forked child does to become a cell, in the order that makes each step hold against the next.

cgroup → session → descriptors → namespaces → mounts → user → capabilities → no_new_privs → (the warden forks here) →
rlimits → Landlock → seccomp → ready. A step that fails ends the child with status 120 and a message; the run's code is
then never reached.

With namespaces the child is process 1 of the cell and stays as its *warden*: it holds the run's user but is in none of
its filters, waits for the program, ends everything else, brings kept files back. Without, it is the program itself.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from dataclasses import dataclass
from typing import Any, NoReturn

from areal.reward.sandbox import kernel, landlock, messages, mounts, seccomp
from areal.reward.sandbox.messages import Shape
from areal.reward.sandbox.values import Layers

SETUP_FAILED = 120
_CONTROL, _ENTRY, _RULES, _FIRST_FREE = 3, 4, 5, 6
_PARKED = 200  # above whatever a zygote has open


@dataclass(frozen=True)
class Means:
    """How this machine does each step. Found once by a zygote, in the place where its cells will be."""

    namespaces: bool = False  # of mounts and processes at least
    more_namespaces: int = 0  # flags of those that a cell gets beside these
    own_user: bool = False  # a uid a slot
    proc: bool = False  # a fresh /proc can be mounted
    count_inodes: bool = False  # tmpfs knows nr_inodes
    return_to_pid_namespace: bool = False  # setns back after a fork; otherwise a shim forks twice
    user_namespace: bool = False  # made by an ordinary user: no other uid, capabilities only inside
    own_tasks: bool = False  # in a user namespace of its own, a cell's tasks are counted apart from its neighbours'
    bounding: bool = False  # CAP_SETPCAP: capabilities can be given up for good
    landlock_abi: int = 0
    limits: tuple[int, ...] = ()  # kinds of rlimits that can be set
    seccomp: bool = True


@dataclass(frozen=True)
class Place:
    """One cell to make."""

    shape: Shape
    uid: int
    means: Means
    layers: Layers
    rules: int | None  # a ruleset made ahead, where all cells share one
    join: tuple[int, ...]  # descriptors of the cgroups' process lists
    filters: dict[tuple[bool, bool], bytes]  # by (fork, execute)
    keep_open: frozenset[int] = frozenset()


class SetupError(Exception):
    """A step that failed."""


def _arrange_descriptors(place: Place, control: socket.socket, entry: socket.socket) -> None:
    """Control, entry and ruleset become 3, 4, 5; with the layer on, nothing else stays."""
    sources = [control.detach(), entry.detach(), place.rules]
    for index, source in enumerate(sources):
        if source is not None:
            os.dup2(source, _PARKED + index, inheritable=False)
    for index, source in enumerate(sources):
        if source is not None:
            os.dup2(_PARKED + index, _CONTROL + index, inheritable=False)
    if place.layers.descriptors:
        kernel.close_from(_FIRST_FREE)


def _unshare(place: Place) -> None:
    flags = kernel.CLONE_NEWNS | place.means.more_namespaces
    if not place.layers.network:
        flags &= ~kernel.CLONE_NEWNET
    kernel.unshare(flags)


def _mount(place: Place) -> str:
    shape, means = place.shape, place.means
    options = mounts.tmpfs_options(
        shape.disk_bytes, shape.inodes, quotas=place.layers.quotas, count_inodes=means.count_inodes
    )
    owner = (place.uid, place.uid) if means.own_user and place.layers.user else (os.geteuid(), os.getegid())
    box = mounts.make_scratch(options, owner, execute=shape.execute, private_root=place.layers.private_root)
    if means.proc:
        mounts.mount_proc()
    return box


def _become_user(place: Place) -> None:
    means = place.means
    if not (place.layers.user or means.user_namespace):
        return
    if means.bounding:
        kernel.give_up_bounding()
    if means.own_user and place.layers.user:
        os.setgroups([])
        os.setresgid(place.uid, place.uid, place.uid)
        os.setresuid(place.uid, place.uid, place.uid)
    if means.own_tasks:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # its own /proc is root's otherwise
        kernel.enter_user_namespace()
    if place.layers.no_new_privileges:
        kernel.drop_capabilities()  # otherwise the filters still need them


def _rules_of_private_root(place: Place, box: str) -> int:
    abi = place.means.landlock_abi
    everywhere = landlock.READ | (landlock.EXECUTE if place.shape.execute else 0)
    write = landlock.writing(abi) | (landlock.EXECUTE if place.shape.execute else 0)
    devices = landlock.READ_FILE | landlock.WRITE_FILE
    rules = [landlock.Rule("/", everywhere), *(landlock.Rule(path, write) for path in (box, "/tmp", "/dev/shm"))]
    rules += [landlock.Rule(f"/dev/{name}", devices) for name in ("null", "zero", "full")]
    return landlock.ruleset(rules, abi)


def _fixed_limits(place: Place) -> None:
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO):
        if kind in place.means.limits:
            resource.setrlimit(kind, (0, 0))


def _filters(place: Place, box: str) -> None:
    """The last steps, on the process that will run the code."""
    if place.layers.rlimits:
        _fixed_limits(place)
    if place.layers.landlock and place.means.landlock_abi:
        rules = _RULES if place.rules is not None else _rules_of_private_root(place, box)
        landlock.restrict(rules)
        os.close(rules)
    if place.layers.seccomp and place.means.seccomp:
        shape = place.shape
        assembled = place.filters[shape.fork, shape.execute]
        if 0 < place.means.landlock_abi < landlock.SCOPES_FROM and not place.means.namespaces:
            assembled = seccomp.program(seccomp.Policy(shape.fork, shape.execute, bool(place.join), os.getpid()))
        seccomp.install(assembled)
    if place.layers.user and not place.layers.no_new_privileges:
        kernel.drop_capabilities()


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def become(place: Place, control: socket.socket, entry: socket.socket) -> NoReturn:
    """Turns the calling child into a cell and serves one run. Never returns."""
    step = "modules"
    tell = entry
    try:
        from areal.reward.sandbox import program, warden  # the zygote has them; here for the circle that they close

        step = "cgroup"
        for descriptor in place.join:
            os.write(descriptor, b"0")
        step = "session"
        _default_signals()
        os.setsid()
        step = "descriptors"
        _arrange_descriptors(place, control, entry)
        tell = socket.socket(fileno=_ENTRY)
        inside = place.means.namespaces and place.layers.namespaces
        box = "/"
        if inside:
            step = "namespaces"
            _unshare(place)
            step = "mounts"
            box = _mount(place)
        step = "user"
        os.chdir(box)
        os.umask(0o022)
        _become_user(place)
        step = "no_new_privs"
        if place.layers.no_new_privileges:
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        if inside:
            step = "warden"
            warden.fork_program(_CONTROL, _ENTRY, box)  # returns in the program's process only
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
        os.close(_CONTROL)
        step = "filters"
        if inside:
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # its own /proc/self; nobody else is in this namespace
        _filters(place, box)
        step = "ready"
        messages.send(tell, {"ready": True})
    except BaseException as error:
        _give_up(tell, step, error)
    program.serve(tell, place, box)


def _give_up(tell: socket.socket, step: str, error: BaseException) -> NoReturn:
    failure: dict[str, Any] = {"failed": f"{step}: {type(error).__name__}: {error}"}
    try:
        messages.send(tell, failure)
    finally:
        os._exit(SETUP_FAILED)
