"""Child interpreter, seen from the worker: one process that runs an agent or environments in another Python.

Owns the process: starts it, starts it again when it has died, and ends it. What was under way in a process that died
is an InfraError, so that the episode is tried again. Safe to use from any event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from areal.errors import ArealError, ConfigError, DataError, InfraError

SERVE = Path(__file__).with_name("serve.py")
ADAPTERS = Path(__file__).parent.parent / "environments"
OURS = "AREAL_"  # variables of the platform, which no user code needs
_ENDS_S = 5.0  # a process whose input has ended exits at once


@dataclass(frozen=True)
class Target:
    """What a child runs: an `agent` of the recipe, or an `environment` by name."""

    kind: str
    name: str
    python: str
    recipe: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


class ChildProcess:
    """One process and what waits for its answers."""

    def __init__(self, target: Target) -> None:
        settings = {
            "kind": target.kind, "name": target.name, "recipe": target.recipe, "adapters": str(ADAPTERS),
            "config": dict(target.config),
        }  # fmt: skip
        env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        try:
            self._child = subprocess.Popen(
                [target.python, "-I", str(SERVE), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                f"{target.python} can't be started: {error}", fix="name a Python that is there"
            ) from error
        self.pid = self._child.pid
        self.alive = True
        self._lock = threading.Lock()
        self._numbers = count()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = {}
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            self.end()
            raise DataError(
                f"the process of {target.kind} {target.name} ended with {self._child.returncode} before it was ready",
                fix="see what it wrote to the worker's log",
            )
        said = json.loads(line)
        if "error" in said:
            self.end()
            raise _raised(said["error"])
        self.calls_policy = bool(said["value"]["calls_policy"])  # an environment that plays its episodes itself
        threading.Thread(target=self._read, daemon=True).start()

    async def call(self, do: str, **asked: Any) -> Any:
        """One call. Raises InfraError when the process ends meanwhile, or has ended."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        number = next(self._numbers)
        with self._lock:
            if not self.alive:
                raise InfraError(f"process {self.pid} has ended", fix="")
            self._waiting[number] = (loop, future)
        self._tell({"number": number, "do": do, **asked})
        try:
            return await future
        except asyncio.CancelledError:
            self._tell({"number": number, "do": "cancel"})
            raise
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def _tell(self, line: Mapping[str, Any]) -> None:
        """Send a line; a process that is gone is found out by `_read`."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError, ValueError), self._lock:
            self._child.stdin.write(json.dumps(line) + "\n")
            self._child.stdin.flush()

    def end(self) -> None:
        """Close its input, which ends it, or kill it."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            said = json.loads(line)
            with self._lock:
                waiting = self._waiting.pop(said["number"], None)
            if waiting is not None:
                _give(*waiting, said)
        code = self._child.wait()
        with self._lock:
            self.alive = False
            left, self._waiting = list(self._waiting.values()), {}
        for loop, future in left:
            _give(loop, future, {"error": {"kind": "infra", "message": f"its process ended with {code}", "fix": ""}})


def _give(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], said: Mapping[str, Any]) -> None:
    def settle() -> None:
        if future.done():
            return
        if "error" in said:
            future.set_exception(_raised(said["error"]))
        else:
            future.set_result(said["value"])

    with contextlib.suppress(RuntimeError):  # its loop has ended
        loop.call_soon_threadsafe(settle)


def _raised(error: Mapping[str, str]) -> ArealError:
    kind = {"infra": InfraError, "config": ConfigError}.get(error["kind"], DataError)
    where = error.get("traceback", "")
    return kind("\n".join(part for part in (error["message"], where) if part), fix=error["fix"])


class ChildInterpreter:
    """Calls of one target. `start` raises at once what is wrong with it; it is started again when it dies."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._process: ChildProcess | None = None

    def start(self) -> ChildInterpreter:
        """Make sure that a process is there. Blocks while it imports. Raises ConfigError, DataError."""
        self._running()
        return self

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        return self._process.pid if self._process else None

    async def process(self) -> ChildProcess:
        """The process that runs now: environments live in the one that made them."""
        return await asyncio.to_thread(self._running)

    def end(self) -> None:
        """End the process."""
        with self._lock:
            if self._process is not None:
                self._process.end()
                self._process = None

    def _running(self) -> ChildProcess:
        with self._lock:
            if self._process is None or not self._process.alive:
                self._process = ChildProcess(self._target)
            return self._process
