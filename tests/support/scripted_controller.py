"""A rollout controller that a test plays: it records what workers say and sends what it is told to send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import rollout_pb2 as wire
from areal.v1 import rollout_pb2_grpc as wire_grpc
from support.scripted_agent import TOKEN


@dataclass(eq=False)
class ScriptedController(wire_grpc.RolloutServicer):
    """One worker's controller. `streams` holds the messages of each stream it opened."""

    port: int = 0
    fence: int = 1
    streams: list[list[wire.WorkerMessage]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    orders: asyncio.Queue[wire.WorkOrders] = field(default_factory=asyncio.Queue)
    server: GrpcServer | None = None

    async def start(self) -> ScriptedController:
        """Serve, on the same port as before after a `die`."""
        self.server = GrpcServer("controller", TOKEN, waits=WaitRegistry("controller"), progress=ProgressCounter())
        self.server.add(wire_grpc.add_RolloutServicer_to_server, self, "areal.v1.Rollout")
        self.port = await self.server.start(self.port)
        return self

    async def die(self) -> None:
        """End at once: the stream breaks."""
        if self.server is not None:
            await self.server.stop(0)
            self.server = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def messages(self) -> list[wire.WorkerMessage]:
        """All messages of all streams."""
        return [message for stream in self.streams for message in stream]

    @property
    def done(self) -> list[wire.SampleDone]:
        """All samples told as done."""
        return [done for message in self.messages for done in message.done]

    @property
    def failures(self) -> list[wire.GroupFailure]:
        """All failures told."""
        return [failure for message in self.messages for failure in message.failures]

    @property
    def evaluated(self) -> list[wire.EvalDone]:
        """All evaluation rows told."""
        return [row for message in self.messages for row in message.evaluated]

    def send(self, **fields: object) -> None:
        """Send orders."""
        self.orders.put_nowait(wire.WorkOrders(controller_fence=self.fence, **fields))  # type: ignore[arg-type]

    async def until(self, ready: Callable[[], bool], timeout_s: float = 15.0) -> None:
        """Wait until `ready()`, asked after every message."""
        async with asyncio.timeout(timeout_s):
            while not ready():
                self.changed.clear()
                await self.changed.wait()

    async def Work(
        self, request_iterator: AsyncIterator[wire.WorkerMessage], context: object
    ) -> AsyncIterator[wire.WorkOrders]:
        heard: list[wire.WorkerMessage] = []
        self.streams.append(heard)
        reader = asyncio.create_task(self._read(request_iterator, heard))
        try:
            while not reader.done():
                next_orders = asyncio.ensure_future(self.orders.get())
                await asyncio.wait([next_orders, reader], timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
                if next_orders.done():
                    yield next_orders.result()
                else:
                    next_orders.cancel()
                    yield wire.WorkOrders(controller_fence=self.fence)
        finally:
            reader.cancel()

    async def _read(self, messages: AsyncIterator[wire.WorkerMessage], heard: list[wire.WorkerMessage]) -> None:
        async for message in messages:
            heard.append(message)
            self.changed.set()


def lease(group: int, missing: list[int], row_json: bytes, **fields: object) -> wire.Lease:
    """A lease with the usual values."""
    values: dict[str, object] = {"attempt": 1, "group_size": len(missing), "floor": -2, "max_staleness": 2}
    values |= {"deadline_s": 600.0, **fields}
    return wire.Lease(group=group, missing=missing, row_json=row_json, **values)  # type: ignore[arg-type]
