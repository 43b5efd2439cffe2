"""One child process as the service sees it: start, send a batch, receive results, ask what it works on, kill.

Owns the process (whatever user code starts dies with it), the socket and the shared area. It decides
nothing: who is to blame for a death is `pool`'s business.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from areal.errors import DataError, InfraError
from areal.processes.family import Command, Family
from areal.reward.scorer_pool import frames

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_REAP_S = 10.0  # after SIGKILL; longer means a process stuck in the kernel


@dataclass(frozen=True)
class ScorerCommand:
    """What to start: the module of a scorer, and the arguments of its `make_judge`."""

    scorer: str  # for example areal.reward.scorers.math
    arguments: Sequence[str] = ()
    memory_bytes: int = 0  # address space it may add after its start; 0 is no limit
    environment: dict[str, str] = field(default_factory=dict)
    preloaded: bool = False  # forked from a process that has imported everything; see `fork_server`
    confined: bool = False  # gives up what judging doesn't need; see `areal_judge`. For preloaded ones

    @property
    def name(self) -> str:
        """The scorer in messages."""
        return self.scorer.rpartition(".")[2]


class Process(Protocol):
    """What a child runs in."""

    @property
    def pid(self) -> int: ...

    @property
    def ended(self) -> bool: ...

    async def wait(self) -> int: ...

    def kill(self) -> None:
        """Ends it and everything it started. No error when it is gone."""


class Starter(Protocol):
    """Makes the children of one command."""

    async def start_child(self, timeout_s: float) -> Child:
        """A ready child. Raises DataError when none can ever work, InfraError when it died or wasn't ready in time."""

    async def stop(self) -> None:
        """Ends what it keeps for that."""


class _ScorerLink(asyncio.Protocol):
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
    """A running child. A `Starter` makes them."""

    def __init__(self, process: Process, link: _ScorerLink, area: frames.ProgressArea) -> None:
        self._process = process
        self._link = link
        self._area = area
        self._rss_at_start = 0
        self._scorer_pid = process.pid
        self.items_sent = 0
        self.lacking: tuple[str, ...] = ()  # layers of its confinement that this machine refuses

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._process.ended and not (self._link.transport is None or self._link.transport.is_closing())

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

    def grown_bytes(self) -> int:
        """By how much its resident memory has grown since it was ready."""
        return self._rss() - self._rss_at_start

    def is_ready(self, lacking: Sequence[str], scorer_pid: int) -> None:
        """It has said so."""
        self.lacking = tuple(lacking)
        self._scorer_pid = scorer_pid
        self._rss_at_start = self._rss()

    def _rss(self) -> int:
        try:
            return int(Path(f"/proc/{self._scorer_pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError):
            return 0  # it has ended

    async def kill(self) -> str:
        """Ends the child and everything it started; says how the process ended."""
        self._process.kill()
        return await self.gone()

    async def gone(self) -> str:
        """Waits for the end of a process that is ending; says how it ended."""
        try:
            code = await asyncio.wait_for(self._process.wait(), _REAP_S)
        except TimeoutError:
            self._process.kill()
            code = None
        if self._link.transport is not None:
            self._link.transport.abort()
        self._area.close()
        if code is None:
            return "did not end"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class Spawner:
    """Starts each child as a new interpreter."""

    def __init__(self, command: ScorerCommand) -> None:
        self._command = command

    async def start_child(self, timeout_s: float) -> Child:
        """As `Starter` says."""
        ours, theirs = socket.socketpair()
        descriptor = frames.create()
        command = self._command
        argv = [sys.executable, "-m", "areal.reward.scorer_pool.process_main", command.scorer, *command.arguments,
                "--socket", str(theirs.fileno()), "--current", str(descriptor),
                "--memory-bytes", str(command.memory_bytes)]  # fmt: skip
        env = {**os.environ, "OMP_NUM_THREADS": "1", **command.environment}
        try:
            process = Family.start(
                Command(command.name, argv, env, descriptors=(theirs.fileno(), descriptor)), output=2
            )
            area = frames.ProgressArea(descriptor)
        finally:
            theirs.close()
            os.close(descriptor)
        return await join(command, process, ours, area, timeout_s)

    async def stop(self) -> None:
        """It keeps nothing."""


async def join(
    command: ScorerCommand, process: Process, ours: socket.socket, area: frames.ProgressArea, timeout_s: float
) -> Child:
    """The child at the other end of `ours`, once it says that it is ready. Raises as `Starter` says."""
    ours.setblocking(False)
    _, link = await asyncio.get_running_loop().create_connection(_ScorerLink, sock=ours)
    child = Child(process, link, area)
    try:
        hello = await child.receive(timeout_s)
    except TimeoutError:
        await child.kill()
        raise InfraError(
            f"a {command.name} scorer was not ready after {timeout_s:g} s", fix="look for slow imports in the recipe"
        ) from None
    except asyncio.CancelledError:
        await child.kill()
        raise
    if isinstance(hello, dict) and hello.get("ready"):
        child.is_ready(hello.get("lacking", ()), hello.get("pid", child.pid))
        return child
    how = await child.kill()
    if isinstance(hello, dict) and "failed" in hello:
        raise DataError(str(hello["failed"]), fix=str(hello.get("fix", "")))
    raise InfraError(f"a {command.name} scorer died at its start ({how})", fix="its log lines say why")
