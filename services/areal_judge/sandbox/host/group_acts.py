"""Acts that try a cgroup's bounds: memory above them ends a process, one task more is refused."""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator

from areal_judge.sandbox.host.acts import NotHeld, Outside
from areal_judge.sandbox.host.delegation import find, make_parent, remove_parent
from areal_judge.sandbox.kernel.cgroups import CellGroup, Groups

_MEMORY_BYTES = 48 << 20
_TASKS = 2
_REMOVE_S = 1.0  # version 1 keeps a group busy for a moment after its last process


def memory_of_group(outside: Outside) -> str:
    with _group("memory") as (group, version):
        code = _in_group(group, _eat)
        if code != -signal.SIGKILL:
            raise NotHeld(f"a process took twice its group's memory (it ended with {code})")
        if not group.usage().out_of_memory:
            raise NotHeld("a process was killed, but its group has no word of it")
    return f"a process above its group's memory was killed; cgroup version {version}"


def tasks_of_group(outside: Outside) -> str:
    with _group("tasks") as (group, version):
        if code := _in_group(group, _multiply):
            raise NotHeld(f"more than {_TASKS} processes in a group of {_TASKS}" if code == 1 else f"ended with {code}")
        if not group.usage().out_of_tasks:
            raise NotHeld("a fork was refused, but the group has no word of it")
    return f"a process above its group's number was refused; cgroup version {version}"


@contextlib.contextmanager
def _group(label: str) -> Iterator[tuple[CellGroup, int]]:
    delegation = find()
    if not delegation.version:
        raise NotHeld("no cgroup with memory and pids can be made here")
    parent = make_parent(delegation, label)
    try:
        groups = Groups.opened(delegation.version, parent)
        try:
            group = groups.make("cell")
            try:
                group.limit(_MEMORY_BYTES, _TASKS)
                yield group, delegation.version
            finally:
                until = time.monotonic() + _REMOVE_S
                while not group.close() and time.monotonic() < until:
                    time.sleep(0.002)
        finally:
            groups.close()
    finally:
        remove_parent(parent)


def _in_group(group: CellGroup, act: Callable[[], int]) -> int:
    joins = group.joins()
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            for descriptor in joins:
                os.write(descriptor, b"0")
            code = act()
        finally:
            os._exit(code)
    for descriptor in joins:
        os.close(descriptor)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _eat() -> int:
    held = bytearray(2 * _MEMORY_BYTES)
    held[::4096] = b"x" * len(held[::4096])
    return 0


def _multiply() -> int:
    children = []
    try:
        for _ in range(_TASKS + 1):
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            children.append(pid)
        return 1
    except OSError as error:
        return 0 if error.errno == errno.EAGAIN else 3
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
