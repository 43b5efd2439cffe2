"""Membership of the weight groups: a gRPC service on which servers tell their state and hear their orders.

Owns the newest state of every connected server. Lives on an event loop; threads of the trainer give orders and wait,
with a deadline, for states. A wait that fails names the server.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from areal.errors import InfraError
from areal.net.kept_stream import SILENCE_S
from areal.v1 import weights_pb2 as wire
from areal.v1 import weights_pb2_grpc as rpc

_REPEAT_S = 0.5  # orders are said again: a silent trainer hangs
JOIN = "join"  # the first phase


@dataclass(eq=False)
class _Stream:
    """One server's connection."""

    news: asyncio.Event = field(default_factory=asyncio.Event)
    server: str = ""


@dataclass(frozen=True)
class _ServerSaid:
    stream: _Stream
    state: wire.MemberState
    at: float  # of the clock


class MemberFault(InfraError):
    """A phase of a group failed. `phase` is one of a few words, for metrics; `late`: its deadline passed, no more."""

    def __init__(self, phase: str, message: str, *, late: bool = False) -> None:
        super().__init__(message, fix="this server reads this version from the volume; the next one has a new group")
        self.phase = phase
        self.late = late


class Members(rpc.WeightGroupServicer):
    """The servers that are connected now."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._changed = threading.Condition()
        self._states: dict[str, _ServerSaid] = {}
        self._orders: dict[str, wire.GroupOrders] = {}

    async def Join(
        self, request_iterator: AsyncIterator[wire.MemberState], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[wire.GroupOrders]:
        """One server's stream."""
        stream = _Stream()
        reader = asyncio.create_task(self._read(request_iterator, stream), name="member")
        try:
            await stream.news.wait()  # it says who it is
            while not reader.done():
                stream.news.clear()
                yield self._orders.get(stream.server, wire.GroupOrders())
                with suppress(TimeoutError):
                    async with asyncio.timeout(_REPEAT_S):
                        await stream.news.wait()
        finally:
            reader.cancel()

    async def _read(self, states: AsyncIterator[wire.MemberState], stream: _Stream) -> None:
        try:
            with suppress(grpc.RpcError):
                async for state in states:
                    if not stream.server:
                        stream.server = state.server_id
                        stream.news.set()
                    with self._changed:
                        self._states[stream.server] = _ServerSaid(stream, state, self._clock())
                        self._changed.notify_all()
        finally:
            with self._changed:
                if (said := self._states.get(stream.server)) is not None and said.stream is stream:
                    del self._states[stream.server]
                self._changed.notify_all()
            stream.news.set()

    # ---- of the trainer's threads

    def order(self, server: str, orders: wire.GroupOrders) -> None:
        """Order that a server is told from now on."""

        def tell() -> None:
            self._orders[server] = orders
            if server in self._states:
                self._states[server].stream.news.set()

        self._loop.call_soon_threadsafe(tell)

    def able(self) -> dict[str, wire.MemberState]:
        """Servers that take weights now, by name in order. One that is silent doesn't."""
        now = self._clock()
        with self._changed:
            states = {s: said.state for s, said in self._states.items() if now - said.at < SILENCE_S}
        return {server: state for server, state in sorted(states.items()) if state.able}

    def check(self, group: str, server: str, phase: str) -> None:
        """Raise MemberFault when a server is gone or can't go on with its group."""
        with self._changed:
            self._check(group, server, phase)

    def wait(
        self, phase: str, group: str, server: str, holds: Callable[[wire.MemberState], bool], deadline_s: float
    ) -> None:
        """Wait until `holds` of a server. Raises MemberFault: it failed, or it doesn't hold by the deadline."""
        deadline = time.monotonic() + deadline_s
        with self._changed:
            while True:
                if holds(self._check(group, server, phase)):
                    return
                left = deadline - time.monotonic()
                if left <= 0:
                    words = f"phase {phase} of group {group}: {server} not there after {deadline_s:.0f} s"
                    raise MemberFault(phase, words, late=True)
                self._changed.wait(left)

    def _check(self, group: str, server: str, phase: str) -> wire.MemberState:
        if (said := self._states.get(server)) is None:
            raise MemberFault(phase, f"phase {phase} of group {group}: {server} is gone")
        state = said.state
        if state.failed == group:
            raise MemberFault(phase, f"phase {phase} of group {group}: {server} failed: {state.reason}")
        if not state.able or (phase != JOIN and state.joined != group):
            raise MemberFault(phase, f"phase {phase} of group {group}: {server} has left it")
        return state
