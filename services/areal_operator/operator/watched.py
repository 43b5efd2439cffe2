"""Resources that the operator watches, and the jobs that a change of each concerns.

Only what carries the job label is kept of kinds that others use too: pods of the rest of the cluster are none of our
business, and would fill the memory. Of pods and machines, which are most of it, the caches keep only a projection.
"""

from collections.abc import Callable, Mapping
from typing import Any

from areal.plan.cluster_names import MAIN_CONTAINER

from areal_operator.kube import resources
from areal_operator.kube.resources import Json, Resource
from areal_operator.operator.world import keys_of, keys_of_node, keys_of_runtime, node_of
from areal_operator.runtime.cache import Cache
from areal_operator.runtime.manager import WatchSpec

# What the caches keep of pods and machines: what `observed` reads, and by what a cache finds an object.
_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels",
    "ownerReferences",
)  # fmt: skip
CHILDREN = (
    resources.STATEFULSETS, resources.DEPLOYMENTS, resources.JOBS, resources.SERVICES, resources.CONFIGMAPS,
    resources.PVCS, resources.SERVICE_ACCOUNTS, resources.PDBS, resources.NETWORK_POLICIES,
)  # fmt: skip


def watched(
    caches: Callable[[], Mapping[Resource, Cache]], on_pod_gone: Callable[[Json], None] = lambda pod: None
) -> list[WatchSpec]:
    """All of them. `caches` gives the caches once they exist: some keys are found by looking at other objects."""
    return [
        WatchSpec(resources.RLJOBS, keys_of),
        WatchSpec(resources.RUNTIMES, lambda runtime: keys_of_runtime(runtime, caches())),
        # An operator of a few namespaces may have no right to what is in none.
        WatchSpec(resources.CLUSTER_RUNTIMES, lambda runtime: keys_of_runtime(runtime, caches()), optional=True),
        WatchSpec(resources.NODES, lambda node: keys_of_node(node, caches()), optional=True, project=projected_node),
        WatchSpec(
            resources.PODS, keys_of, labelled_only=True, on_gone=on_pod_gone, index=node_of, project=projected_pod
        ),
        *(WatchSpec(child, keys_of, labelled_only=True) for child in CHILDREN),
        WatchSpec(
            resources.WORKLOADS, keys_of, labelled_only=True, optional=True
        ),  # there is no Kueue, or no right to it
    ]


def projected_pod(obj: Json) -> Json:
    """A pod without its spec but for its machine and what it asks for, with its main container's states only."""
    status = obj.get("status", {})
    asked = [
        {"resources": _of(one.get("resources", {}), "limits")} for one in obj.get("spec", {}).get("containers", ())
    ]
    main = [one for one in status.get("containerStatuses", ()) if one.get("name") == MAIN_CONTAINER]
    return {
        **_identity(obj),
        "spec": _of(obj.get("spec", {}), "nodeName") | {"containers": asked},
        "status": {
            **_of(status, "phase", "podIP", "conditions"),
            "containerStatuses": [_of(one, "name", "restartCount", "state", "lastState") for one in main],
        },
    }


def projected_node(obj: Json) -> Json:
    """A machine's taints, and whether it is ready."""
    ready = [one for one in obj.get("status", {}).get("conditions", ()) if one.get("type") == "Ready"]
    kept = _of(obj.get("spec", {}), "taints", "unschedulable")
    return {**_identity(obj), "spec": kept, "status": {"conditions": ready}}


def _identity(obj: Json) -> Json:
    return {**_of(obj, "apiVersion", "kind"), "metadata": _of(obj["metadata"], *_METADATA)}


def _of(obj: Mapping[str, Any], *names: str) -> Json:
    return {name: obj[name] for name in names if name in obj}
