"""Table of allowed calls between roles: NetworkPolicies and the security page are made from it.

Owns nothing: it is the table of roles, read by caller and by callee. A call that is not here is refused on the network,
whatever token the caller holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from areal.plan.cluster_names import LAUNCHER_PORT, METRICS_PORT, PORT_NUMBERS, Role
from areal.plan.role_specs import ROLE_SPECS, Outsider


@dataclass(frozen=True)
class NetworkCall:
    """`caller` dials `callee` on a port. No port: any, in both directions."""

    caller: Role | Outsider
    callee: Role
    port: int | None
    why: str
    in_group: bool = False  # only in jobs whose weights come by a process group


def calls() -> list[NetworkCall]:
    """Every call, by callee; the operator's and monitoring's to every role last."""
    return [
        *(
            NetworkCall(
                caller.who, role, PORT_NUMBERS[caller.port] if caller.port else None, caller.why, caller.in_group
            )
            for role, row in ROLE_SPECS.items()
            for caller in row.called_by
        ),
        *(
            NetworkCall(Outsider.OPERATOR, role, LAUNCHER_PORT, "status, restarts, draining")
            for role, row in ROLE_SPECS.items()
            if row.supervised
        ),
        *(
            NetworkCall(Outsider.MONITORING, role, METRICS_PORT, "metrics")
            for role, row in ROLE_SPECS.items()
            if "metrics" in row.ports
        ),
    ]


def calls_to(role: Role) -> list[NetworkCall]:
    """Who may call a role."""
    return [call for call in calls() if call.callee == role]


def calls_from(role: Role) -> list[NetworkCall]:
    """Whom a role may call, by port and name: a new role must not reorder the policies of jobs that run."""
    found = [call for call in calls() if call.caller == role]
    return sorted(found, key=lambda call: (call.port is None, call.port or 0, call.callee))


def as_markdown() -> str:
    """The table of the security page."""
    rows = ["| who | calls | port | for |", "|---|---|---|---|"]
    rows += [f"| {call.caller} | {call.callee} | {call.port or 'any'} | {call.why} |" for call in calls()]
    return "\n".join(rows) + "\n"
