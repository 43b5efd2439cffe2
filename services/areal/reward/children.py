"""One child process as the service sees it: start, send a batch, receive results, ask what it works on, kill.

Owns the process and its session (whatever user code starts dies with it), the socket and the shared area. It decides
nothing: who is to blame for a death is `pool`'s business.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from areal.errors import DataError, InfraError
from areal.reward import current as shared
from areal.reward import frames

_REAP_S = 10.0  # after SIGKILL; longer means a process stuck in the kernel


@dataclass(frozen=True)
class ChildCommand:
    """What to start: `kind` and arguments of `areal.reward.child`."""

    kind: str
    arguments: Sequence[str] = ()
    memory_bytes: int = 0  # address space it may add after its start; 0 is no limit
    environment: dict[str, str] = field(default_factory=dict)


class _Link(asyncio.Protocol):
    def __init__(self) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()  # None: the child closed its end
        self.transport: asyncio.Transport | None = None
        self._reader = frames.FrameReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self.messages.put_nowait(message)
        except InfraError:
            assert self.transport is not None
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.messages.put_nowait(None)


class Child:
    """A running child. Make one with `start_child`."""

    def __init__(self, process: asyncio.subprocess.Process, link: _Link, area: shared.Current) -> None:
        self._process = process
        self._link = link
        self._area = area
        self.items_sent = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None and not (
            self._link.transport is None or self._link.transport.is_closing()
        )

    def send(self, payloads: Sequence[Any]) -> int:
        """Hands over a batch; returns the number of its first item over the child's life."""
        assert self._link.transport is not None
        first = self.items_sent
        self._link.transport.write(frames.encode(payloads))
        self.items_sent += len(payloads)
        return first

    async def receive(self, timeout_s: float) -> Any:
        """The next message; None when the child closed its end. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            return await self._link.messages.get()

    def working_on(self) -> tuple[int, float]:
        """The item it began last, and when (monotonic)."""
        return self._area.read()

    async def kill(self) -> str:
        """Ends the child and everything it started; says how the process ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return await self.gone()

    async def gone(self) -> str:
        """Waits for the end of a process that is ending; says how it ended."""
        try:
            code = await asyncio.wait_for(self._process.wait(), _REAP_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            code = None
        if self._link.transport is not None:
            self._link.transport.abort()
        self._area.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it left behind in its session
        if code is None:
            return "did not end"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


async def start_child(command: ChildCommand, timeout_s: float) -> Child:
    """Starts a child and waits until it is ready.

    Raises:
        DataError: it says that it can never work (a recipe that fails to import).
        InfraError: it died, or wasn't ready in time.
    """
    ours, theirs = socket.socketpair()
    descriptor = shared.create()
    argv = [sys.executable, "-m", "areal.reward.child", command.kind, *command.arguments,
            "--socket", str(theirs.fileno()), "--current", str(descriptor),
            "--parent", str(os.getpid()), "--memory-bytes", str(command.memory_bytes)]  # fmt: skip
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), descriptor),
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **command.environment},
        )
        area = shared.Current(descriptor)
    finally:
        theirs.close()
        os.close(descriptor)
    ours.setblocking(False)
    _, link = await asyncio.get_running_loop().create_connection(_Link, sock=ours)
    child = Child(process, link, area)
    try:
        hello = await child.receive(timeout_s)
    except TimeoutError:
        await child.kill()
        raise InfraError(
            f"a {command.kind} scorer was not ready after {timeout_s:g} s", fix="look for slow imports in the recipe"
        ) from None
    except asyncio.CancelledError:
        await child.kill()
        raise
    if isinstance(hello, dict) and hello.get("ready"):
        return child
    how = await child.kill()
    if isinstance(hello, dict) and "failed" in hello:
        raise DataError(str(hello["failed"]), fix=str(hello.get("fix", "")))
    raise InfraError(f"a {command.kind} scorer died at its start ({how})", fix="its log lines say why")
