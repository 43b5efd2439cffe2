"""HTTP front of all sessions: verifies a call's key, hands the call to the worker that has its session, streams back.

Stateless: keys say whose session it is. Where a worker's stream breaks before an answer has begun, the call is handed
on again as the retry that it is, and joins the answer under way; where it breaks later, the client's connection is cut:
half an answer must not look whole. Never generates, and never reads an answer.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from areal.gateway import faults
from areal.gateway.dial import ChangeSignal
from areal.gateway.faults import MAX_BODY, CallRefusal, body_of, key_of
from areal.gateway.http import dialect_of, is_probe
from areal.gateway.streams import disconnected
from areal.gateway.tunnel import TunnelExchange, TunnelledRequest, Tunnels, WorkerLost
from areal.observe.metrics import RoleMetrics

log = logging.getLogger(__name__)

MOST_HELD = 16 * MAX_BODY  # bytes of requests at once; those beyond wait before they are read
_RETRY = b"x-stainless-retry-count"  # of the OpenAI and Anthropic clients
_HOP = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"host", b"expect"))


class Front:
    """The application of a gateway; `clock` tells the seconds since 1970, as keys do."""

    def __init__(self, tunnels: Tunnels, *, secret: bytes, metrics: RoleMetrics, clock: Callable[[], float]) -> None:
        self._tunnels = tunnels
        self._secret = secret
        self._metrics = metrics
        self._clock = clock
        self.running = metrics.gauge("areal_gateway_calls_running")
        self._room = _Room(MOST_HELD)

    def app(self) -> Starlette:
        """All paths: which there are is the worker's to say."""
        return Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])])

    async def _answer(self, request: Request) -> Response:
        if is_probe(request):
            return Response(b'{"status":"ok"}', media_type="application/json")
        path = request.url.path
        try:
            session = faults.verify(self._secret, key_of(request), self._clock())
            faults.refuse_other(session, path.split("/")[2] if path.startswith("/s/") else None)
            size = await self._room.enter(request)
        except CallRefusal as fault:
            self.count("refused")
            return _refusal(fault, path)
        try:
            body = await body_of(request)
        except CallRefusal as fault:
            self._room.leave(size)
            self.count("refused")
            return _refusal(fault, path)
        except ClientDisconnect:
            self._room.leave(size)
            self.count("left")
            return Response()  # to nobody
        return _Answering(self, session, _asked(request, body), lambda: self._room.leave(size))

    async def relay(self, session: str, asked: TunnelledRequest, send: Send) -> str:
        """Have a request answered by its session's worker; returns what became of it. Raises Refused."""
        while True:
            link = await self._tunnels.link_of(session)
            delivery = _Delivery(send)
            try:
                await delivery.run(await link.begin(asked))
            except WorkerLost:
                if delivery.began:
                    log.warning("the stream to %s broke in the middle of an answer", link.owner)
                    return "cut"
                self._metrics.counter("areal_gateway_resent_total").inc()
                headers = [header for header in asked.headers if header[0] != _RETRY]
                asked = replace(asked, headers=[*headers, (_RETRY, b"1")])
                continue
            return "answered"

    def count(self, outcome: str) -> None:
        """A call has ended so."""
        self._metrics.counter("areal_gateway_calls_total", outcome=outcome).inc()


class _Delivery:
    """Brings one answer to its client."""

    def __init__(self, send: Send) -> None:
        self.began = False
        self._send = send

    async def run(self, exchange: TunnelExchange) -> None:
        """Until the client has all of it. Raises Lost."""
        arrived = False
        try:
            while not arrived:
                part = await exchange.part()
                if not self.began:
                    self.began = True
                    headers = [(header.name, header.value) for header in part.head.headers]
                    await self._send({"type": "http.response.start", "status": part.head.status, "headers": headers})
                await self._send({"type": "http.response.body", "body": part.body, "more_body": not part.last})
                if part.last:
                    arrived = True
                else:
                    exchange.taken(len(part.body))
        finally:
            exchange.end(arrived=arrived)


class _Answering(Response):
    """The response of one request, until it is told or its client has left."""

    def __init__(self, front: Front, session: str, asked: TunnelledRequest, done: Callable[[], None]) -> None:
        super().__init__()
        self._front = front
        self._session = session
        self._asked = asked
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._front.running.inc()
        outcome = "left"
        work = asyncio.ensure_future(self._front.relay(self._session, self._asked, send))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                outcome = work.result()
        except CallRefusal as fault:
            outcome = "unreachable" if fault.status >= 500 else "refused"
            await _refusal(fault, scope["path"])(scope, receive, send)
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            self._done()
            self._front.running.dec()
            self._front.count(outcome)


class _Room:
    """Bytes of requests that may be held at once. A request waits for its place before it is read."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._change = ChangeSignal()

    async def enter(self, request: Request) -> int:
        """Wait for room; returns the bytes to `leave` with. Raises Refused for a request that is too large."""
        length = request.headers.get("content-length", "")
        size = int(length) if length.isdigit() else MAX_BODY
        if size > MAX_BODY:
            raise CallRefusal(f"the body has more than {MAX_BODY} bytes", status=413, code="too_large")
        while self._held + size > self._most:
            await self._change.wait()
        self._held += size
        return size

    def leave(self, size: int) -> None:
        """The request is over."""
        self._held -= size
        self._change.tell()


def _asked(request: Request, body: bytes) -> TunnelledRequest:
    url = request.url
    headers = [(name, value) for name, value in request.headers.raw if name not in _HOP]
    return TunnelledRequest(request.method, url.path + (f"?{url.query}" if url.query else ""), headers, body)


def _refusal(fault: CallRefusal, path: str) -> Response:
    dialect = dialect_of(path)
    body = orjson.dumps(fault.body if dialect is None else dialect.error(fault))
    return Response(body, fault.status, fault.headers, "application/json")
