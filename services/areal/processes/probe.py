"""Liveness and readiness probes of a child: gRPC health, a TCP connection, or none."""

import asyncio
from dataclasses import dataclass
from enum import StrEnum

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from areal.processes.core import ProbeAnswer


class ProbeKind(StrEnum):
    """How readiness is asked."""

    GRPC = "grpc"
    TCP = "tcp"
    NONE = "none"


@dataclass(frozen=True)
class Probe:
    """One way to ask. A `none` probe takes a started process for ready."""

    kind: ProbeKind = ProbeKind.NONE
    port: int = 0
    host: str = "127.0.0.1"
    timeout_s: float = 2.0


class Prober:
    """Asks again and again; keeps one connection."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._channel: grpc.aio.Channel | None = None

    async def ask(self) -> ProbeAnswer:
        """One answer, within the probe's timeout."""
        if self._probe.kind is ProbeKind.GRPC:
            return await self._health()
        return await self._connection() if self._probe.kind is ProbeKind.TCP else ProbeAnswer.READY

    async def close(self) -> None:
        """Drop the connection."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def _health(self) -> ProbeAnswer:
        if self._channel is None:
            address = f"{self._probe.host}:{self._probe.port}"
            options = [
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 300),  # a role is ready the moment it says so
                ("grpc.use_local_subchannel_pool", 1),
            ]
            self._channel = grpc.aio.insecure_channel(address, options=options)
        stub = health_pb2_grpc.HealthStub(self._channel)
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=self._probe.timeout_s)
        except grpc.aio.AioRpcError:
            return ProbeAnswer.SILENT
        return ProbeAnswer.READY if reply.status == health_pb2.HealthCheckResponse.SERVING else ProbeAnswer.LIVE

    async def _connection(self) -> ProbeAnswer:
        try:
            async with asyncio.timeout(self._probe.timeout_s):
                _, writer = await asyncio.open_connection(self._probe.host, self._probe.port)
        except (OSError, TimeoutError):
            return ProbeAnswer.SILENT
        writer.close()
        return ProbeAnswer.READY
