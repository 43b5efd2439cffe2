"""A role's gRPC server: authentication, health, reflection, waits and progress come with it.

The trainer's, whose main thread computes, runs on a loop thread of its own, and so may any other coroutine.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from areal import tls
from areal.errors import InfraError
from areal.method_access import MethodAccess, one_token
from areal.net import channel
from areal.net.auth import BearerInterceptor
from areal.net.decoding import DecodeGuard
from areal.net.listening import join
from areal.net.operations import ProgressService, WaitsService
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import operations_pb2_grpc as operations_grpc

ENV_HEALTH_SHIFT = "AREAL_HEALTH_SHIFT"
"""Set in pods that have certificates: from a server's port to that of its health without TLS."""

Register = Callable[[Any, grpc.aio.Server], None]


class GrpcServer:
    """Serves what was added, on loopback unless told otherwise. Not ready until `set_ready(True)`.

    `access` says who may call what; a token instead of it opens everything.
    """

    def __init__(
        self, role: str, access: MethodAccess | str, *, waits: WaitRegistry, progress: ProgressCounter
    ) -> None:
        bearer = BearerInterceptor(one_token(access) if isinstance(access, str) else access)
        self._encrypted = tls.identity() is not None
        options = [*channel.SERVER, *(channel.SERVER_TLS if self._encrypted else ())]
        self._server = grpc.aio.server(options=options, interceptors=[bearer, DecodeGuard()])
        self._plain: grpc.aio.Server | None = None  # answers health alone: a kubelet has no certificate
        self._health = health.aio.HealthServicer()
        self._names = ["areal.v1.Waits", "areal.v1.Progress"]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        operations_grpc.add_WaitsServicer_to_server(WaitsService(role, waits), self._server)
        operations_grpc.add_ProgressServicer_to_server(ProgressService(role, progress), self._server)

    def add(self, register: Register, servicer: Any, service_name: str) -> None:
        """Add a servicer with its generated `add_…_to_server`; `service_name` is the full name, `areal.v1.Rollout`."""
        register(servicer, self._server)
        self._names.append(service_name)

    async def start(self, port: int, host: str = "127.0.0.1") -> int:
        """Listen and serve; returns the port. Raises InfraError when the port is taken."""
        reflection.enable_server_reflection([*self._names, reflection.SERVICE_NAME, health.SERVICE_NAME], self._server)
        try:
            if not self._encrypted:
                bound = self._server.add_insecure_port(join(host, port))
            else:
                shown = grpc.dynamic_ssl_server_credentials(_certificates(), _certificates, True)
                bound = self._server.add_secure_port(join(host, port), shown)
                if shift := int(os.environ.get(ENV_HEALTH_SHIFT, 0)):
                    self._plain = grpc.aio.server(options=channel.SERVER)
                    health_pb2_grpc.add_HealthServicer_to_server(self._health, self._plain)
                    self._plain.add_insecure_port(join(host, bound + shift))
                    await self._plain.start()
        except RuntimeError as error:
            raise InfraError(f"can't listen on {join(host, port)}: {error}", fix="stop what uses this port") from error
        await self.set_ready(False)
        await self._server.start()
        return int(bound)

    async def set_ready(self, ready: bool) -> None:
        """Answer health checks of the server and of each service."""
        for name in ["", *self._names]:
            await self.set_service_ready(name, ready)

    async def set_service_ready(self, name: str, ready: bool) -> None:
        """Answer health checks of one service, which may be served elsewhere."""
        status = health_pb2.HealthCheckResponse
        await self._health.set(name, status.SERVING if ready else status.NOT_SERVING)

    async def stop(self, grace_s: float = 2.0) -> None:
        """Answer NOT_SERVING, let running calls end for `grace_s`, then stop."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
        if self._plain is not None:
            await self._plain.stop(0)


def _certificates() -> grpc.ServerCertificateConfiguration:
    """Called at each handshake: a new certificate needs no restart."""
    own = tls.identity()
    assert own is not None, "asked with TLS only"
    return grpc.ssl_server_certificate_configuration([(own.key, own.certificate)], own.authorities)


T = TypeVar("T")


class LoopThread:
    """Owns an event loop in a daemon thread. `call` runs a coroutine there and waits for its result."""

    def __init__(self, name: str = "areal-loop") -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run `coroutine` on the loop; raises TimeoutError after `timeout_s`, and the coroutine is cancelled."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Start `coroutine` on the loop and return at once."""
        asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Cancel what runs on the loop and end the thread."""

        async def cancel_all() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        if self._thread.is_alive():
            self.call(cancel_all(), timeout_s)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout_s)
