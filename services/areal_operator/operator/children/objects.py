"""Metadata of every child: name, labels, owner reference, version of the operator that wrote it."""

from __future__ import annotations

from areal import __version__
from areal.plan.cluster_names import ANNOTATION_OPERATOR_VERSION, Role, job_labels, role_labels

from areal_operator.operator.children.wanted import JobBlueprint, Json


def child(
    w: JobBlueprint, api_version: str, kind: str, name: str, *, role: Role | None = None, **fields: object
) -> Json:
    """One object of the job, in the job's namespace; `fields` are what the kind has beside its metadata."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": w.namespace,
            "labels": role_labels(w.name, role) if role else job_labels(w.name),
            "annotations": {ANNOTATION_OPERATOR_VERSION: __version__},
            "ownerReferences": [w.owner()],
        },
        **fields,
    }
