"""Reverse tunnel, the worker's end: dials a gateway and answers the HTTP exchanges that come back over its stream.

Owns the kept stream and the ASGI side of each exchange. Promises that an exchange holds at most `WINDOW` bytes that its
client hasn't taken, and that the last part of an answer is sent only when the client has it whole: where the client
leaves, or the gateway dies, the app hears of a client that left, and what it generates goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Scope

from areal.net.kept_stream import KeptStream, StreamLoss
from areal.observe.waits import LostService, WaitRegistry
from areal.v1 import gateway_pb2 as pb
from areal.v1 import gateway_pb2_grpc as rpc

log = logging.getLogger(__name__)

WINDOW = 256 * 1024  # bytes of an answer on their way to its client: a whole answer, mostly
_MESSAGE = 1024 * 1024  # bytes of answers that travel together


class ConnectionGone(OSError):
    """The client left, or the gateway that had its connection died."""


class Tunnel:
    """One gateway that is dialled. `start` and `close` it; `owner` is the process whose sessions `app` has."""

    def __init__(
        self, address: str, token: str, app: ASGIApp, *, owner: str, waits: WaitRegistry | None = None
    ) -> None:
        self._app = app
        self._exchanges: dict[int, _AsgiExchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._outgoing: deque[pb.DriveAnswer] = deque()
        self._gone = LostService(waits or WaitRegistry(owner), "gateway", f"{address} to answer")
        self._stream: KeptStream[pb.DriveAnswers, pb.DriveAsk] = KeptStream(
            address,
            token,
            method=lambda channel: rpc.GatewayStub(channel).Drive,
            hello=lambda: [pb.DriveAnswers(owner=owner)],
            report=self._report,
            on_message=self._hear,
            on_lost=self._lost,
            on_open=self._gone.answered,
            what="the gateway",
            period_s=None,
            silence_s=None,  # keepalive finds one that hangs
            gather_s=0.0,
            waits=waits,
        )

    def start(self) -> None:
        """Begin to dial; a gateway that goes is dialled again."""
        self._gone.failed(self._gone.asked())
        self._stream.start()

    async def close(self) -> None:
        """End the stream and what it asked for."""
        await self._stream.close()
        self._gone.answered()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _report(self) -> pb.DriveAnswers | None:
        taken, size = [], 0
        while self._outgoing and size < _MESSAGE:
            taken.append(self._outgoing.popleft())
            size += len(taken[-1].body)
        if self._outgoing:
            self._stream.wake()
        return pb.DriveAnswers(answers=taken) if taken else None

    def _hear(self, ask: pb.DriveAsk) -> None:
        if (part := ask.WhichOneof("part")) == "request":
            started = self._exchanges[ask.exchange] = _AsgiExchange(ask.exchange, ask.request.body, self._tell)
            task = asyncio.create_task(self._run(started, _scope(ask.request)), name=f"exchange {ask.exchange}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        if (exchange := self._exchanges.get(ask.exchange)) is None:
            return  # it is over
        if part == "more":
            exchange.feed(ask.more)
        elif part == "taken":
            exchange.taken(ask.taken)
        elif part == "end":
            exchange.end(arrived=ask.end.arrived)

    async def _run(self, exchange: _AsgiExchange, scope: Scope) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except (ConnectionGone, ClientDisconnect):
            pass
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
        finally:
            if self._exchanges.get(exchange.number) is exchange:  # numbers begin anew with each stream
                del self._exchanges[exchange.number]

    def _tell(self, answer: pb.DriveAnswer) -> None:
        self._outgoing.append(answer)
        self._stream.wake()

    def _lost(self, _lost: StreamLoss) -> None:
        """The gateway is gone, and with it the connections of all clients that came by it."""
        self._gone.failed(time.monotonic())
        self._outgoing.clear()
        exchanges = list(self._exchanges.values())
        self._exchanges.clear()
        for exchange in exchanges:
            exchange.end(arrived=False)


class _AsgiExchange:
    """One request, as an ASGI app sees it."""

    def __init__(self, number: int, body: pb.DriveBody, tell: Callable[[pb.DriveAnswer], None]) -> None:
        self.number = number
        self._tell = tell
        self._body = deque([body])
        self._head: pb.DriveHead | None = None
        self._untaken = 0
        self._arrived: bool | None = None  # None: the client still waits
        self._change = ChangeSignal()

    def feed(self, body: pb.DriveBody) -> None:
        """More of the request."""
        self._body.append(body)
        self._change.tell()

    def taken(self, size: int) -> None:
        """The client has taken so many bytes more."""
        self._untaken -= size
        self._change.tell()

    def end(self, *, arrived: bool) -> None:
        """The client has the whole answer, or is gone."""
        if self._arrived is None:
            self._arrived = arrived
            self._change.tell()

    @property
    def _left(self) -> bool:
        return self._arrived is False

    async def receive(self) -> Message:
        """The request; then, should the client leave before it has its answer, that it did."""
        while True:
            if self._body:
                part = self._body.popleft()
                return {"type": "http.request", "body": part.data, "more_body": not part.last}
            if self._left:
                return {"type": "http.disconnect"}
            await self._change.wait()

    async def send(self, message: Message) -> None:
        """A part of the answer; the last one returns when the client has it. Raises Gone."""
        if self._left:
            raise ConnectionGone
        if message["type"] == "http.response.start":
            headers = [pb.DriveHeader(name=name, value=value) for name, value in message.get("headers", ())]
            self._head = pb.DriveHead(status=message["status"], headers=headers)
            return
        body, last = message.get("body", b""), not message.get("more_body", False)
        self._untaken += len(body)
        self._tell(pb.DriveAnswer(exchange=self.number, head=self._head, body=body, last=last))
        self._head = None
        while self._arrived is None and (last or self._untaken > WINDOW):
            await self._change.wait()
        if self._left:
            raise ConnectionGone


def _scope(request: pb.DriveRequest) -> dict[str, Any]:
    path, _, query = request.path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(header.name, header.value) for header in request.headers],
        "client": None,
        "server": None,
    }


# ---- Condition variable of one event loop: wakes all that wait for the next change, and may be told without a lock


class ChangeSignal:
    """`wait` returns at the next `tell` after it was called: look at what has changed, then wait again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Something has changed."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._event.wait()
