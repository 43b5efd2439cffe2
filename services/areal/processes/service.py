"""The gRPC service `Launcher`: status of a child, restart in an epoch, drain."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import grpc

from areal.errors import ConfigError
from areal.net.status import abort
from areal.processes.core import ChildPhase
from areal.processes.supervise import ChildStatus, ChildSupervisor
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc

SERVICE_NAME = "areal.v1.Launcher"

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_PHASES: dict[ChildPhase, operations.ChildPhase.ValueType] = {ChildPhase.IDLE: operations.CHILD_PHASE_UNSPECIFIED} | {
    phase: operations.ChildPhase.Value(f"CHILD_PHASE_{phase.name}")
    for phase in ChildPhase
    if phase is not ChildPhase.IDLE
}
_WORDS = {wire: phase for phase, wire in _PHASES.items()}


def phase_from_wire(value: operations.ChildPhase.ValueType) -> ChildPhase:
    """The phase behind a wire value."""
    return _WORDS.get(value, ChildPhase.IDLE)


def to_wire(status: ChildStatus) -> operations.GetChildStatusResponse:
    """The wire form of a child's status."""
    return operations.GetChildStatusResponse(
        role=status.name,
        phase=_PHASES[status.phase],
        pid=status.pid,
        restarts=status.restarts,
        epoch=status.epoch,
        last_exit_code=status.last_exit.code if status.last_exit else 0,
        last_exit_reason=status.last_exit.named(status.reason) if status.last_exit else status.reason,
        awaits_epoch=status.awaits_epoch,
        restart_warning=status.warning,
    )


class LauncherService(operations_grpc.LauncherServicer):
    """Serves one or several children. A request without a name means the first."""

    def __init__(self, children: Mapping[str, ChildSupervisor]) -> None:
        self._children = children

    async def GetChildStatus(
        self, request: operations.GetChildStatusRequest, context: Context
    ) -> operations.GetChildStatusResponse:
        return to_wire((await self._child(request.role, context)).status)

    async def RestartChild(
        self, request: operations.RestartChildRequest, context: Context
    ) -> operations.RestartChildResponse:
        child = await self._child(request.role, context)
        return operations.RestartChildResponse(accepted=child.restart(request.epoch))

    async def DrainChild(
        self, request: operations.DrainChildRequest, context: Context
    ) -> operations.DrainChildResponse:
        (await self._child(request.role, context)).drain(request.grace_s or None)
        return operations.DrainChildResponse(accepted=True)

    async def _child(self, name: str, context: Context) -> ChildSupervisor:
        if not name or len(self._children) == 1:
            return next(iter(self._children.values()))
        if name not in self._children:
            known = ", ".join(sorted(self._children))
            await abort(context, ConfigError(f"this launcher has no child {name!r}", fix=f"name one of: {known}"))
        return self._children[name]
