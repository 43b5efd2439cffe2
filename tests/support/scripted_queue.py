"""Kueue's part in the life of a Workload, one turn at a time: what it writes when it admits, evicts and waits.

Owns the changes of a Workload's spec and status, which tests of both kinds put on their API server. The words and the
order are those that Kueue 0.17 wrote; tests/kube/test_kube_kueue.py runs the same story with Kueue itself.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
TIME = "2026-01-01T00:00:00Z"
MORE = "couldn't assign flavors to pod set trainer: insufficient unused quota for cpu in flavor h100, 4 more needed"


def waits(workload: Json, message: str = MORE) -> Json:
    """Kueue has looked, and there is no room."""
    return _with(workload, QuotaReserved=("False", "Pending", message))


def admitted(workload: Json, *, servers: int | None = None, flavor: str = "h100") -> Json:
    """Every pod set has its flavor; of the servers perhaps fewer than asked for."""
    sets = [
        {
            "name": one["name"],
            "count": servers if servers is not None and one["name"] == "generation" else one["count"],
            "flavors": {"cpu": flavor},
        }
        for one in workload["spec"]["podSets"]
    ]
    status = {**workload.get("status", {}), "admission": {"clusterQueue": "gpus", "podSetAssignments": sets}}
    told = {"QuotaReserved": ("True", "QuotaReserved", "Quota reserved in ClusterQueue gpus")}
    told["Admitted"] = ("True", "Admitted", "The workload is admitted")
    if any(one["type"] == "Evicted" for one in status.get("conditions", [])):
        told["Evicted"] = ("False", "QuotaReserved", "Previously: preempted")
    return _with({**workload, "status": status}, **told)


def reserved(workload: Json) -> Json:
    """There is quota; an admission check is not over."""
    found = admitted(workload)
    return _with(found, Admitted=("False", "NoChecks", "The workload has failed admission checks"))


def evicted(
    workload: Json, reason: str = "Preempted", message: str = "Preempted to accommodate another workload"
) -> Json:
    """Kueue wants the quota back: it stays reserved until the job's controller gives it back."""
    return _with(workload, Evicted=("True", reason, message))


def deactivated(workload: Json) -> Json:
    """Somebody has set `active: false`."""
    found = {**workload, "spec": {**workload["spec"], "active": False}}
    return evicted(found, "Deactivated", "The workload is deactivated")


def condition(workload: Json, kind: str) -> Json:
    """One of its conditions; empty before it was written."""
    found: list[Json] = workload.get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == kind), {})


def _with(workload: Json, **conditions: tuple[str, str, str]) -> Json:
    status = workload.get("status", {})
    kept = [one for one in status.get("conditions", []) if one["type"] not in conditions]
    new = [
        {"type": kind, "status": holds, "reason": reason, "message": message, "lastTransitionTime": TIME}
        for kind, (holds, reason, message) in conditions.items()
    ]
    return {**workload, "status": {**status, "conditions": [*kept, *new]}}
