"""Errors over the wire: an `ArealError` becomes a gRPC status with a `Fault` attached, and an `ArealError` again.

So do the causes for which the controller admits nothing.
"""

import traceback
from typing import Any, NoReturn

import grpc

from areal.cards import ServerPhase
from areal.errors import ArealError, BugError, FencedError, InfraError, Kind, by_kind
from areal.observe.live import Idle, IdleCause
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as rollout

FAULT_KEY = "areal-fault-bin"  # trailing metadata; `-bin` lets it hold bytes

_CODES = {
    Kind.INFRA: grpc.StatusCode.UNAVAILABLE,
    Kind.DATA: grpc.StatusCode.INVALID_ARGUMENT,
    Kind.CONFIG: grpc.StatusCode.FAILED_PRECONDITION,
    Kind.BUG: grpc.StatusCode.INTERNAL,
}


def fault(error: BaseException, *, with_traceback: bool = False) -> common.Fault:
    """The wire form of any exception. One without an owner is a bug of ours."""
    trace = "".join(traceback.format_exception(error))[-8_000:] if with_traceback else ""
    if isinstance(error, ArealError):
        return common.Fault(kind=kind_to_wire(error.kind), message=error.message, fix=error.fix, traceback=trace)
    return common.Fault(kind=common.FAULT_KIND_BUG, message=f"{type(error).__name__}: {error}", traceback=trace)


def from_fault(wire: common.Fault) -> ArealError:
    """The exception that a `Fault` stands for. Unknown kinds are bugs: unknown is loud."""
    error = by_kind(kind_from_wire(wire.kind), wire.message, fix=wire.fix)
    if wire.traceback:
        error.add_note(wire.traceback)  # where it was raised, below where it was heard of
    return error


def kind_to_wire(kind: Kind) -> common.FaultKind.ValueType:
    """The wire form of whose fault something is."""
    return common.FaultKind.Value(f"FAULT_KIND_{kind.name}")


def kind_from_wire(kind: common.FaultKind.ValueType) -> Kind:
    """Whose fault something is. Unknown kinds are bugs: unknown is loud."""
    return next((known for known in Kind if kind_to_wire(known) == kind), Kind.BUG)


def phase_to_wire(phase: ServerPhase) -> generation.ServerPhase.ValueType:
    """A server's phase on shared cards, for a message."""
    return generation.ServerPhase.Value(f"SERVER_PHASE_{phase.name}")


def phase_from_wire(phase: generation.ServerPhase.ValueType) -> ServerPhase:
    """And back."""
    return ServerPhase[generation.ServerPhase.Name(phase).removeprefix("SERVER_PHASE_")]


def idle_to_wire(cause: IdleCause) -> rollout.IdleCause.ValueType:
    """The wire form of a cause: the members have the same names."""
    return rollout.IdleCause.Value(f"IDLE_CAUSE_{cause.name}")


def idle_from_wire(status: rollout.GetRolloutStatusResponse) -> Idle | None:
    """Why the controller admits nothing; None while it does, or for a cause that only newer ones know."""
    causes = (cause for cause in IdleCause if idle_to_wire(cause) == status.idle_cause)
    return next((Idle(cause, status.idle_reason) for cause in causes), None)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: ArealError) -> NoReturn:
    """End the current call with `error`. A fenced caller gets ABORTED, which no client retries by itself."""
    code = grpc.StatusCode.ABORTED if isinstance(error, FencedError) else _CODES[error.kind]
    await context.abort(code, error.message, ((FAULT_KEY, fault(error).SerializeToString()),))
    raise error


def raise_as(error: grpc.RpcError) -> NoReturn:
    """Raise the `ArealError` behind a failed call."""
    code = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN
    details = (error.details() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else str(error)) or code.name
    trailing = (error.trailing_metadata() or ()) if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else ()
    for key, value in trailing:
        if key == FAULT_KEY:
            wire = common.Fault.FromString(value if isinstance(value, bytes) else value.encode())
            if code is grpc.StatusCode.ABORTED:
                raise FencedError(wire.message, fix=wire.fix) from error
            raise from_fault(wire) from error
    transient = code.name in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED")
    raise (InfraError if transient else BugError)(f"{code.name}: {details}") from error
