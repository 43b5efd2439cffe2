"""Resources that the operator watches, and the jobs that a change of each concerns.

Only what carries the job label is kept of kinds that others use too: pods of the rest of the cluster are none of our
business, and would fill the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from areal_operator.kube.resources import (
    CLUSTER_RUNTIMES,
    CONFIGMAPS,
    DEPLOYMENTS,
    JOBS,
    NETWORK_POLICIES,
    NODES,
    PDBS,
    PODS,
    PVCS,
    RLJOBS,
    RUNTIMES,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFULSETS,
    Json,
    Resource,
)
from areal_operator.operator import projection
from areal_operator.operator.world import keys_of, keys_of_node, keys_of_runtime, node_of
from areal_operator.runtime.cache import Cache
from areal_operator.runtime.manager import Watched

CHILDREN = (
    STATEFULSETS,
    DEPLOYMENTS,
    JOBS,
    SERVICES,
    CONFIGMAPS,
    PVCS,
    SERVICE_ACCOUNTS,
    PDBS,
    NETWORK_POLICIES,
)


def watched(
    caches: Callable[[], Mapping[Resource, Cache]], on_pod_gone: Callable[[Json], None] = lambda pod: None
) -> list[Watched]:
    """All of them. `caches` gives the caches once they exist: some keys are found by looking at other objects."""
    return [
        Watched(RLJOBS, keys_of),
        Watched(RUNTIMES, lambda runtime: keys_of_runtime(runtime, caches())),
        # An operator of a few namespaces may have no right to what is in none.
        Watched(CLUSTER_RUNTIMES, lambda runtime: keys_of_runtime(runtime, caches()), optional=True),
        Watched(NODES, lambda node: keys_of_node(node, caches()), optional=True, project=projection.node),
        Watched(PODS, keys_of, labelled_only=True, on_gone=on_pod_gone, index=node_of, project=projection.pod),
        *(Watched(child, keys_of, labelled_only=True) for child in CHILDREN),
    ]
