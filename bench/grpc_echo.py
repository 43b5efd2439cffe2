"""A gRPC server that answers what it is asked: what any unary call on this machine costs at least.

python bench/grpc_echo.py PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
from areal.net import channel

METHOD = "/bench.Echo/Echo"


async def _echo(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    del context
    return request


async def serve(port: int) -> None:
    """Serves on loopback until the process is ended."""
    _, service, name = METHOD.split("/")
    server = grpc.aio.server(options=channel.SERVER)
    handlers = {name: grpc.unary_unary_rpc_method_handler(_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
