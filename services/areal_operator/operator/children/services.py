"""Services and disruption budgets.

StatefulSets whose pods are dialled one by one have a headless Service that shows pods before they are ready: a gang
resolves its first member while none of it is. What is dialled as a whole has an address that outlives its pod.
"""

from __future__ import annotations

from areal.plan.cluster_names import Role, front, port_word, selector, workload
from areal.plan.role_specs import spec_of

from areal_operator.operator.children.objects import child
from areal_operator.operator.children.wanted import JobBlueprint, Json

_NOT_SERVED = ("metrics", "engine")  # scraped pod by pod; on loopback


def services(w: JobBlueprint) -> list[Json]:
    """One Service a role, and one more where pods that are dialled one by one have an address together."""
    fronts = [_front(w, role) for role in w.roles if spec_of(role).front]
    return [*(_service(w, role) for role in (*w.roles, *w.beside)), *fronts]


def budgets(w: JobBlueprint) -> list[Json]:
    """Disruption budgets of the roles whose pods must not be evicted at once."""
    return [
        child(w, "policy/v1", "PodDisruptionBudget", workload(w.name, role), role=role, spec=_budget(w, role))
        for role in reversed(w.roles)
        if spec_of(role).max_unavailable is not None
    ]


def _budget(w: JobBlueprint, role: Role) -> Json:
    row = spec_of(role)
    budget: Json = {"maxUnavailable": row.max_unavailable}
    if row.evict_unready:
        budget["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    return {**budget, "selector": {"matchLabels": selector(w.name, role)}}


def _service(w: JobBlueprint, role: Role) -> Json:
    row = spec_of(role)
    spec: Json = {
        "selector": selector(w.name, role),
        "ports": [_port(name, number) for name, number in row.pod_ports.items() if name not in _NOT_SERVED],
        "type": "ClusterIP",
    }
    if row.headless:
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return child(w, "v1", "Service", workload(w.name, role), role=role, spec=spec)


def _front(w: JobBlueprint, role: Role) -> Json:
    row = spec_of(role)
    spec: Json = {
        "selector": selector(w.name, role),
        "ports": [_port(name, row.pod_ports[name]) for name in row.front],
        "type": "ClusterIP",
    }
    return child(w, "v1", "Service", front(w.name, role), role=role, spec=spec)


def _port(name: str, number: int) -> Json:
    grpc: Json = {"appProtocol": "grpc"} if name == "grpc" else {}
    return {"name": port_word(name), "port": number, **grpc, "protocol": "TCP", "targetPort": number}
