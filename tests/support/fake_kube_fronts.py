"""Two ways to reach the fake API server: a transport for virtual time, and real HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from areal_operator.kube.errors import UnreachableError
from areal_operator.runtime.transport import Request, Response
from support.fake_kube import Break, FakeKube, Hang, respond, status, watch

Json = dict[str, Any]


class MemoryTransport:
    """For virtual time: no sockets, no threads. `latency_s` passes before each answer."""

    def __init__(self, fake: FakeKube, latency_s: float = 0.01) -> None:
        self.fake = fake
        self.latency_s = latency_s

    async def request(self, request: Request, *, deadline_s: float) -> Response:
        await asyncio.sleep(self.latency_s)
        try:
            return Response(*respond(self.fake, request))
        except Break:
            raise UnreachableError("reset") from None
        except Hang:
            await asyncio.sleep(deadline_s)
            raise UnreachableError("deadline") from None

    @asynccontextmanager
    async def stream(self, request: Request, *, deadline_s: float) -> AsyncIterator[MemoryStream]:
        await asyncio.sleep(self.latency_s)
        fault = next((fault for fault in self.fake.faults if fault.on == "watch"), None)
        if fault is not None and fault.kind == "refuse":
            self.fake.faults.remove(fault)
            body = json.dumps(status(fault.code, "", "a fault")[1]).encode()
            yield MemoryStream(fault.code, {}, _once(body))
            return
        try:
            async with asyncio.timeout(deadline_s):
                yield MemoryStream(200, {}, self._chunks(request))
        except TimeoutError:
            raise UnreachableError("deadline") from None

    async def _chunks(self, request: Request) -> AsyncIterator[bytes]:
        try:
            async for chunk in watch(self.fake, request):
                yield chunk
        except Break:
            raise UnreachableError("reset") from None
        except Hang:
            await asyncio.Event().wait()

    async def close(self) -> None:
        pass


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


@dataclass(frozen=True)
class MemoryStream:
    """See `areal_operator.runtime.transport.Stream`."""

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]

    def chunks(self) -> AsyncIterator[bytes]:
        return self.body


@asynccontextmanager
async def serve(fake: FakeKube, directory: Path) -> AsyncIterator[Path]:
    """Real HTTP on loopback; gives a kubeconfig."""
    hung: set[asyncio.Future[None]] = set()

    async def handle(asked: web.Request) -> web.StreamResponse:
        body = await asked.json() if asked.can_read_body else None
        request = Request(asked.method, asked.path, dict(asked.query), body, asked.content_type)
        try:
            if request.query.get("watch"):
                fault = next((fault for fault in fake.faults if fault.on == "watch"), None)
                if fault is None or fault.kind != "refuse":
                    return await _stream(asked, request)
                fake.faults.remove(fault)
                return web.json_response(status(fault.code, "", "a fault")[1], status=fault.code)
            code, headers, answer = respond(fake, request)
            return web.Response(status=code, headers=headers, body=answer, content_type="application/json")
        except Break:
            assert asked.transport is not None
            asked.transport.abort()
        except Hang:
            waiter = asyncio.get_running_loop().create_future()
            hung.add(waiter)
            await waiter
        return web.Response()

    async def _stream(asked: web.Request, request: Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(asked)
        async for chunk in watch(fake, request):
            await response.write(chunk)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    path = directory / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(f"http://127.0.0.1:{port}")))
    try:
        yield path
    finally:
        for waiter in hung:
            waiter.cancel()
        await runner.cleanup()


def kubeconfig(url: str) -> Json:
    """A kubeconfig without credentials."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": url}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "nobody"}}],
        "users": [{"name": "nobody", "user": {}}],
    }
