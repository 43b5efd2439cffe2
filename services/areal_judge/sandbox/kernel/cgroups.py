"""Cgroups of cells: memory, tasks and CPU time of all of a run's processes together, on version 1 and version 2.

A zygote makes one group a cell below directories that the service gave it, by descriptor: it no longer sees their
paths (`delegation` has those).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

# Of ended programs, beside the 256 kB that the kernel takes ahead on each processor.
_MOST_LEFT_BYTES = (4 << 20) + (os.cpu_count() or 1) * (256 << 10)


def _write(descriptor: int, name: str, value: str) -> None:
    file = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=descriptor)
    try:
        os.write(file, value.encode())
    finally:
        os.close(file)


class _GroupFiles:
    """Files of a group that are read again and again: each is opened once."""

    def __init__(self) -> None:
        self._opened: dict[str, int] = {}

    def read(self, group: int, name: str) -> bytes:
        file = self._opened.get(name)
        if file is None:
            file = self._opened[name] = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=group)
        return os.pread(file, 65536, 0)

    def counter(self, group: int, name: str, key: bytes) -> int:
        """The number behind this word; 0 where there is none."""
        with contextlib.suppress(OSError, ValueError):
            for line in self.read(group, name).splitlines():
                word, _, value = line.partition(b" ")
                if word == key:
                    return int(value)
        return 0

    def close(self) -> None:
        for file in self._opened.values():
            os.close(file)
        self._opened = {}


@dataclass(frozen=True)
class Usage:
    """What a group has seen."""

    memory_peak_bytes: int | None
    out_of_memory: bool
    out_of_tasks: bool


class _Peak:
    """The most memory since `begin`, where the kernel lets it be counted anew; otherwise only that of a first run."""

    def __init__(self, name: str, files: _GroupFiles) -> None:
        self._name = name
        self._files = files
        self._file = -1
        self._known = True
        self._fresh = True

    def begin(self, group: int) -> None:
        if self._fresh:
            self._fresh = False
            return
        try:
            if self._file < 0:  # stays open: version 2 counts anew for this one reader
                self._file = os.open(self._name, os.O_RDWR | os.O_CLOEXEC, dir_fd=group)
            os.pwrite(self._file, b"0", 0)
        except OSError:
            self._known = False

    def seen(self, group: int) -> int | None:
        if self._known:
            with contextlib.suppress(OSError, ValueError):
                if self._file >= 0:
                    return int(os.pread(self._file, 64, 0))
                return int(self._files.read(group, self._name))
        return None

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class CellGroup:
    """One cell's group, for one run after the other."""

    def __init__(self, version: int, parents: Sequence[int], name: str) -> None:
        self._version = version
        self._parents = parents
        self._name = name
        self._own: list[int] = []
        self._memory_bytes: int | None = None
        self._tasks: int | None = None
        self._killed = self._refused = 0
        self._bare_bytes: int | None = None
        self._files = _GroupFiles()
        self._current = "memory.usage_in_bytes" if version == 1 else "memory.current"
        self._peak = _Peak("memory.max_usage_in_bytes" if version == 1 else "memory.peak", self._files)
        try:
            for parent in parents:
                os.mkdir(name, dir_fd=parent)
                self._own.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent))
        except OSError:
            self.close()
            raise

    def limit(self, memory_bytes: int, tasks: int) -> None:
        """Sets the limits of the next run, and begins to count anew for it."""
        memory, pids = self._own[0], self._own[-1]
        if memory_bytes != self._memory_bytes:
            self._limit_memory(memory, memory_bytes)
            self._memory_bytes = memory_bytes
        if tasks != self._tasks:
            _write(pids, "pids.max", str(tasks))
            self._tasks = tasks
        self._peak.begin(memory)

    def _limit_memory(self, memory: int, memory_bytes: int) -> None:
        bound = (memory, "memory.limit_in_bytes" if self._version == 1 else "memory.max", str(memory_bytes))
        if self._version == 1:
            with_swap = (memory, "memory.memsw.limit_in_bytes", str(memory_bytes))  # never below the other
        else:
            with_swap = (memory, "memory.swap.max", "0")
        if self._version == 1 and self._memory_bytes is not None and memory_bytes > self._memory_bytes:
            bound, with_swap = with_swap, bound
        for order in (bound, with_swap):
            try:
                _write(*order)
            except OSError:  # a kernel without swap accounting has no such file
                if "sw" not in order[1]:
                    raise

    def joins(self) -> list[int]:
        """Descriptors that a process of one thread joins by writing 0.

        On version 1 by its thread: the kernel then takes no lock that every fork and exit of the machine waits for
        (10 ms a join otherwise).
        """
        name = "tasks" if self._version == 1 else "cgroup.procs"
        return [os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=own) for own in self._own]

    def usage(self) -> Usage:
        """What the run since the last `limit` has used."""
        memory, pids = self._own[0], self._own[-1]
        events = "memory.oom_control" if self._version == 1 else "memory.events"
        killed = self._files.counter(memory, events, b"oom_kill")
        refused = self._files.counter(pids, "pids.events", b"max")
        usage = Usage(self._peak.seen(memory), killed > self._killed, refused > self._refused)
        self._killed, self._refused = killed, refused
        return usage

    def cpu_s(self) -> float | None:
        """CPU time of all that was ever in it, ended and unwaited processes too; None where nothing counts it."""
        with contextlib.suppress(OSError, ValueError):
            if self._version == 2:
                return self._files.counter(self._own[0], "cpu.stat", b"usage_usec") / 1e6 or None
            if len(self._own) > 2:
                return int(self._files.read(self._own[1], "cpuacct.usage")) / 1e9
        return None

    def laden(self) -> bool:
        """Whether ended programs left memory in it: files that the kernel holds for nobody, names, a cache.

        Call when all that lives in it is a program that hasn't begun; the first time shows what that takes.
        """
        try:
            held = int(self._files.read(self._own[0], self._current))
        except (OSError, ValueError):
            return False
        if self._bare_bytes is None:
            self._bare_bytes = held
        return held > self._bare_bytes + _MOST_LEFT_BYTES

    def close(self) -> bool:
        """Removes the group; False while a process is still ending in it."""
        for own in self._own:
            os.close(own)
        self._peak.close()
        self._files.close()
        self._own = []
        gone = True
        for parent in self._parents:
            try:
                os.rmdir(self._name, dir_fd=parent)
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
        return gone


class Groups:
    """Parents of cells' groups, as descriptors: memory first, pids last, on version 1 cpuacct between where it is."""

    def __init__(self, version: int, parents: Sequence[int]) -> None:
        self._version = version
        self.parents = tuple(parents)

    @staticmethod
    def none() -> Groups:
        return Groups(0, ())

    @staticmethod
    def given(version: int, parents: Sequence[int]) -> Groups:
        return Groups(version, parents) if version else Groups.none()

    @staticmethod
    def opened(version: int, paths: Sequence[str]) -> Groups:
        return Groups(version, [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in paths])

    def __bool__(self) -> bool:
        return self._version > 0

    def make(self, name: str) -> CellGroup:
        return CellGroup(self._version, self.parents, name)

    def close(self) -> None:
        for parent in self.parents:
            os.close(parent)
        self.parents = ()
