"""The last steps of a program's process, in the order that makes each hold against the next.

ipc → user → capabilities → no_new_privs → Landlock → seccomp. What can be computed is, before the fork: in a forked
interpreter each page that is first touched costs more than most of the calls.
"""

from __future__ import annotations

import os
import resource
import signal

from areal_judge.sandbox.cell.means import Means
from areal_judge.sandbox.cell.messages import CellShape
from areal_judge.sandbox.kernel import calls as kernel
from areal_judge.sandbox.kernel import landlock, seccomp
from areal_judge.sandbox.values import Layers

_NEVER = {
    resource.RLIMIT_CORE: 1,  # 0 doesn't keep the kernel from a handler behind a pipe, 1 does; a file needs more
    resource.RLIMIT_MSGQUEUE: 0,
    resource.RLIMIT_NICE: 0,
    resource.RLIMIT_RTPRIO: 0,
}
_SEALS = {"kernel/shmmni": "0", "kernel/msgmni": "0", "kernel/sem": "0 0 0 0", "fs/mqueue/queues_max": "0"}


def seal_ipc() -> None:
    """Lets the ipc namespace of this process hold no object, of whatever kind. Raises OSError where that can't be."""
    for name, nothing in _SEALS.items():
        with open(f"/proc/sys/{name}", "w", encoding="ascii") as file:
            file.write(nothing)


class Confinement:
    """Holds programs. One serves all cells of a zygote."""

    def __init__(self, means: Means, layers: Layers, memory_files: bool) -> None:
        """`memory_files`: whether memory that no process's limit counts is allowed, since a cgroup counts it."""
        self._means = means
        self._layers = layers
        self._memory_files = memory_files
        self._inside = means.namespaces and layers.namespaces
        policies = [
            seccomp.Policy(fork, execute, metadata=self._inside, memory_files=memory_files)
            for fork in (False, True)
            for execute in (False, True)
        ]
        self._filters = {
            (policy.fork, policy.execute): seccomp.FilterImage(seccomp.program(policy)) for policy in policies
        }

    def begin(self) -> None:
        """What no run changes, for this process and all that it will fork."""
        if self._layers.rlimits:
            for kind, most in _NEVER.items():
                if kind in self._means.limits:
                    hard = resource.getrlimit(kind)[1]
                    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
                    resource.setrlimit(kind, (bound, bound))
        if self._means.bounding and (self._layers.user or self._means.user_namespace):
            kernel.give_up_bounding()

    def hold(self, uid: int, shape: CellShape, rules: int | None) -> None:
        """Holds the calling process, for good. Raises OSError when a step fails."""
        means, layers = self._means, self._layers
        if self._inside and not means.sealed_ipc:
            kernel.unshare(means.more_namespaces & kernel.CLONE_NEWIPC)
        self._become_user(uid)
        if layers.no_new_privileges:
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
        # Its own /proc/self is its own only when dumpable; nobody else is in its pid namespace.
        kernel.prctl(kernel.PR_SET_DUMPABLE, int(self._inside))
        if rules is not None:
            landlock.restrict(rules)
        if layers.seccomp and means.seccomp:
            self._filter(shape)
        if layers.user and not layers.no_new_privileges:
            kernel.drop_capabilities()  # not before: the filters needed them

    def _become_user(self, uid: int) -> None:
        means, layers = self._means, self._layers
        if not (layers.user or means.user_namespace):
            return
        if means.own_user and layers.user:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        if means.own_tasks:
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # its own /proc is root's otherwise
            kernel.enter_user_namespace()
        if layers.no_new_privileges:
            kernel.drop_capabilities()

    def _filter(self, shape: CellShape) -> None:
        if 0 < self._means.landlock_abi < landlock.SCOPES_FROM and not self._means.namespaces:
            only_itself = seccomp.Policy(
                shape.fork, shape.execute, memory_files=self._memory_files, only_signal=os.getpid()
            )
            seccomp.install(seccomp.program(only_itself))
        else:
            self._filters[shape.fork, shape.execute].install()
