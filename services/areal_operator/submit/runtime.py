"""Runtime of a job that is to be submitted: volume and image of the upload follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from areal.errors import ConfigError
from areal.spec import RLJob
from areal.spec.runtime import RuntimeSpec, runtime_from_object

from areal_operator.submit.cluster import Cluster

DEFAULT = "areal.dev/default-runtime"
"""Annotation `"true"` of the ClusterRLRuntime that jobs get which name none."""


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


def chosen_among(runtimes: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The runtime marked as default, or the only one; None when that leaves a choice."""
    marked = [each for each in runtimes if (each["metadata"].get("annotations") or {}).get(DEFAULT) == "true"]
    candidates = marked or list(runtimes)
    return candidates[0] if len(candidates) == 1 else None
