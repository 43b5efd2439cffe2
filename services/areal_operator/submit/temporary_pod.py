"""Pods that live as long as one command: created, waited for until they run, deleted at the end whatever happened.

Image and volume of such a pod follow from the job's runtime, which is looked up here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from areal.errors import ArealError, ConfigError, InfraError
from areal.plan.cluster_names import MAIN_CONTAINER
from areal.spec import RLJob
from areal.spec.runtime import SNAPSHOT_KEY, RuntimeSpec, runtime_from_object

from areal_operator.submit.cluster import Cluster
from areal_operator.submit.manifests import Json
from areal_operator.submit.send import Channel, Programs, Say

POD_START_S = 300.0
_POD_END_S = 120.0


@contextmanager
def program_in(
    pod: Json, command: list[str], cluster: Cluster, say: Say, what_for: str, programs: Programs | None
) -> Iterator[Channel]:
    """A program in the pod, which is gone afterwards, so that a volume for one node is free."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    _remove(pod, cluster)
    cluster.create(pod)
    try:
        say(f"starting the pod {name} {what_for}")
        late = partial(not_started, name)
        cluster.until("Pod", namespace, name, partial(_started, name), timeout_s=POD_START_S, late=late)
        with (programs or cluster.program)(namespace, name, MAIN_CONTAINER, command) as channel:
            yield channel
    finally:
        _remove(pod, cluster)


def _remove(pod: Json, cluster: Cluster) -> None:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    cluster.delete(pod)

    def late(seen: Json | None) -> ArealError:
        return InfraError(f"the pod {name} doesn't end", fix=f"Look at it: `kubectl describe pod {name}`.")

    cluster.until("Pod", namespace, name, lambda seen: True if seen is None else None, timeout_s=_POD_END_S, late=late)


def _started(name: str, seen: Json | None) -> bool | None:
    """Whether the pod's container runs; raises for one that never will."""
    status: Json = (seen or {}).get("status") or {}
    states = [each.get("state") or {} for each in status.get("containerStatuses") or []]
    if status.get("phase") == "Running" and any("running" in state for state in states):
        return True
    if seen is None or status.get("phase") in ("Failed", "Succeeded"):
        raise not_started(name, seen)
    return None


def not_started(name: str, seen: Json | None) -> ArealError:
    return InfraError(
        f"the pod {name} did not start: {_why(seen)}",
        fix="Check image, node and volume: the runtime's tools role, storage class and size of spec.storage.",
    )


def _why(seen: Json | None) -> str:
    """Reason that Kubernetes gives for a pod that doesn't run."""
    if seen is None:
        return "it was deleted"
    status: Any = seen.get("status") or {}
    for container in status.get("containerStatuses") or []:
        for state in (container.get("state") or {}).values():
            if state.get("reason"):
                return f"{state['reason']}: {state.get('message', '')}"
    for condition in status.get("conditions") or []:
        if condition.get("status") == "False" and condition.get("message"):
            return str(condition["message"])
    return str(status.get("message") or status.get("phase") or "nothing is said")


DEFAULT = "areal.dev/default-runtime"  # Annotation `"true"` of the ClusterRLRuntime that jobs get which name none


def runtime_of(job: RLJob, namespace: str, cluster: Cluster) -> RuntimeSpec:
    """The runtime that the job names; of a job that names none, the cluster's default, or the only one that there is.

    Only the operator knows for sure which one it takes; the chart marks the one that it told the operator.
    """
    named = job.spec.runtime_ref
    if named is not None:
        found = cluster.get(named.kind, namespace if named.kind == "RLRuntime" else "", named.name)
        if found is None:
            raise ConfigError(
                f"there is no {named.kind} {named.name!r}",
                fix=f"Correct spec.runtimeRef.name; `kubectl get {named.kind.lower()}s` lists them.",
            )
        return runtime_from_object(found).spec
    there = cluster.all_of("ClusterRLRuntime")
    if (chosen := chosen_among(there)) is not None:
        return runtime_from_object({"apiVersion": "areal.dev/v1alpha1", "kind": "ClusterRLRuntime", **chosen}).spec
    if not there:
        raise ConfigError(
            "the cluster has no ClusterRLRuntime, so no image for any pod is known",
            fix="Install the chart with its runtimes, or create one; docs/install.md shows how.",
        )
    names = ", ".join(sorted(each["metadata"]["name"] for each in there))
    raise ConfigError(
        f"the job names no runtime, and the cluster has several: {names}",
        fix=f"Choose one: runtimeRef.name={there[0]['metadata']['name']}.",
    )


def runtime_copy(config_map: Json | None, uid: str) -> RuntimeSpec | None:
    """The copy that the operator keeps of a job's runtime in a ConfigMap; None when this is not that job's."""
    owners = (config_map or {}).get("metadata", {}).get("ownerReferences", ())
    if config_map is None or uid not in [owner["uid"] for owner in owners]:
        return None
    return RuntimeSpec.model_validate_json(config_map["data"][SNAPSHOT_KEY])


def chosen_among(runtimes: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The runtime marked as default, or the only one; None when that leaves a choice."""
    marked = [each for each in runtimes if (each["metadata"].get("annotations") or {}).get(DEFAULT) == "true"]
    candidates = marked or list(runtimes)
    return candidates[0] if len(candidates) == 1 else None
