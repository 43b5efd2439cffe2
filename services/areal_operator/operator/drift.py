"""Drift detection: whether a child must be applied, and as what.

Owns two rules. A child that is as it should be is left alone: writing a thousand objects again every few seconds
helps nobody. And pods are never replaced because the operator was: a template that another version of the operator
made for the same job and runtime is kept while pods run from it. Pure.
"""

import hashlib
import json
from typing import Any

from areal.plan.cluster_names import ANNOTATION_OPERATOR_VERSION
from areal.spec.quantity import amount

from areal_operator.kube.resources import Json
from areal_operator.operator.admission import RunnableJob

ANNOTATION_INPUTS = "areal.dev/inputs-hash"  # Of all in a job and its runtime that pod templates are made from

_TEMPLATED = ("StatefulSet", "Deployment")
_NO_INPUT = {
    "spec": ("suspend", "runPolicy", "failurePolicy", "managedBy", "runtimeRef", "algorithm", "evaluation",
             "checkpoint", "export"),
    "replicas": ("generation", "reward"),
}  # fmt: skip


def inputs_hash(admitted: RunnableJob) -> str:
    """Hash of the inputs of a job's pod templates: neither fleet sizes nor what running roles are told."""
    spec = admitted.job.spec.model_dump(mode="json", exclude=None)
    for name in _NO_INPUT["spec"]:
        spec.pop(name, None)
    for name in _NO_INPUT["replicas"]:
        if name != "generation" or not admitted.resolved.in_one_pod:  # there each has ports and GPUs of the pod
            spec[name] = {key: value for key, value in spec[name].items() if key != "replicas"}
    spec["rollout"] = {}
    spec["storage"].pop("retain")
    text = json.dumps({"runtime": admitted.runtime_hash, "spec": spec}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def settled(desired: Json, observed: Json | None, inputs: str) -> Json:
    """The object to apply: `desired`, but for a template that only a change of the operator would replace."""
    if desired["kind"] not in _TEMPLATED:
        return desired
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), ANNOTATION_INPUTS: inputs}
    desired = {**desired, "metadata": {**metadata, "annotations": annotations}}
    if observed is None:
        return desired
    seen = observed["metadata"].get("annotations", {})
    theirs = seen.get(ANNOTATION_OPERATOR_VERSION)
    runs = observed.get("spec", {}).get("replicas", 1) > 0
    if not runs or seen.get(ANNOTATION_INPUTS) != inputs or theirs == annotations.get(ANNOTATION_OPERATOR_VERSION):
        return desired
    kept = {**desired["metadata"], "annotations": {**annotations, ANNOTATION_OPERATOR_VERSION: theirs}}
    return {**desired, "metadata": kept, "spec": {**desired["spec"], "template": observed["spec"]["template"]}}


def differs(desired: Any, observed: Any) -> bool:
    """Whether applying `desired` would change `observed`. What the server adds by itself is no difference."""
    match desired:
        case dict():
            if not isinstance(observed, dict):
                return bool(desired) or bool(observed)
            return any(differs(value, observed.get(key)) for key, value in desired.items())
        case list():
            if not isinstance(observed, list):
                return bool(desired) or bool(observed)
            return len(desired) != len(observed) or any(map(differs, desired, observed))
        case None | False | 0 | "":
            return bool(observed)  # the server leaves out what is empty
        case _:
            return desired != observed and not _same_amount(desired, observed)


def _same_amount(one: Any, other: Any) -> bool:
    """Whether two texts are the same amount: the server writes 1024Mi as 1Gi."""
    return amount(one) is not None and amount(one) == amount(other)
