"""The three custom resource definitions as whole objects."""

from typing import Any

from areal.spec.block import blocks_in, fields_of
from areal.spec.crd.schema import Schema, block_schema
from areal.spec.crd.validations import change_validations, rule_validations, value_validations
from areal.spec.job import JobSpec, RLJob
from areal.spec.runtime import Runtime, RuntimeSpec
from areal.spec.status import JobStatus

GROUP, VERSION = "areal.dev", "v1alpha1"

_COLUMNS = (
    ("Status", "string", ".status.summary", "One word for the conditions."),
    ("Step", "integer", ".status.progress.step", "Steps trained."),
    ("Policy", "integer", ".status.progress.policyVersion", "The newest policy version."),
    ("Reward", "number", ".status.progress.reward", "Mean reward of the last step."),
    ("Gen", "integer", ".status.generation.readyReplicas", "Generation servers that answer."),
    ("Restarts", "integer", ".status.attempts.restarts", "Restarts of the trainers."),
    ("Why", "string", ".status.idle.text", "Why nothing is trained now.", 1),
    ("Age", "date", ".metadata.creationTimestamp", "Since it was made."),
)


def definitions() -> dict[str, dict[str, Any]]:
    """Each definition by its name."""
    made = [
        _definition(
            kind="RLJob",
            plural="rljobs",
            short=["rlj"],
            scope="Namespaced",
            schema=_job_schema(),
            columns=[_column(*column) for column in _COLUMNS],
            subresources={
                "status": {},
                "scale": {
                    "specReplicasPath": ".spec.generation.replicas",
                    "statusReplicasPath": ".status.generation.replicas",
                    "labelSelectorPath": ".status.generation.selector",
                },
            },
        ),
        *(
            _definition(
                kind=kind,
                plural=f"{kind.lower()}s",
                short=short,
                scope=scope,
                schema=_runtime_schema(),
                columns=[
                    _column("Description", "string", ".spec.description", "For people who choose one."),
                    _column(*_COLUMNS[-1]),
                ],
            )
            for kind, short, scope in (
                ("RLRuntime", ["rlrt"], "Namespaced"),
                ("ClusterRLRuntime", ["crlrt"], "Cluster"),
            )
        ),
    ]
    return {definition["metadata"]["name"]: definition for definition in made}


def _job_schema() -> Schema:
    spec = block_schema([JobSpec])
    spec["description"] = _described(RLJob, "spec")
    spec["x-kubernetes-validations"] = [*spec.get("x-kubernetes-validations", []), *change_validations(JobSpec)]
    for field, validations in value_validations().items():
        spec["properties"][field.removeprefix("spec.")]["additionalProperties"]["x-kubernetes-validations"] = (
            validations
        )
    status = {**block_schema([JobStatus], defaults=False), "description": " ".join(str(JobStatus.__doc__).split())}
    return {**_top(RLJob, {"spec": spec, "status": status}), "x-kubernetes-validations": rule_validations()}


def _runtime_schema() -> Schema:
    spec = block_schema([RuntimeSpec])
    spec["description"] = _described(Runtime, "spec")
    return _top(Runtime, {"spec": spec})


def _top(block: Any, properties: dict[str, Schema]) -> Schema:
    own = {
        "apiVersion": {"description": "Version of this object's schema.", "type": "string"},
        "kind": {"description": "Kind of this object.", "type": "string"},
        "metadata": {"type": "object"},
    }
    return {
        "description": " ".join(str(block.__doc__).split()),
        "type": "object",
        "required": ["spec"],
        "properties": {**own, **properties},
    }


def _described(block: Any, name: str) -> str:
    inner = blocks_in(fields_of(block)[name].annotation)[0]
    return " ".join(str(inner.__doc__).split())


def _definition(
    *,
    kind: str,
    plural: str,
    short: list[str],
    scope: str,
    schema: Schema,
    columns: list[dict[str, Any]],
    subresources: dict[str, Any] | None = None,
) -> dict[str, Any]:
    version: dict[str, Any] = {"name": VERSION, "served": True, "storage": True, "additionalPrinterColumns": columns}
    if subresources is not None:
        version["subresources"] = subresources
    version["schema"] = {"openAPIV3Schema": schema}
    names = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        "shortNames": short,
        "categories": ["areal"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": scope, "names": names, "versions": [version]},
    }


def _column(name: str, kind: str, path: str, says: str, priority: int = 0) -> dict[str, Any]:
    """A column of `kubectl get`; with a priority above 0 of `kubectl get -o wide`."""
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path, "description": says}
    column |= {"priority": priority} if priority else {}
    return {**column, "format": "double"} if kind == "number" else column
