"""One gateway with one session over a scripted engine, on loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from areal.gateway.core import Access, GatewayCore
from areal.gateway.dial import Tunnel
from areal.gateway.faults import secret_of
from areal.gateway.front import Front
from areal.gateway.http import GatewayServer
from areal.gateway.session import SessionLimits
from areal.gateway.templates.template import Template
from areal.gateway.tunnel import SERVICE_NAME, Tunnels
from areal.net.http_server import HttpServer
from areal.net.server import GrpcServer
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.tls import https_client, https_server, web_address
from areal.v1 import gateway_pb2_grpc as rpc
from areal.values.generation import GenerationResult, Ids, OnTokens, Sampling, TokenSpan, as_ids
from areal.workflow.tokenizer import Tokenizer
from starlette.types import ASGIApp
from support.scripted_agent import TOKEN

OWNER = "worker-0.1a2b3c4d"  # an incarnation of a worker
Body = dict[str, Any]
ASK: Body = {"model": "any", "messages": [{"role": "user", "content": "q"}]}


class Engine:
    """Answers with "the" and an end, when it is let."""

    sampling = Sampling(max_new_tokens=16)

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.asked: list[tuple[Ids, Sampling, int]] = []
        self.let = asyncio.Event()
        self.let.set()
        self.rest = asyncio.Event()
        self.rest.set()
        self.fault: Exception | None = None
        self.finish_reason = "stop"
        self.tokenizer = tokenizer
        self.says("the")

    def says(self, text: str) -> None:
        """What it answers from now on."""
        end = next(iter(self.tokenizer.eos_ids))
        self.ids = as_ids([*self.tokenizer.encode(text, special=False).tolist(), end])

    async def generate(
        self, turn: int, ids: Ids, sampling: Sampling, draw: int, on_tokens: OnTokens
    ) -> GenerationResult:
        self.asked.append((ids, sampling, draw))
        await self.let.wait()
        if self.fault is not None:
            raise self.fault
        logprobs = np.full(len(self.ids), -0.25, "<f4")
        on_tokens(self.ids[:1], logprobs[:1])
        await self.rest.wait()
        spans = (TokenSpan(0, len(self.ids), "3.f1", "server"),)
        return GenerationResult(self.ids, logprobs, spans, self.finish_reason)

    async def until_asked(self, times: int) -> None:
        async with asyncio.timeout(60):
            while len(self.asked) < times:  # noqa: ASYNC110
                await asyncio.sleep(0.002)  # a list has no event


class Scene:
    """One gateway with one session."""

    def __init__(self, server: GatewayServer, engine: Engine, access: Access) -> None:
        self.server, self.engine, self.access = server, engine, access
        self.client = httpx.AsyncClient(timeout=20, verify=https_client())

    async def ask(self, body: Body | None = None, *, retry: int = 0, **how: Any) -> httpx.Response:
        url = how.pop("url", f"{self.access.base_url}/chat/completions")
        headers = {"authorization": f"Bearer {how.pop('key', self.access.api_key)}"}
        if retry:
            headers["x-stainless-retry-count"] = str(retry)
        return await self.client.post(url, json=body or ASK, headers=headers, **how)


@dataclass(frozen=True)
class Fronted:
    """A gateway that runs: where agents call it, and where workers dial it."""

    url: str
    address: str
    metrics: RoleMetrics

    @asynccontextmanager
    async def dialled(self, app: ASGIApp, owner: str) -> AsyncIterator[Tunnel]:
        """A worker's stream to it."""
        async with dialled(self.address, app, owner) as tunnel:
            yield tunnel


@asynccontextmanager
async def dialled(address: str, app: ASGIApp, owner: str) -> AsyncIterator[Tunnel]:
    """A worker's stream to a gateway."""
    tunnel = Tunnel(address, TOKEN, app, owner=owner)
    tunnel.start()
    try:
        yield tunnel
    finally:
        await tunnel.close()


@asynccontextmanager
async def front(*, patience_s: float = 60.0) -> AsyncIterator[Fronted]:
    """A gateway that workers may dial."""
    waits, metrics = WaitRegistry("gateway-0"), RoleMetrics("gateway", "job")
    server = GrpcServer("gateway-0", TOKEN, waits=waits, progress=ProgressCounter())
    tunnels = Tunnels(waits, metrics.gauge("areal_gateway_workers"), patience_s=patience_s)
    server.add(rpc.add_GatewayServicer_to_server, tunnels, SERVICE_NAME)
    port = await server.start(0)
    served = Front(tunnels, secret=secret_of(TOKEN), metrics=metrics, clock=time.time)
    http = HttpServer(served.app(), "127.0.0.1", 0, grace_s=1, context=https_server())
    try:
        yield Fronted(web_address(f"http://127.0.0.1:{http.start()}"), f"127.0.0.1:{port}", metrics)
    finally:
        await http.stop()
        await server.stop(0)


def sessions_of(tokenizer: Tokenizer, owner: str | None, **rules: Any) -> GatewayServer:
    """The sessions of one worker: of an owner that others know, or its own."""
    ignores = rules.pop("ignores", False)
    core = GatewayCore(Template(tokenizer), secret=secret_of(TOKEN), clock=time.time, owner=owner, **rules)
    return GatewayServer(core, tokenizer, ignores=ignores)


@asynccontextmanager
async def scene_of(tokenizer: Tokenizer, through: str, limits: SessionLimits, **rules: Any) -> AsyncIterator[Scene]:
    """A scene; `through` is `worker`, which serves its sessions itself, or `gateway`."""
    fronted = through == "gateway"
    server, engine = sessions_of(tokenizer, OWNER if fronted else None, **rules), Engine(tokenizer)
    async with AsyncExitStack() as stack:
        if fronted:
            gateway = await stack.enter_async_context(front())
            await stack.enter_async_context(gateway.dialled(server.app(), OWNER))
            server.address = gateway.url
        else:
            server.start()
            stack.push_async_callback(server.stop)
        made = Scene(server, engine, server.open("3.1", engine, limits, lives_s=600))
        yield made
        engine.let.set()
        engine.rest.set()
        await made.client.aclose()
