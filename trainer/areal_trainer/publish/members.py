"""Membership of the weight group: a gRPC service on which servers tell their state and hear what all of them are told.

Owns the newest state of every connected server. Lives on an event loop; the publishing thread gives orders and waits,
with a deadline, for states. A wait that fails names the server.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from typing import Any

import grpc
from areal.errors import InfraError
from areal.v1 import weights_pb2 as wire
from areal.v1 import weights_pb2_grpc as rpc

_REPEAT_S = 0.5  # orders are said again: a silent trainer hangs
JOIN = "join"  # the first phase
SLICE_S = 0.05  # between two looks at what no message tells


class MemberFault(InfraError):
    """A phase of the group failed. `phase` is one of a few words, for metrics."""

    def __init__(self, phase: str, message: str) -> None:
        super().__init__(message, fix="servers read this version from the volume; the next one has a new group")
        self.phase = phase


class Members(rpc.WeightGroupServicer):
    """The servers that are connected now."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changed = threading.Condition()
        self._states: dict[str, tuple[object, wire.MemberState]] = {}  # with the stream that told it
        self._orders = wire.GroupOrders()
        self._streams: set[asyncio.Event] = set()

    async def Join(
        self, request_iterator: AsyncIterator[wire.MemberState], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[wire.GroupOrders]:
        """One server's stream."""
        news = asyncio.Event()
        reader = asyncio.create_task(self._read(request_iterator, news), name="member")
        self._streams.add(news)
        try:
            while not reader.done():
                news.clear()
                yield self._orders
                with suppress(TimeoutError):
                    async with asyncio.timeout(_REPEAT_S):
                        await news.wait()
        finally:
            self._streams.discard(news)
            reader.cancel()

    async def _read(self, states: AsyncIterator[wire.MemberState], stream: asyncio.Event) -> None:
        server = ""
        try:
            with suppress(grpc.RpcError):
                async for state in states:
                    server = state.server_id
                    with self._changed:
                        self._states[server] = (stream, state)
                        self._changed.notify_all()
        finally:
            with self._changed:
                if self._states.get(server, (None,))[0] is stream:
                    del self._states[server]
                self._changed.notify_all()
            stream.set()

    # ---- of the publishing thread

    def order(self, orders: wire.GroupOrders) -> None:
        """Order that all servers are told from now on."""

        def tell() -> None:
            self._orders = orders
            for stream in self._streams:
                stream.set()

        self._loop.call_soon_threadsafe(tell)

    def able(self) -> dict[str, wire.MemberState]:
        """Servers that take weights now, by name in order."""
        with self._changed:
            found = {server: state for server, (_, state) in self._states.items() if state.able}
        return dict(sorted(found.items()))

    def check(self, group: str, servers: Collection[str], phase: str) -> None:
        """Raise GroupFault naming the first server that is gone or can't go on with the group."""
        with self._changed:
            self._check(group, servers, phase)

    def wait(
        self,
        phase: str,
        group: str,
        servers: Collection[str],
        holds: Callable[[wire.MemberState], bool],
        deadline_s: float,
        *,
        also: Callable[[], bool] = lambda: True,
    ) -> None:
        """Wait until `holds` of every server, and `also`, which is asked again and again.

        Raises GroupFault naming the servers of which it doesn't hold by the deadline, or the one that failed.
        """
        deadline = time.monotonic() + deadline_s
        with self._changed:
            while True:
                self._check(group, servers, phase)
                missing = [server for server in servers if not holds(self._states[server][1])]
                if not missing and also():
                    return
                left = deadline - time.monotonic()
                if left <= 0:
                    who = ", ".join(missing) or "the trainer itself"
                    raise MemberFault(
                        phase, f"phase {phase} of group {group}: {who} not there after {deadline_s:.0f} s"
                    )
                self._changed.wait(min(left, SLICE_S))

    def _check(self, group: str, servers: Collection[str], phase: str) -> None:
        for server in servers:
            if server not in self._states:
                raise MemberFault(phase, f"phase {phase} of group {group}: {server} is gone")
            state = self._states[server][1]
            if state.failed == group:
                raise MemberFault(phase, f"phase {phase} of group {group}: {server} failed: {state.reason}")
            if not state.able or (phase != JOIN and state.joined != group):
                raise MemberFault(phase, f"phase {phase} of group {group}: {server} has left it")
