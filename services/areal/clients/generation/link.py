"""One client's stream to one generation agent, shared by all its requests.

Owns the stream, its reconnection, and the coalescing of what is sent: everything asked for in one turn of the event
loop travels in one message. It never decides where a request goes. A lost stream ends its requests with ENGINE_LOST.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import grpc

from areal.net.channel import connect, raise_if_cancelled
from areal.v1 import generation_pb2 as wire
from areal.v1 import generation_pb2_grpc as wire_grpc

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1  # an agent that restarts in place is back within seconds
MAX_BACKOFF_S = 2.0
MAX_STARTS = 256  # of one message: keeps the longest prompts under the message limit


class Sink(Protocol):
    """Receives what a server streams for one request."""

    def on_delta(self, request_id: str, delta: wire.GenerateDelta) -> None: ...

    def on_end(self, request_id: str, end: wire.GenerateEnd) -> None: ...


class _Outbox:
    """What waits to be sent on one stream. It ends with its stream: nothing of it may reach, or wait for, another."""

    def __init__(self) -> None:
        self.starts: list[wire.GenerateStart] = []
        self.cancels: list[wire.GenerateCancel] = []
        self.floors: list[wire.FloorChange] = []
        self.pending = asyncio.Event()
        self.closed = False

    def close(self) -> None:
        self.closed = True
        self.pending.set()

    async def messages(self) -> AsyncIterator[wire.GenerateCall]:
        while True:
            await self.pending.wait()
            await asyncio.sleep(0)  # let the other requests of this turn join
            if self.closed:
                return
            starts, self.starts = self.starts[:MAX_STARTS], self.starts[MAX_STARTS:]
            cancels, self.cancels = self.cancels, []
            floors, self.floors = self.floors, []
            if not self.starts:
                self.pending.clear()
            yield wire.GenerateCall(starts=starts, cancels=cancels, floors=floors)


class AgentLink:
    """Starts connecting when made. `on_change` is called whenever `connected` changes."""

    def __init__(self, server_id: str, address: str, token: str, on_change: Callable[[], None]) -> None:
        self.server_id = server_id
        self.address = address
        self.connected = False
        self.last_event = time.monotonic()
        self._token = token
        self._on_change = on_change
        self._sinks: dict[str, Sink] = {}
        self._outbox = _Outbox()
        self._closing = asyncio.Event()
        self._call: grpc.aio.StreamStreamCall[wire.GenerateCall, wire.GenerateReply] | None = None
        self._task = asyncio.create_task(self._run(), name=f"link to {server_id}")

    @property
    def running(self) -> int:
        """Requests of this client at the agent."""
        return len(self._sinks)

    def start(self, start: wire.GenerateStart, sink: Sink) -> None:
        """Send a request; its events go to `sink` until its end."""
        if not self._sinks:
            self.last_event = time.monotonic()
        self._sinks[start.request_id] = sink
        self._outbox.starts.append(start)
        self._outbox.pending.set()

    def cancel(self, request_id: str) -> None:
        """Forget a request and tell the agent."""
        if self._sinks.pop(request_id, None) is not None:
            self._outbox.cancels.append(wire.GenerateCancel(request_id=request_id))
            self._outbox.pending.set()

    def change_floor(self, request_id: str, floor: int) -> None:
        """Tell the agent a request's new floor."""
        self._outbox.floors.append(wire.FloorChange(request_id=request_id, floor=floor))
        self._outbox.pending.set()

    def abandon(self, why: str) -> None:
        """End the stream: its requests go elsewhere, and a new one is tried."""
        log.warning("leaving the stream to %s: %s", self.server_id, why)
        if self._call is not None:
            self._call.cancel()
        self._lose(why)

    async def close(self) -> None:
        """End the stream for good."""
        self._closing.set()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._lose("closed")

    async def _run(self) -> None:
        backoff = FIRST_BACKOFF_S
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                await self._stream()
                why = "the agent ended the stream"
            except grpc.RpcError as error:
                why = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else "lost"
            except asyncio.CancelledError:
                if self._closing.is_set():
                    raise
                raise_if_cancelled()
                why = "abandoned"  # grpc raises this too when the call alone was cancelled
            self._lose(why)
            backoff = FIRST_BACKOFF_S if time.monotonic() - began > MAX_BACKOFF_S else min(2 * backoff, MAX_BACKOFF_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff):  # wait_for may swallow a cancellation
                    await self._closing.wait()

    async def _stream(self) -> None:
        async with connect(self.address, self._token) as channel:
            await channel.channel_ready()
            call = self._call = wire_grpc.GenerationStub(channel).Generate(self._outbox.messages())
            self.connected = True
            self.last_event = time.monotonic()
            self._on_change()
            async for reply in call:
                self.last_event = time.monotonic()
                for event in reply.events:
                    self._dispatch(event)

    def _dispatch(self, event: wire.GenerateEvent) -> None:
        sink = self._sinks.get(event.request_id)
        if sink is None:  # cancelled meanwhile
            return
        if event.WhichOneof("event") == "delta":
            sink.on_delta(event.request_id, event.delta)
        else:
            del self._sinks[event.request_id]
            sink.on_end(event.request_id, event.end)

    def _lose(self, why: str) -> None:
        was_connected, self.connected = self.connected, False
        self._call = None
        self._outbox.close()
        self._outbox = _Outbox()
        sinks, self._sinks = self._sinks, {}
        if sinks:
            log.warning("the stream to %s ended with %d requests: %s", self.server_id, len(sinks), why)
        if was_connected:
            self._on_change()
        lost = wire.GenerateEnd(reason=wire.END_REASON_ENGINE_LOST)
        for request_id, sink in sinks.items():
            sink.on_end(request_id, lost)
