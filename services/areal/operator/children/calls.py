"""Who may call whom: the one table that NetworkPolicies are made from and the security page is checked against.

A call that is not here is refused on the network, whatever token the caller holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from areal.plan.cluster_names import (
    GRPC_PORT,
    LAUNCHER_PORT,
    LONG_RUNNING,
    METRICS_PORT,
    PORTS,
    REDIS_PORT,
    Role,
)


class Outsider(StrEnum):
    """A caller that is no pod of the job."""

    OPERATOR = "operator"
    MONITORING = "monitoring"


@dataclass(frozen=True)
class Call:
    """`caller` dials `callee` on a port. No port: any, in both directions."""

    caller: Role | Outsider
    callee: Role
    port: int | None
    why: str


def _to_launchers() -> list[Call]:
    """Redis has no launcher."""
    supervised = [role for role in LONG_RUNNING if role is not Role.REDIS]
    return [Call(Outsider.OPERATOR, role, LAUNCHER_PORT, "status, restarts, draining") for role in supervised]


def _scrapes() -> list[Call]:
    return [
        Call(Outsider.MONITORING, role, METRICS_PORT, "metrics") for role in LONG_RUNNING if "metrics" in PORTS[role]
    ]


CALLS: tuple[Call, ...] = (
    Call(Role.CONTROLLER, Role.REDIS, REDIS_PORT, "the ledger"),
    Call(Role.TRAINER, Role.REDIS, REDIS_PORT, "takes batches from the ledger"),
    Call(Role.WORKER, Role.REDIS, REDIS_PORT, "adds samples to the ledger"),
    Call(Role.WORKER, Role.CONTROLLER, GRPC_PORT, "asks for work"),
    Call(Role.GENERATION, Role.CONTROLLER, GRPC_PORT, "registers, learns which weights to serve"),
    Call(Role.TRAINER, Role.CONTROLLER, GRPC_PORT, "publishes weights, moves the cursor"),
    Call(Role.WORKER, Role.GENERATION, GRPC_PORT, "makes tokens"),
    Call(Role.WORKER, Role.REWARD, GRPC_PORT, "scores answers"),
    Call(Role.WORKER, Role.REWARD_CUSTOM, GRPC_PORT, "scores answers with the recipe's function"),
    Call(Role.TRAINER, Role.TRAINER, None, "rendezvous and collectives, on ports that torch chooses"),
    Call(Outsider.OPERATOR, Role.CONTROLLER, GRPC_PORT, "progress, hot fields"),
    Call(Outsider.OPERATOR, Role.TRAINER, GRPC_PORT, "progress, checkpoints"),
    *_to_launchers(),
    *_scrapes(),
)


def calls_to(role: Role) -> list[Call]:
    """Who may call a role."""
    return [call for call in CALLS if call.callee is role]


def calls_from(role: Role) -> list[Call]:
    """Whom a role may call."""
    return [call for call in CALLS if call.caller is role]


def as_markdown() -> str:
    """The table of the security page."""
    rows = ["| who | calls | port | for |", "|---|---|---|---|"]
    rows += [f"| {call.caller} | {call.callee} | {call.port or 'any'} | {call.why} |" for call in CALLS]
    return "\n".join(rows) + "\n"
