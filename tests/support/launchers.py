"""A launcher as an operator sees it: asked and told over gRPC."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from areal.processes.core import ChildPhase
from areal.processes.service import phase_from_wire
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from support.blocking_channel import connect_sync


@dataclass(frozen=True)
class Launcher:
    """The launcher that listens on a port of loopback."""

    port: int
    token: str

    @contextlib.contextmanager
    def _stub(self) -> Iterator[Any]:
        with connect_sync(f"127.0.0.1:{self.port}", self.token) as channel:
            yield operations_grpc.LauncherStub(channel)

    def child(self) -> operations.GetChildStatusResponse:
        """How its child is."""
        with self._stub() as stub:
            return stub.GetChildStatus(operations.GetChildStatusRequest(), timeout=5)

    def phase(self) -> ChildPhase:
        """The child's phase; IDLE while the launcher isn't up."""
        try:
            return phase_from_wire(self.child().phase)
        except grpc.RpcError:
            return ChildPhase.IDLE

    def awaits(self) -> bool:
        """Whether the child waits for an epoch."""
        try:
            return self.child().awaits_epoch
        except grpc.RpcError:
            return False

    def restart(self, epoch: int) -> bool:
        """Tell it its epoch; whether it obeys."""
        with self._stub() as stub:
            return stub.RestartChild(operations.RestartChildRequest(epoch=epoch), timeout=5).accepted

    def drain(self) -> None:
        """Ask the child to stop for good."""
        with self._stub() as stub:
            assert stub.DrainChild(operations.DrainChildRequest(), timeout=5).accepted
