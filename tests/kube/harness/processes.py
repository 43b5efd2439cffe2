"""Processes of the harness: each writes one log, is ended by its pid, and ends when the test run dies.

Owns nothing but what it started.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class NotReady(AssertionError):
    """Something did not come up in time; the message holds the end of its log."""


class Process:
    """One running program."""

    def __init__(self, name: str, command: list[str], log: Path, *, env: dict[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        setpriv = shutil.which("setpriv")  # so that a test run killed with -9 leaves nothing behind
        guard = [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                [*guard, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env
            )

    @property
    def pid(self) -> int:
        """Of the program itself (the guard replaces itself by it)."""
        return self._popen.pid

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._popen.poll()

    def signal(self, number: int) -> None:
        """Sends a signal, if it still runs."""
        if self.code is None:
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int:
        """Its exit code, once it has ended."""
        return self._popen.wait(timeout=timeout_s)

    def kill(self) -> None:
        """Ends it at once."""
        self.signal(signal.SIGKILL)
        self.wait(20)

    def stop(self, grace_s: float = 15.0) -> None:
        """Asks it to end, and insists after `grace_s`."""
        self.signal(signal.SIGTERM)
        try:
            self.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def memory_mb(self) -> float:
        """Resident memory now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def cpu_s(self) -> float:
        """Processor time so far, of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait_until(self, ready: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        """Returns when `ready()` is true; raises NotReady when it ended or took too long.

        One that ended is never ready: on a port that it could not have, another may answer.
        """
        deadline = time.monotonic() + timeout_s
        while not ready() or self.code is not None:
            if self.code is not None:
                raise NotReady(f"{self.name} ended with {self.code} before {what}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise NotReady(f"{self.name}: {what} took more than {timeout_s:.0f} s\n{self.tail()}")
            time.sleep(0.05)


def eventually(probe: Callable[[], T], what: str, *, timeout_s: float = 60.0, every_s: float = 0.1) -> T:
    """The first true answer of `probe`; after `timeout_s` an AssertionError that names `what` and the last answer.

    `probe` may raise AssertionError to say why not yet.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            answer = probe()
            reason = repr(answer)
        except AssertionError as error:
            answer, reason = None, str(error)  # type: ignore[assignment]
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s; last: {reason}")
        time.sleep(every_s)
