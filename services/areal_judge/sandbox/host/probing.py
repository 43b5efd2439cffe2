"""Probes of this machine: attempts what each isolation mechanism forbids, and reports what held.

Owns the asking: a fresh interpreter without the service's threads, memory and environment forks one child an act, all
at once, and prints what they saw. `acts` does, `tiers` decides. Needs no privilege, and leaves nothing behind.
"""

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from areal.errors import InfraError

from areal_judge.sandbox.host import acts
from areal_judge.sandbox.host.acts import NotHeld, Outside
from areal_judge.sandbox.host.delegation import cell_group, find
from areal_judge.sandbox.kernel import calls as kernel
from areal_judge.sandbox.kernel.cgroups import CellGroup
from areal_judge.sandbox.values import Powers, Tier, TierProbe

# ---- Acts that try a cgroup's bounds: memory above them ends a process, one task more is refused


_MEMORY_BYTES = 48 << 20
_TASKS = 2


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
    with cell_group(delegation, label) as group:
        group.limit(_MEMORY_BYTES, _TASKS)
        yield group, delegation.version


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


# ---- Probes of this machine: attempts what each isolation mechanism forbids, and reports what held


KERNEL_VARIABLE = "AREAL_SANDBOX_KERNEL"
"""Kata's kernel is a Linux like any other; nothing tells it from a machine's. Who chose the RuntimeClass says so."""

_ACT_S = 3.0  # they take milliseconds; a machine that is overloaded may be slow
_INTERPRETER_S = 20.0
_SHMCTL = {"x86_64": 31, "aarch64": 195}
_IPC_CREAT = 0o1000
_IPC_RMID = 0

ACTS: Mapping[str, acts.Act] = {
    "seccomp": acts.filter_of_calls,
    "landlock_files": acts.files_outside,
    "landlock_signals": acts.signals_by_landlock,
    "landlock_sockets": acts.abstract_sockets_by_landlock,
    "signals_by_filter": acts.signals_by_filter,
    "root_namespaces": acts.root_namespaces,
    "user_namespace": acts.user_namespace,
    "pid_namespace": acts.own_processes,
    "private_root": acts.private_root,
    "quota_bytes": acts.quota_of_bytes,
    "quota_inodes": acts.quota_of_inodes,
    "ipc_namespace": acts.own_ipc,
    "network_namespace": acts.own_network,
    "own_proc": acts.own_proc,
    "other_user": acts.other_user,
    "cgroup_memory": memory_of_group,
    "cgroup_processes": tasks_of_group,
    "rlimit_memory": acts.limit_of_memory,
    "rlimit_file_size": acts.limit_of_file_size,
    "rlimit_open_files": acts.limit_of_open_files,
    "rlimit_cpu": acts.limit_of_processor_time,
    "rlimit_processes": acts.limit_of_processes,
    "gvisor": acts.kernel_of_gvisor,
}
"""Every probe, by the name that tiers, results and health use."""


def probe(highest: Tier = Tier.T4, allow_unsafe: bool = False) -> Powers:
    """What this machine offers, at most `highest`.

    Without `allow_unsafe`, powers of T0 run nothing at all. Raises InfraError when the probes themselves can't run.
    """
    from areal_judge.sandbox.host import tiers  # reads its table with PyYAML, which the interpreter that asks hasn't

    probes = _ask_elsewhere()
    kernel_name = _kernel(probes)
    probes.append(_own_kernel(kernel_name))
    return tiers.decide(probes, kernel_name, highest, allow_unsafe)


def _kernel(probes: list[TierProbe]) -> str:
    if any(probe.name == "gvisor" and probe.held for probe in probes):
        return "gvisor"
    return "kata" if os.environ.get(KERNEL_VARIABLE) == "kata" else "host"


def _own_kernel(name: str) -> TierProbe:
    details = {
        "gvisor": "gVisor, by its behaviour",
        "kata": f"Kata, by the declaration {KERNEL_VARIABLE}=kata",
        "host": "the kernel is the machine's, as far as can be seen",
    }
    return TierProbe("own_kernel", name != "host", details[name])


def _ask_elsewhere() -> list[TierProbe]:
    root = str(Path(__file__).resolve().parents[3])
    code = f"import sys; sys.path.insert(0, {root!r}); from areal_judge.sandbox.host import probing; probing.main()"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.DEVNULL, capture_output=True, env={}, cwd="/", timeout=_INTERPRETER_S,
            start_new_session=True, check=True,
        )  # fmt: skip
        return [TierProbe(**one) for one in json.loads(done.stdout)]
    except subprocess.CalledProcessError as error:
        raise InfraError(f"the probes of the sandbox failed: {error.stderr.decode(errors='replace')[-500:]}") from error
    except subprocess.TimeoutExpired as error:
        raise InfraError(f"the probes of the sandbox took longer than {_INTERPRETER_S:g} s") from error


def main() -> None:
    """Asks everything and prints the answers as JSON; the process should be fresh."""
    with _outside() as outside:
        print(json.dumps([{"name": one.name, "held": one.held, "detail": one.detail} for one in ask(outside)]))


def ask(outside: acts.Outside, questions: Mapping[str, acts.Act] = ACTS) -> list[TierProbe]:
    """Every act in a child of its own, all at once; one that doesn't answer in time didn't hold."""
    waiting: dict[int, tuple[str, int]] = {}
    answers: dict[str, TierProbe] = {}
    for name, act in questions.items():
        descriptor, pid = _started(act, outside)
        waiting[descriptor] = (name, pid)
    until = time.monotonic() + _ACT_S
    heard: dict[int, bytes] = dict.fromkeys(waiting, b"")
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [], max(0.0, until - time.monotonic()))
        for descriptor in ready or list(waiting):
            if ready and (chunk := os.read(descriptor, 4096)):
                heard[descriptor] += chunk
                continue
            name, pid = waiting.pop(descriptor)
            answers[name] = _answer(name, pid, heard[descriptor], in_time=bool(ready))
            os.close(descriptor)
    return [answers[name] for name in questions]


def _started(act: acts.Act, outside: acts.Outside) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    held, detail = False, ""
    try:
        os.setpgid(0, 0)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.set_inheritable(writer, False)
        detail = act(outside)
        held = True
    except BaseException as error:
        detail = str(error) or type(error).__name__
    finally:
        with contextlib.suppress(OSError):
            os.write(writer, json.dumps([held, detail[:300]]).encode())
        os._exit(0)


def _answer(name: str, pid: int, said: bytes, *, in_time: bool) -> TierProbe:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not in_time:
        return TierProbe(name, False, f"no answer in {_ACT_S:g} s")
    try:
        held, detail = json.loads(said)
        return TierProbe(name, bool(held), str(detail))
    except ValueError:
        return TierProbe(name, False, f"ended without an answer ({os.waitstatus_to_exitcode(status)})")


@contextlib.contextmanager
def _outside() -> Iterator[acts.Outside]:
    """Things to reach for: listening sockets, a segment of shared memory, a file."""
    name = f"areal-probe-{os.getpid()}-{os.urandom(4).hex()}"
    key = int.from_bytes(os.urandom(3), "big") + 1
    segment = _shared_memory(key)
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as abstract:
        port = 0
        with contextlib.suppress(OSError):
            tcp.bind(("127.0.0.1", 0))
            tcp.listen(8)
            port = tcp.getsockname()[1]
        with contextlib.suppress(OSError):
            abstract.bind("\0" + name)
            abstract.listen(8)
        try:
            yield acts.Outside(os.getpid(), name, port, key, os.path.realpath(os.__file__))
        finally:
            if segment >= 0:
                kernel.libc.syscall(ctypes.c_long(_SHMCTL[kernel.MACHINE]), segment, _IPC_RMID, 0)


def _shared_memory(key: int) -> int:
    if not kernel.supported():
        return -1
    number = ctypes.c_long(acts.SHMGET[kernel.MACHINE])
    return int(kernel.libc.syscall(number, key, ctypes.c_long(4096), _IPC_CREAT | 0o666))
