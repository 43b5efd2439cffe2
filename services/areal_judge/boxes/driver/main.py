"""Entry of a box's driver: answers one request after the other until the holder closes its line.

Imported by zygotes ahead of time: the standard library only, beside the sandbox's own system calls.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any

from areal_judge.boxes.driver import files, processes
from areal_judge.boxes.driver.frames import FrameLine
from areal_judge.boxes.driver.interpreter import Interpreter
from areal_judge.boxes.driver.output import HeadAndTail
from areal_judge.boxes.driver.shell import Shell
from areal_judge.boxes.driver.worker import CommandWorker, UnendableCommand

STUCK = 70  # exit code: something goes on making processes


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
                return {}, files.read(head["path"], head["most_bytes"])
            files.write(head["path"], body, executable=head["executable"])
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
