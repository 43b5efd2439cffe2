"""Process 1 of a cell: starts the program, waits for it, ends everything else, brings back the files to keep.

It has the run's user and no capability, can't be traced (not dumpable), and reads the program's files only when
nothing of the program is alive any more, never through a link.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import time
from collections.abc import Iterable
from typing import Any, NoReturn

from areal.reward.sandbox import messages

_CHUNK_BYTES = 1 << 16


def fork_program(control: int, entry: int, box: str) -> None:
    """Forks the program's process, in which this returns. The caller becomes its warden and never comes back."""
    child = os.fork()
    if child == 0:
        os.setsid()
        return
    try:
        _watch(socket.socket(fileno=control), entry, child, box)
    finally:
        os._exit(1)


def _watch(control: socket.socket, entry: int, child: int, box: str) -> NoReturn:
    with contextlib.suppress(ProcessLookupError):
        os.close(entry)
    stopping: list[int] = []

    def stop(number: int, frame: object) -> None:
        stopping.append(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGTERM, stop)
    cpu_s, rss = 0.0, 0
    while True:
        pid, status, usage = os.wait4(-1, 0)
        cpu_s += usage.ru_utime + usage.ru_stime
        rss = max(rss, usage.ru_maxrss << 10)
        if pid == child:
            break
    ended = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    others = 0
    with contextlib.suppress(ChildProcessError):
        while True:
            _, _, usage = os.wait4(-1, 0)
            others += 1
            cpu_s += usage.ru_utime + usage.ru_stime
            rss = max(rss, usage.ru_maxrss << 10)
    report: dict[str, Any] = {"status": status, "cpu_s": cpu_s, "rss": rss, "ended": ended, "full": _full(box)}
    control.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        order, given = messages.receive(control, 1)
        if order is not None and given:
            with contextlib.suppress(OSError):  # nothing that a program left behind may cost its verdict
                bring_back(given[0], order["keep"], order["bytes"])
            os.close(given[0])
    messages.send(control, report)
    os._exit(0)


def _full(box: str) -> bool:
    """Whether the scratch has no room, or no names, left."""
    with contextlib.suppress(OSError):
        room = os.statvfs(box)
        return (room.f_blocks > 0 and room.f_bavail == 0) or (room.f_files > 0 and room.f_favail == 0)
    return False


def bring_back(pipe: int, paths: Iterable[str], limit_bytes: int) -> None:
    """Writes each regular file of the working directory that fits: a JSON line with path and size, then the bytes."""
    left = limit_bytes
    for path in paths:
        try:
            descriptor = _open_without_links(path)
        except OSError:
            continue
        try:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode) and found.st_size <= left:
                left -= found.st_size
                _write_all(pipe, json.dumps({"path": path, "size": found.st_size}).encode() + b"\n")
                remaining = found.st_size
                while remaining and (chunk := os.read(descriptor, min(_CHUNK_BYTES, remaining))):
                    _write_all(pipe, chunk)
                    remaining -= len(chunk)
        finally:
            os.close(descriptor)


def _write_all(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


def _open_without_links(path: str) -> int:
    """Opens a path below the working directory, refusing a link at any step."""
    *directories, name = path.split("/")
    at = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for directory in directories:
            below = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(name, flags, dir_fd=at)
    finally:
        os.close(at)
