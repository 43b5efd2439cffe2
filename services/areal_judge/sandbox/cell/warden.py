"""Process 1 of a cell: forks one program after the other, waits for each, ends everything else, brings back files.

A program starts in what its predecessors can't have changed: a process of its own, an untouched scratch, namespaces
over which no program has a capability. Nothing that they started is alive. The warden is in none of their filters, has
a user that they can't signal where users differ, can't be traced (not dumpable), holds only the capabilities that this
work needs, and reads a program's files as its user, only when nothing of it is alive any more, never through a link.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import stat
import time
from collections.abc import Iterable
from functools import partial
from typing import NoReturn

from areal_judge.sandbox.cell import messages, program
from areal_judge.sandbox.cell.confinement import seal_ipc
from areal_judge.sandbox.cell.messages import CellShape
from areal_judge.sandbox.cell.place import CONTROL, CellPlace
from areal_judge.sandbox.cell.scratch import Scratch, settle
from areal_judge.sandbox.cell.warm_up import announce_ready
from areal_judge.sandbox.kernel import calls as kernel

_CHUNK_BYTES = 1 << 16
_CAPABILITIES = (kernel.CAP_CHOWN, kernel.CAP_KILL, kernel.CAP_SETGID, kernel.CAP_SETUID, kernel.CAP_SYS_ADMIN)


class Warden:
    """The calling process, which is process 1 of new namespaces."""

    def __init__(self, place: CellPlace, entry: socket.socket) -> None:
        self._place = place
        self._entry = entry
        self._control = socket.socket(fileno=CONTROL)
        self._scratch = Scratch(place)
        self._child = 0
        self._last_said = b""
        self._spent_s = time.process_time()  # by this process, up to the last report
        if place.means.sealed_ipc:
            seal_ipc()
        kernel.keep_capabilities(_CAPABILITIES)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        # Of an unhandled signal process 1 hears nothing, and where users don't differ a program may send any.
        kernel.set_signal(signal.SIGINT, kernel.DEFAULT_ACTION)
        signal.signal(signal.SIGTERM, self._stop)
        self._last_pid = _last_pid() if place.means.proc else -1
        gc.freeze()

    def serve(self) -> NoReturn:
        """One program after the other, until the zygote closes its end."""
        shape = self._place.shape
        while True:
            self._scratch.provide(shape)
            if self._last_pid >= 0:
                os.pwrite(self._last_pid, b"1", 0)  # a program is process 2, however many there were
            child = kernel.fork()
            if child == 0:
                self._become_program(shape)
            self._child = child
            report = self._watch(child)
            if shape.keep:
                self._bring_back()
            self._control.send(report)
            del report  # the next program can read what is in these frames
            kernel.collect_sockets()
            self._scratch.renew()
            shape = self._next_shape(shape)

    def _next_shape(self, last: CellShape) -> CellShape:
        said = self._control.recv(messages.DATAGRAM_BYTES)
        if not said:
            os._exit(0)
        if said == self._last_said:
            return last
        self._last_said = said
        return CellShape(*json.loads(said)["make"])

    def _become_program(self, shape: CellShape) -> NoReturn:
        step = "session"
        scratch, entry = self._scratch, self._entry
        try:
            kernel.set_signal(signal.SIGTERM, kernel.DEFAULT_ACTION)
            kernel.set_signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            os.close(CONTROL)
            step = "filters"
            self._place.confinement.hold(self._place.uid, shape, scratch.rules.writable if scratch.rules else None)
            os.chdir(scratch.box)
            step = "ready"
            announce_ready(entry)
        except BaseException as error:
            program.give_up(entry, step, error)
        read_only = scratch.rules.read_only if scratch.rules else None
        program.serve(entry, self._place, read_only, partial(settle, scratch.changed_ns))

    def _stop(self, number: int, frame: object) -> None:
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)

    def _watch(self, child: int) -> bytes:
        """Waits for a program's end and ends whatever it started; how it went, as a message."""
        cpu_s, rss, pid, status = 0.0, 0, 0, 0
        while pid != child:
            pid, status, usage = os.wait4(-1, 0)
            cpu_s += usage.ru_utime + usage.ru_stime
            rss = max(rss, usage.ru_maxrss << 10)
        self._child = 0
        ended = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(-1, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    while True:
                        _, _, usage = os.wait4(-1, 0)
                        cpu_s += usage.ru_utime + usage.ru_stime
                        rss = max(rss, usage.ru_maxrss << 10)
        full = b"true" if self._scratch.review() else b"false"
        spent_s = time.process_time()
        own_s, self._spent_s = spent_s - self._spent_s, spent_s
        seen = (status, cpu_s, rss, ended, full, own_s)
        return b'{"status":%d,"cpu_s":%r,"rss":%d,"ended":%r,"full":%b,"own_s":%r}' % seen

    def _bring_back(self) -> None:
        """Files that the zygote asked for when it gave the run; it speaks of nothing else before the report.

        In a child: what has been read stays in memory, and with this one's the next program begins.
        """
        if not select.select([self._control], [], [], 0)[0]:
            return
        child = kernel.fork()
        if child == 0:
            with contextlib.suppress(BaseException):  # nothing that a program left behind may cost its verdict
                order, given = messages.receive(self._control, 1)
                os.seteuid(self._scratch.owner)
                kernel.drop_capabilities()
                os.chdir(self._scratch.box)
                if order is not None:
                    bring_back(given[0], order["keep"], order["bytes"])
            os._exit(0)
        os.waitpid(child, 0)


def _last_pid() -> int:
    """The number that was last given to a process of this pid namespace, to write; -1 where the kernel doesn't let."""
    try:
        descriptor = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY | os.O_CLOEXEC)
        os.pwrite(descriptor, b"1", 0)
    except OSError:
        return -1
    return descriptor


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
