"""Which resources the operator keeps in memory, and which jobs a change of each concerns.

Only what carries the job label is kept of kinds that others use too: pods of the rest of the cluster are none of our
business, and would fill the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from areal.operator.runtime.cache import Cache
from areal.operator.runtime.manager import Watched
from areal.operator.runtime.resources import (
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
    Resource,
)
from areal.operator.world import keys_of, keys_of_node, keys_of_runtime

CHILDREN = (
    PODS,
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


def watched(caches: Callable[[], Mapping[Resource, Cache]]) -> list[Watched]:
    """All of it. `caches` gives the caches once they exist: some keys are found by looking at other objects."""
    return [
        Watched(RLJOBS, keys_of),
        Watched(RUNTIMES, lambda runtime: keys_of_runtime(runtime, caches())),
        # An operator of a few namespaces may have no right to what is in none.
        Watched(CLUSTER_RUNTIMES, lambda runtime: keys_of_runtime(runtime, caches()), optional=True),
        Watched(NODES, lambda node: keys_of_node(node, caches()), optional=True),
        *(Watched(child, keys_of, labelled_only=True) for child in CHILDREN),
    ]
