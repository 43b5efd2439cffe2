"""Maps what a zygote saw of a run to how it ended. Pure."""

import os
import signal
from dataclasses import dataclass

from areal_judge.sandbox.values import Ending, Limits

_NEARLY = 0.95  # of the memory limit: above it, an end by signal is put down to memory where no cgroup counts
_SPENT = 0.6  # of the CPU limit: above it, a SIGKILL that nobody here sent is the kernel's, which counts in ticks
_TAIL_BYTES = 4096
_OUT_OF_MEMORY = (b"MemoryError", b"std::bad_alloc", b"OutOfMemoryError", b"heap out of memory", b"out of memory")
_OUT_OF_ROOM = (b"[Errno 28]", b"No space left on device", b"[Errno 27]", b"File too large")
_OUT_OF_TASKS = (b"can't start new thread", b"Resource temporarily unavailable", b"[Errno 11]")


@dataclass(frozen=True)
class EndEvidence:
    """What is known of an end. Times are seconds."""

    status: int  # as wait gives it
    reason: str  # why it was killed: wall, output, cancel, or nothing
    wall_s: float
    cpu_s: float  # of the program
    cpu_all_s: float  # with the cell's own setup, as the kernel counts it against the limit
    rss_bytes: int
    out_of_memory: bool  # the cgroup killed one of its processes
    tasks_refused: bool
    disk_full: bool
    stderr: bytes


@dataclass(frozen=True)
class Verdict:
    ending: Ending
    exit_code: int | None = None
    signal: int | None = None


def verdict(seen: EndEvidence, limits: Limits) -> Verdict:
    """The first of these that holds: killed by us, out of time, memory, disk or processes; otherwise as it ended.

    A limit on memory, disk or processes is named only for a program that ended badly. Memory: its cgroup killed it; or
    it was killed by a signal above 95 % of its limit; or its last words are those of an allocation that failed. Disk:
    the scratch was full or a write was cut off for its size. Processes: the cgroup refused one, or its last words say
    so.
    """
    code = os.waitstatus_to_exitcode(seen.status)
    ended = Verdict(Ending.EXITED, exit_code=code) if code >= 0 else Verdict(Ending.SIGNALED, signal=-code)
    if seen.reason == "output":
        return Verdict(Ending.OUTPUT_LIMIT)
    if seen.reason == "cancel":
        return Verdict(Ending.CANCELLED)
    killed = seen.reason == "wall"
    if seen.out_of_memory and (killed or code != 0):
        return Verdict(Ending.MEMORY_LIMIT)
    exhausted = ended.signal == signal.SIGKILL and not killed and seen.cpu_all_s >= _SPENT * limits.cpu_s
    if exhausted or ended.signal == signal.SIGXCPU or seen.cpu_s > limits.cpu_s:
        return Verdict(Ending.CPU_LIMIT)
    if killed or seen.wall_s > limits.wall_s:
        return Verdict(Ending.WALL_LIMIT)
    if code == 0:
        return ended
    last = seen.stderr[-_TAIL_BYTES:].rstrip().rpartition(b"\n")[2]
    tail = seen.stderr[-_TAIL_BYTES:]
    heavy = code < 0 and seen.rss_bytes > _NEARLY * limits.memory_bytes
    if heavy or last.startswith(_OUT_OF_MEMORY[:1]) or any(words in tail for words in _OUT_OF_MEMORY[1:]):
        return Verdict(Ending.MEMORY_LIMIT)
    if ended.signal == signal.SIGXFSZ or seen.disk_full or any(words in last for words in _OUT_OF_ROOM):
        return Verdict(Ending.DISK_LIMIT)
    if seen.tasks_refused or any(words in last for words in _OUT_OF_TASKS):
        return Verdict(Ending.PROCESS_LIMIT)
    return ended
