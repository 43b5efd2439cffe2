"""The HTTP server in a running event loop."""

from __future__ import annotations

import socket

import httpx
import pytest
from areal.errors import InfraError
from areal.net.http_server import HttpServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

pytestmark = pytest.mark.component


async def _hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def test_answers_are_not_held_back_until_the_client_acknowledges():
    server = HttpServer(Starlette(routes=[Route("/", _hello)]), "127.0.0.1", 0, grace_s=1)
    port = server.start()
    try:
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{port}/")).text == "hello"
        (listener,) = server._server.servers[0].sockets
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1, "which its connections inherit"
    finally:
        await server.stop()


async def test_a_port_in_use_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InfraError, match=f"can't listen on 127.0.0.1:{port}"):
            HttpServer(Starlette(), "127.0.0.1", port, grace_s=1).start()
