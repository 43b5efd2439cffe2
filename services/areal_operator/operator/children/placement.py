"""Placement of pods: tolerations of lost nodes, anti-affinity for exclusive nodes, affinity by topology."""

from __future__ import annotations

from areal.plan.cluster_names import LABEL_JOB, LABEL_ROLE, Role
from areal.plan.role_specs import ROLE_SPECS, spec_of

from areal_operator.operator.children.wanted import Json, Wanted

LOST_NODE_S = 30  # Kubernetes' default of 300 s leaves a job idle for five minutes when a node dies
_HOST = "kubernetes.io/hostname"
_TOPOLOGY_WEIGHT = 100


def tolerations() -> list[Json]:
    """How long a pod stays on a node that nobody hears of."""
    return [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_S,
        }
        for state in ("not-ready", "unreachable")
    ]


def place(spec: Json, w: Wanted, role: Role) -> Json:
    """The pod's spec with the job's `scheduling` added to whatever affinity it has already. Gangs only."""
    scheduling = w.job.spec.scheduling
    if not spec_of(role).gang:
        return spec
    affinity = dict(spec.get("affinity") or {})
    if scheduling.exclusive_nodes:  # anti-affinity is symmetric: what comes later stays away, too
        heavy_roles = [f"{one}" for one, row in ROLE_SPECS.items() if row.holds_model]
        heavy = {"key": LABEL_ROLE, "operator": "In", "values": heavy_roles}
        term: Json = {
            "labelSelector": {"matchExpressions": [heavy]},
            "namespaceSelector": {},
            "topologyKey": _HOST,
        }
        affinity["podAntiAffinity"] = _with(
            affinity.get("podAntiAffinity"), "requiredDuringSchedulingIgnoredDuringExecution", term
        )
    if scheduling.topology_key:
        mates = {"matchLabels": {LABEL_JOB: w.name, LABEL_ROLE: f"{role}"}}
        near: Json = {
            "weight": _TOPOLOGY_WEIGHT,
            "podAffinityTerm": {"labelSelector": mates, "topologyKey": scheduling.topology_key},
        }
        affinity["podAffinity"] = _with(
            affinity.get("podAffinity"), "preferredDuringSchedulingIgnoredDuringExecution", near
        )
    return {**spec, "affinity": affinity} if affinity else spec


def _with(affinity: Json | None, rule: str, term: Json) -> Json:
    kept = dict(affinity or {})
    return {**kept, rule: [*(kept.get(rule) or []), term]}
