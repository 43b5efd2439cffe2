"""Runs through the service's own gRPC face on loopback, the service being a process of its own."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import tempfile
import time

import grpc
from areal.net.channel import connect
from areal.v1 import sandbox_pb2 as pb
from areal.v1 import sandbox_pb2_grpc as rpc

_START_S = 120.0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def latencies(source: str, stdin: bytes, runs: int) -> list[float]:
    """Seconds of each of `runs` executions, one after the other, as a caller sees them."""
    token, port = secrets.token_hex(16), _free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".token") as file:
        file.write(token)
        file.flush()
        os.chmod(file.name, 0o600)
        service = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "areal.cli.main", "reward", "serve", "--port", str(port), "--http-port", "0",
            "--token-file", file.name, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        channel = connect(f"127.0.0.1:{port}", token)
        try:
            stub = rpc.SandboxStub(channel)
            await _ready(stub)
            request = pb.ExecuteRequest(program=pb.Program(language="python", source=source), stdin=stdin)
            taken = []
            for _ in range(runs):
                began = time.perf_counter()
                answer = await stub.Execute(request, timeout=30)
                taken.append(time.perf_counter() - began)
                assert answer.stdout == b"3\n", answer
                await asyncio.sleep(0.005)
            return taken
        finally:
            await channel.close()
            service.terminate()
            await service.wait()


async def _ready(stub: rpc.SandboxStub) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            await stub.Capabilities(pb.CapabilitiesRequest(), timeout=5)
            return
        except grpc.RpcError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
