"""Projections: what the caches keep of pods and machines, which are most of what the operator watches.

Owns which fields are kept: those that `observed` reads, and those by which a cache finds an object. Everything else of
a pod is its template, which the operator wrote itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal.plan.cluster_names import MAIN_CONTAINER

from areal_operator.kube.resources import Json

_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels",
    "ownerReferences",
)  # fmt: skip


def pod(obj: Json) -> Json:
    """A pod without its spec but for its machine, and with the states of its main container only."""
    status = obj.get("status", {})
    main = [one for one in status.get("containerStatuses", ()) if one.get("name") == MAIN_CONTAINER]
    return {
        **_identity(obj),
        "spec": _of(obj.get("spec", {}), "nodeName"),
        "status": {
            **_of(status, "phase", "podIP", "conditions"),
            "containerStatuses": [_of(one, "name", "restartCount", "state", "lastState") for one in main],
        },
    }


def node(obj: Json) -> Json:
    """A machine's taints, and whether it is ready."""
    ready = [one for one in obj.get("status", {}).get("conditions", ()) if one.get("type") == "Ready"]
    kept = _of(obj.get("spec", {}), "taints", "unschedulable")
    return {**_identity(obj), "spec": kept, "status": {"conditions": ready}}


def _identity(obj: Json) -> Json:
    return {**_of(obj, "apiVersion", "kind"), "metadata": _of(obj["metadata"], *_METADATA)}


def _of(obj: Mapping[str, Any], *names: str) -> Json:
    return {name: obj[name] for name in names if name in obj}
