"""Services and disruption budgets.

StatefulSets whose pods are dialled one by one have a headless Service that shows pods before they are ready: a gang
resolves its first member while none of it is. What is dialled as a whole has an address that outlives its pod.
"""

from __future__ import annotations

from areal.operator.children.objects import child
from areal.operator.children.wanted import Json, Wanted
from areal.plan.cluster_names import GRPC_PORT, REDIS_PORT, RENDEZVOUS_PORT, Role, selector, workload

_HEADLESS = (Role.GENERATION, Role.TRAINER, Role.WORKER)
_GRPC = {"name": "grpc", "port": GRPC_PORT, "appProtocol": "grpc"}
_PORTS: dict[Role, list[Json]] = {
    Role.REDIS: [{"name": "redis", "port": REDIS_PORT}],
    Role.TRAINER: [_GRPC, {"name": "rendezvous", "port": RENDEZVOUS_PORT}],
}
_BUDGETS: dict[Role, Json] = {
    # A drain must go through the operator, which has the trainers save first.
    Role.TRAINER: {"maxUnavailable": 0},
    # A server that isn't ready serves nobody: it may go whatever the others do.
    Role.GENERATION: {"maxUnavailable": "25%", "unhealthyPodEvictionPolicy": "AlwaysAllow"},
}


def services(w: Wanted) -> list[Json]:
    """One Service a role."""
    return [_service(w, role) for role in w.roles]


def budgets(w: Wanted) -> list[Json]:
    """Disruption budgets of the roles whose pods must not be evicted at once."""
    return [
        child(
            w,
            "policy/v1",
            "PodDisruptionBudget",
            workload(w.name, role),
            role=role,
            spec={**budget, "selector": {"matchLabels": selector(w.name, role)}},
        )
        for role, budget in _BUDGETS.items()
        if role in w.roles
    ]


def _service(w: Wanted, role: Role) -> Json:
    spec: Json = {
        "selector": selector(w.name, role),
        "ports": [{**port, "protocol": "TCP", "targetPort": port["port"]} for port in _PORTS.get(role, [_GRPC])],
        "type": "ClusterIP",
    }
    if role in _HEADLESS:
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return child(w, "v1", "Service", workload(w.name, role), role=role, spec=spec)
