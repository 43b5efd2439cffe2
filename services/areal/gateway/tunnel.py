"""Reverse tunnel, the gateway's end: the workers that dialled, and exchanges with the one that has a session.

Owns which workers are connected. A session's name begins with its owner, the incarnation of its worker, so any gateway
finds it, after a restart too. Promises that an exchange ends with its worker's stream. Never reads an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import grpc
from prometheus_client import Gauge

from areal.gateway.dial import ChangeSignal
from areal.gateway.faults import CallRefusal, over
from areal.observe.waits import WaitRegistry
from areal.v1 import gateway_pb2 as pb
from areal.v1 import gateway_pb2_grpc as rpc

log = logging.getLogger(__name__)

SERVICE_NAME = "areal.v1.Gateway"
PATIENCE_S = 60.0  # for a worker that isn't connected: longer than one takes to start again
_CHUNK = 1024 * 1024  # bytes of a request in one message
_HELD = 8 * _CHUNK  # bytes that wait to be sent to one worker

Context = grpc.aio.ServicerContext[Any, Any]


class WorkerLost(Exception):
    """The worker's stream ended before its answer did."""


@dataclass(frozen=True)
class TunnelledRequest:
    """A request to hand on."""

    method: str
    path: str  # with its query
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class TunnelExchange:
    """One request at a worker. `part` after `part` of its answer; `end` it whatever happened."""

    def __init__(self, number: int, link: Link) -> None:
        self.number = number
        self.parts: asyncio.Queue[pb.DriveAnswer | None] = asyncio.Queue()  # None: the stream ended
        self._link = link

    async def part(self) -> pb.DriveAnswer:
        """The next part of the answer. Raises Lost."""
        if (part := await self.parts.get()) is None:
            raise WorkerLost
        return part

    def taken(self, size: int) -> None:
        """The client took so many bytes: the worker may send as many more."""
        self._link.tell(pb.DriveAsk(exchange=self.number, taken=size))

    def end(self, *, arrived: bool) -> None:
        """The client has the whole answer, or left."""
        self._link.forget(self.number)
        self._link.tell(pb.DriveAsk(exchange=self.number, end=pb.DriveEnd(arrived=arrived)))


class Link:
    """The stream of one worker."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._asks: deque[pb.DriveAsk] = deque()
        self._held = 0  # bytes of requests in `_asks`
        self._exchanges: dict[int, TunnelExchange] = {}
        self._numbers = count(1)
        self._over = False
        self._change = ChangeSignal()

    async def begin(self, asked: TunnelledRequest) -> TunnelExchange:
        """Hand a request on; waits where the worker is slow to take them. Raises Lost."""
        exchange = TunnelExchange(next(self._numbers), self)
        self._exchanges[exchange.number] = exchange
        chunks = [asked.body[at : at + _CHUNK] for at in range(0, len(asked.body), _CHUNK)] or [b""]
        bodies = [pb.DriveBody(data=chunk, last=at == len(chunks)) for at, chunk in enumerate(chunks, 1)]
        headers = [pb.DriveHeader(name=name, value=value) for name, value in asked.headers]
        request = pb.DriveRequest(method=asked.method, path=asked.path, headers=headers, body=bodies[0])
        asks = [pb.DriveAsk(exchange=exchange.number, request=request)]
        asks += [pb.DriveAsk(exchange=exchange.number, more=body) for body in bodies[1:]]
        try:
            for ask, chunk in zip(asks, chunks, strict=True):
                while self._held > _HELD and not self._over:
                    await self._change.wait()
                if self._over:
                    raise WorkerLost
                self._held += len(chunk)
                self.tell(ask)
        except BaseException:
            exchange.end(arrived=False)
            raise
        return exchange

    def tell(self, ask: pb.DriveAsk) -> None:
        """Send this; what is told to a stream that ended is lost with it."""
        if not self._over:
            self._asks.append(ask)
            self._change.tell()

    def forget(self, number: int) -> None:
        """Nobody waits for the answer of this exchange."""
        self._exchanges.pop(number, None)

    async def next(self) -> pb.DriveAsk | None:
        """What to send next; None when the stream is over."""
        while not self._asks and not self._over:
            await self._change.wait()
        if self._over:
            return None
        ask = self._asks.popleft()
        if size := len(ask.request.body.data) + len(ask.more.data):
            self._held -= size
            self._change.tell()
        return ask

    def heard(self, message: pb.DriveAnswers) -> None:
        """What the worker says."""
        for answer in message.answers:
            if (exchange := self._exchanges.get(answer.exchange)) is not None:
                exchange.parts.put_nowait(answer)

    def end(self) -> None:
        """The stream is over, and so are its exchanges."""
        self._over = True
        self._change.tell()
        for exchange in self._exchanges.values():
            exchange.parts.put_nowait(None)


class Tunnels(rpc.GatewayServicer):
    """The streams of all workers. `connected` tells how many there are."""

    def __init__(self, waits: WaitRegistry, connected: Gauge, *, patience_s: float = PATIENCE_S) -> None:
        self._links: dict[str, Link] = {}  # by owner
        self._newest: dict[str, str] = {}  # row of a worker → the owner that dialled last
        self._waits = waits
        self._connected = connected
        self._patience_s = patience_s
        self._change = ChangeSignal()

    async def link_of(self, session: str) -> Link:
        """The stream of the worker that has a session; waits for one that isn't connected.

        Raises Refused: 410 when the worker has started again, 503 when it stays away.
        """
        owner = ".".join(session.split(".")[:2])
        if (link := self._links.get(owner)) is not None:
            return link
        row = owner.partition(".")[0]
        with contextlib.suppress(TimeoutError), self._waits.waiting("worker", owner):
            async with asyncio.timeout(self._patience_s):
                while (link := self._links.get(owner)) is None:
                    if self._newest.get(row, owner) != owner:
                        raise over("its worker has started again")
                    await self._change.wait()
                return link
        raise CallRefusal(f"the worker {row} is not connected", status=503, code="worker_unreachable")

    async def Drive(
        self, request_iterator: AsyncIterator[pb.DriveAnswers], context: Context
    ) -> AsyncIterator[pb.DriveAsk]:
        """See `protos/areal/v1/gateway.proto`."""
        if (first := await anext(request_iterator, None)) is None:
            return
        link = Link(first.owner)
        log.info("%s is connected", link.owner)
        if (earlier := self._links.get(link.owner)) is not None:
            earlier.end()
        self._links[link.owner] = link
        self._newest[link.owner.partition(".")[0]] = link.owner
        self._connected.set(len(self._links))
        self._change.tell()
        reader = asyncio.create_task(self._read(request_iterator, link), name=f"answers of {link.owner}")
        try:
            while (ask := await link.next()) is not None:
                yield ask
        finally:
            reader.cancel()
            log.info("%s is no longer connected", link.owner)
            link.end()
            if self._links.get(link.owner) is link:
                del self._links[link.owner]
            self._connected.set(len(self._links))

    async def _read(self, messages: AsyncIterator[pb.DriveAnswers], link: Link) -> None:
        try:
            with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
                async for message in messages:
                    link.heard(message)
        finally:
            link.end()
