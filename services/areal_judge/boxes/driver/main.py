"""Entry of a box's driver: answers one request after the other until the holder closes its line.

Imported by zygotes ahead of time: the standard library only, beside the sandbox's own system calls.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import stat
import time
from typing import Any, NoReturn

from areal_judge.boxes.driver import processes
from areal_judge.boxes.driver.frames import FrameLine
from areal_judge.boxes.driver.interpreter import Interpreter
from areal_judge.boxes.driver.worker import REPORTS, CommandWorker, HeadAndTail, UnendableCommand

STUCK = 70  # exit code: something goes on making processes
_ARGUMENTS = ["bash", "--noprofile", "--norc", "-s"]
_WORDS = 'builtin printf "%d\\n%s\\0" "$code" "$PWD"; builtin export -p; builtin printf "\\0";'
_DEFINED = f"__report() {{ local code=$?; {{ {_WORDS} }} >&{REPORTS} 2>/dev/null; }}\n"
_REPORT = "__report\n"  # a word of its own: bash reads braces wrongly after a command whose quotes don't close


def main(channel: socket.socket, payload: bytes) -> int:
    """Serves the box."""
    processes.adopt()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    line = FrameLine(channel)
    driver = _BoxDriver()
    while (request := line.receive()) is not None:
        try:
            line.send(*driver.answer(*request))
        except UnendableCommand:
            return STUCK
    return 0


class _BoxDriver:
    """The parts of a box."""

    def __init__(self) -> None:
        self._workers: dict[str, CommandWorker] = {"bash": Shell(), "python": Interpreter()}

    def answer(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """The answer to one request."""
        if head["op"] == "run":
            return self._run(head, body)
        try:
            if head["op"] == "read":
                return {}, _read(head["path"], head["most_bytes"])
            _write(head["path"], body, executable=head["executable"])
            return {}, b""
        except (OSError, ValueError) as error:
            return {"refusal": _words(error)}, b""

    def _run(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        worker = self._workers[head["language"]]
        spared = frozenset(other.pid for other in self._workers.values() if other is not worker and other.pid)
        output = HeadAndTail(head["output_bytes"])
        began = time.monotonic()
        done = worker.run(body.decode("utf-8", "surrogateescape"), head["timeout_s"], output, spared)
        answer = {"ending": done.ending, "code": done.code, "state_lost": done.state_lost,
                  "left_out": output.left_out, "wall_s": time.monotonic() - began}  # fmt: skip
        processes.reap(frozenset(each.pid for each in self._workers.values() if each.pid))
        return answer, output.bytes()


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return f"{os.strerror(error.errno)}: {error.filename or 'the file'}"
    return str(error)


def _read(path: str, most_bytes: int) -> bytes:
    """A regular file, as the box's own user. Raises OSError, with words for the caller."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _regular(descriptor)
        parts, left = [], most_bytes + 1
        while left and (part := os.read(descriptor, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
        if not left:
            raise OSError(f"it is longer than {most_bytes} bytes")
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _write(path: str, data: bytes, *, executable: bool) -> None:
    """Replaces or makes a regular file and the directories above it. Raises OSError."""
    if directory := os.path.dirname(path):
        os.makedirs(directory, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o755 if executable else 0o644)
    try:
        _regular(descriptor)
        os.ftruncate(descriptor, 0)
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        if executable:
            os.fchmod(descriptor, 0o755)
    finally:
        os.close(descriptor)


def _regular(descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError("it is no regular file")


class Shell(CommandWorker):
    """The long-lived bash of a box: working directory, variables, functions and background jobs stay between commands.

    Bash reads from a pipe one `eval` a command, and reports its exit code, its directory and its exported variables. A
    shell that had to be ended is replaced by one that has the directory and the exported variables of the last report.
    """

    def __init__(self) -> None:
        super().__init__()
        self._directory = ""
        self._exports = ""

    def become(self) -> NoReturn:
        """Standard input is the script; a command's own is /dev/null."""
        os.execvpe("bash", _ARGUMENTS, {**os.environ, "TERM": "dumb"})

    def encoded(self, source: str, *, fresh: bool) -> bytes:
        closed = f"</dev/null {REPORTS}>&-"
        before = _DEFINED if fresh else ""
        if fresh and self._directory:
            directory = shlex.quote(self._directory)
            before += f"eval {shlex.quote(self._exports)} 2>/dev/null {closed}\ncd -- {directory} 2>/dev/null\n"
        return f"{before}eval {shlex.quote(source)} {closed}\n{_REPORT}".encode("utf-8", "surrogateescape")

    def code_of(self, report: bytes) -> int | None:
        parts = report.split(b"\0")
        if len(parts) < 3:
            return None
        code, _, directory = parts[0].decode("utf-8", "surrogateescape").partition("\n")
        if not code.isdigit():
            return 255  # something wrote into the pipe
        self._directory, self._exports = directory, parts[1].decode("utf-8", "surrogateescape")
        return int(code)
