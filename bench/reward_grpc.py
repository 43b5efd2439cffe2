"""Runs through the service's own gRPC face on loopback, and a bare echo beside them: each server a process of its own.

The service is measured when it is at rest: after its start it prepares what compilers share.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc_echo
import psutil
from areal.net.channel import connect
from areal.plan.roles import free_ports
from areal.v1 import sandbox_pb2 as pb
from areal.v1 import sandbox_pb2_grpc as rpc

_START_S = 120.0
_REST_S = 60.0  # a machine that is still busy then is measured as it is
_AT_REST = 0.05  # of a processor
_PAUSE_S = 0.005  # a spare cell is made meanwhile
_WARM_UP = 20


@dataclass(frozen=True)
class Through:
    """Seconds of calls, one after the other, executions and echoes in turn."""

    runs: list[float]
    inside: list[float]  # what the service says that each of the runs took
    echoes: list[float]


async def latencies(source: str, stdin: bytes, runs: int) -> Through:
    """Executions as a caller sees them; the echo between them is their limit."""
    token, port, echo_port = secrets.token_hex(16), *free_ports(2)
    through = Through([], [], [])
    request = pb.ExecuteRequest(program=pb.Program(language="python", source=source), stdin=stdin)
    with tempfile.NamedTemporaryFile("w", suffix=".token") as file:
        file.write(token)
        file.flush()
        os.chmod(file.name, 0o600)
        serve = ["-m", "areal.cli.main", "reward", "serve", "--port", str(port), "--http-port", "0"]
        async with (
            _process(*serve, "--token-file", file.name) as service,
            _process(str(Path(grpc_echo.__file__)), str(echo_port)),
            connect(f"127.0.0.1:{port}", token) as channel,
            connect(f"127.0.0.1:{echo_port}", token) as echo_channel,
        ):
            stub, echo = rpc.SandboxStub(channel), echo_channel.unary_unary(grpc_echo.METHOD)
            await _ready(stub)
            await echo(b"", timeout=_START_S, wait_for_ready=True)
            await _at_rest(service)
            text = request.SerializeToString()
            for number in range(runs + _WARM_UP):
                began = time.perf_counter()
                answer = await stub.Execute(request, timeout=30)
                ended = time.perf_counter()
                assert answer.stdout == b"3\n", answer
                await asyncio.sleep(_PAUSE_S)
                asked = time.perf_counter()
                await echo(text, timeout=30)
                echoed = time.perf_counter()
                await asyncio.sleep(_PAUSE_S)
                if number >= _WARM_UP:
                    through.runs.append(ended - began)
                    through.inside.append(answer.timing.total_us / 1e6)
                    through.echoes.append(echoed - asked)
    return through


@asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[int]:
    """A Python program while it is needed; gives its process id."""
    silent = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=silent, stderr=silent)
    try:
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


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


async def _at_rest(pid: int) -> None:
    """Waits until a process and its children have hardly used a processor for a second."""
    deadline = time.monotonic() + _REST_S
    spent_s = _spent_s(pid)
    while time.monotonic() < deadline:
        await asyncio.sleep(1)
        before_s, spent_s = spent_s, _spent_s(pid)
        if abs(spent_s - before_s) < _AT_REST:
            return


def _spent_s(pid: int) -> float:
    """Processor time of a process and of all below it, those included that are over."""
    total = 0.0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total
