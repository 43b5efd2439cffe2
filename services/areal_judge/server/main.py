"""Entry point of `areal reward serve`: the sandbox as a service of its own, without a job.

Serves the Sandbox contract by gRPC, and the same over HTTP, with one bearer token for both.
"""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from areal.errors import ConfigError, ExitCode
from areal.net.http_server import HttpServer
from areal.net.listening import join
from areal.net.server import GrpcServer
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import boxes_pb2_grpc
from areal.v1 import sandbox_pb2_grpc as rpc

from areal_judge.boxes.registry import BoxBounds
from areal_judge.boxes.service import SERVICE_NAME as BOXES_NAME
from areal_judge.boxes.service import BoxSettings, box_stack
from areal_judge.judge.stack import StackSettings, code_stack
from areal_judge.mathematics import MathScorer
from areal_judge.sandbox.values import Tier
from areal_judge.server.handlers import SERVICE_NAME, SandboxHandlers, SandboxService
from areal_judge.server.http import create_app

_DRAIN_S = 5
_NAME = "reward-service"  # in place of a job's


@dataclass(frozen=True)
class ServeOptions:
    """Where to listen, and what to build. A port of 0 is any free one; a metrics port of None serves none."""

    host: str = "127.0.0.1"
    port: int = 7650
    http_port: int = 7651
    metrics_port: int | None = None
    token_file: Path | None = None
    stack: StackSettings = field(default_factory=StackSettings)
    boxes: int = 0  # at once; 0 serves none


@dataclass(frozen=True)
class Serving:
    """Where it can be reached."""

    grpc: str
    http: str
    token: str
    tier: str


async def serve(
    options: ServeOptions, told: Callable[[Serving], None], math_of: Callable[[WaitRegistry], MathScorer]
) -> int:
    """Serves until SIGTERM or SIGINT; tells once where. Returns the exit code.

    Raises:
        ConfigError: this machine is below the tier that is asked for, or the token can't be read.
        InfraError: a port is taken, or the sandbox does not start.
    """
    if options.stack.min_tier < Tier.T2:
        raise ConfigError("a service never runs programs without a sandbox", fix="ask for --min-tier T2")
    token = _token(options.token_file)
    waits, progress, metrics = WaitRegistry("reward"), ProgressCounter(), RoleMetrics("reward", _NAME)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = GrpcServer("reward", token, waits=waits, progress=progress)
    async with contextlib.AsyncExitStack() as owned:
        code = await owned.enter_async_context(code_stack(options.stack, metrics, server.set_ready))
        math = math_of(waits)  # compares answers that are in its requests' field "answer"
        owned.push_async_callback(math.stop)
        handlers = SandboxHandlers(code.dispatcher, code.readiness, progress, math)
        server.add(rpc.add_SandboxServicer_to_server, SandboxService(handlers), SERVICE_NAME)
        if options.boxes:
            settings = BoxSettings(BoxBounds(boxes=options.boxes), options.stack.min_tier)
            boxes = await owned.enter_async_context(box_stack(settings))
            server.add(boxes_pb2_grpc.add_BoxesServicer_to_server, boxes.service, BOXES_NAME)
        port = await server.start(options.port, options.host)
        owned.push_async_callback(server.stop, _DRAIN_S)
        app = create_app(handlers, code.readiness, token)
        face = HttpServer(app, options.host, options.http_port, grace_s=_DRAIN_S)
        http_port = face.start()
        owned.push_async_callback(face.stop)
        if options.metrics_port is not None:
            metrics.serve(options.metrics_port, options.host)
        await server.set_ready(code.readiness.ready)
        progress.doing = "judging"
        tier = code.dispatcher.offer.tier.name
        told(Serving(join(options.host, port), f"http://{join(options.host, http_port)}", token, tier))
        await stop.wait()
        progress.doing = "draining"
    return int(ExitCode.DRAINED)


def _token(file: Path | None) -> str:
    """The token in the file, which is made when it is missing; without a file, one for this time only."""
    if file is None:
        return secrets.token_urlsafe(32)
    try:
        token = file.read_text().strip()
    except FileNotFoundError:
        token = secrets.token_urlsafe(32)
        try:
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
                made.write(token + "\n")
        except OSError as error:
            raise ConfigError(f"can't write the token {file}: {error.strerror}", fix="name another file") from error
        return token
    except OSError as error:
        raise ConfigError(f"can't read the token {file}: {error.strerror}", fix="name another file") from error
    if not token:
        raise ConfigError(f"the token file {file} is empty", fix="write a long random word into it, or remove it")
    return token
