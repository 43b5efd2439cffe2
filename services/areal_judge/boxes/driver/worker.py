"""A long-lived process that is handed commands one at a time: what a box's shell and its interpreter have in common.

Commands go in by a pipe, reports come out by another, standard output and errors by a third. A report says that a
command is over, whatever it left in the background; the end of the report pipe says that the process itself is.
"""

from __future__ import annotations

import os
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from areal_judge.boxes.driver import processes

REPORTS = 3  # the descriptor under which the process finds its report pipe
_CHUNK_BYTES = 1 << 16
_REPORT_BYTES = 4 << 20  # longer is no report
_GRACE_S = 1.0  # after an interruption, before everything is ended
_END_S = 5.0


CodeOf = Callable[[bytes], int | None]


@dataclass(frozen=True)
class CommandDone:
    """How a command ended."""

    ending: str  # exited | signaled | time_limit
    code: int
    state_lost: bool


class UnendableCommand(Exception):
    """What a command started can't be ended: the box must."""


@dataclass
class _Pipes:
    commands: int
    reports: int
    output: int

    def close(self) -> None:
        for descriptor in (self.commands, self.reports, self.output):
            os.close(descriptor)


class CommandWorker(ABC):
    """Starts its process at the first command, and a new one after that has ended."""

    def __init__(self) -> None:
        self.pid = 0
        self._pipes: _Pipes | None = None

    @abstractmethod
    def become(self) -> NoReturn:
        """In the new process: descriptor 0 has the commands, REPORTS takes the reports."""

    @abstractmethod
    def encoded(self, source: str, *, fresh: bool) -> bytes:
        """A command as the process reads it; `fresh` when the process has just been started."""

    @abstractmethod
    def code_of(self, report: bytes) -> int | None:
        """The exit code in a report; None while it isn't whole."""

    def interrupt(self) -> bool:
        """Asks a running command to stop; False when there is no such way."""
        return False

    def run(self, source: str, timeout_s: float, output: HeadAndTail, spared: frozenset[int]) -> CommandDone:
        """Runs a command. Past its time, everything but the spared processes ends. Raises Stuck."""
        fresh = self._pipes is None
        pipes = self._start() if self._pipes is None else self._pipes
        until = time.monotonic() + timeout_s
        try:
            report = _converse(pipes, self.encoded(source, fresh=fresh), until, output, self.code_of)
        except TimeoutError:
            return self._overdue(pipes, output, spared)
        if report is not None:
            return CommandDone("exited", report, False)
        return self._gone(output, spared)

    def _start(self) -> _Pipes:
        commands, reports, output = os.pipe(), os.pipe(), os.pipe()
        given = {0: commands[0], 1: output[1], 2: output[1], REPORTS: reports[1]}
        try:
            self.pid = processes.spawn(given, self.become)
        finally:
            for descriptor in set(given.values()):
                os.close(descriptor)
        self._pipes = _Pipes(commands[1], reports[0], output[0])
        for descriptor in (commands[1], reports[0], output[0]):
            os.set_blocking(descriptor, False)
        return self._pipes

    def _overdue(self, pipes: _Pipes, output: HeadAndTail, spared: frozenset[int]) -> CommandDone:
        if self.interrupt():
            try:
                if _converse(pipes, b"", time.monotonic() + _GRACE_S, output, self.code_of) is not None:
                    return CommandDone("time_limit", 0, False)
            except TimeoutError:
                pass
        self._end(output, spared)
        return CommandDone("time_limit", 0, True)

    def _gone(self, output: HeadAndTail, spared: frozenset[int]) -> CommandDone:
        """The process ended by itself, or was killed, or gave up its report pipe. What it left behind goes, too."""
        status = processes.wait(self.pid, time.monotonic() + _GRACE_S)
        self._end(output, spared)
        code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGKILL
        return CommandDone("exited", code, True) if code >= 0 else CommandDone("signaled", -code, True)

    def _end(self, output: HeadAndTail, spared: frozenset[int]) -> None:
        assert self._pipes is not None
        ended = processes.end_all_but(spared, self.pid)
        if not ended or processes.wait(self.pid, time.monotonic() + _END_S) is None:
            raise UnendableCommand
        _drain(self._pipes.output, output)
        self._pipes.close()
        self._pipes, self.pid = None, 0


def _converse(pipes: _Pipes, command: bytes, until: float, output: HeadAndTail, code_of: CodeOf) -> int | None:
    """Gives the command and reads until its report: the code; None when the process is over. Raises TimeoutError."""
    left, report = memoryview(command), bytearray()
    poller = select.poll()
    poller.register(pipes.reports, select.POLLIN)
    poller.register(pipes.output, select.POLLIN)
    if left:
        poller.register(pipes.commands, select.POLLOUT)
    while True:
        patience_s = until - time.monotonic()
        if patience_s <= 0:
            raise TimeoutError
        for descriptor, _ in poller.poll(patience_s * 1000 + 1):
            if descriptor == pipes.output:
                if not _take(descriptor, output):
                    poller.unregister(descriptor)
            elif descriptor == pipes.commands:
                left = _give(descriptor, left)
                if not left:
                    poller.unregister(descriptor)
            else:
                data = os.read(descriptor, _CHUNK_BYTES)
                report += data
                code = code_of(bytes(report)) if data else None
                if code is not None:
                    _drain(pipes.output, output)
                    return code
                if not data or len(report) > _REPORT_BYTES:
                    return None


def _give(descriptor: int, left: memoryview) -> memoryview:
    try:
        return left[os.write(descriptor, left[:_CHUNK_BYTES]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]  # the report pipe tells


def _take(descriptor: int, output: HeadAndTail) -> int:
    """What there is of output now, at most a chunk; 0 at its end."""
    data = os.read(descriptor, _CHUNK_BYTES)
    output.add(data)
    return len(data)


def _drain(descriptor: int, output: HeadAndTail) -> None:
    """What a pipe holds; no more, for something in the background may go on writing."""
    for _ in range(32):
        try:
            if not _take(descriptor, output):
                return
        except BlockingIOError:
            return


class HeadAndTail:
    """Bounded buffer for a command's output: its first and last `most_bytes / 2` stay, the middle is left out."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._head_bytes = (most_bytes + 1) // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.left_out = 0

    def add(self, data: bytes) -> None:
        """What came next."""
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        over = len(self._tail) - (self._most - self._head_bytes)
        if over > 0:
            del self._tail[:over]
            self.left_out += over

    def bytes(self) -> bytes:
        """All that was kept; a line says where something was left out."""
        gap = f"\n[… {self.left_out} bytes left out …]\n".encode() if self.left_out else b""
        return bytes(self._head) + gap + bytes(self._tail)
