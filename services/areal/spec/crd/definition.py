"""The three custom resource definitions as whole objects."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo

from areal.spec.block import Mutability, SpecBlock, blocks_in, fields_of
from areal.spec.check import RULES
from areal.spec.crd.schema import Schema, block_schema
from areal.spec.job import JobSpec, RLJob
from areal.spec.rules import Rule, Severity
from areal.spec.runtime import Runtime, RuntimeSpec
from areal.spec.status import JobStatus
from areal.yaml_file.table import read_table


def definitions() -> dict[str, dict[str, Any]]:
    """Each definition by its name: the frame of `definitions.yaml` with the schema of its kind."""
    schemas = {"RLJob": _job_schema(), "RLRuntime": _runtime_schema(), "ClusterRLRuntime": _runtime_schema()}
    made = {}
    for frame in read_table("areal.spec.crd", "definitions.yaml"):
        spec = frame["spec"]
        version = {**spec["versions"][0], "schema": {"openAPIV3Schema": schemas[spec["names"]["kind"]]}}
        made[frame["metadata"]["name"]] = {**frame, "spec": {**spec, "versions": [version]}}
    return made


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


# ---- The rules of a job in CEL, as an API server wants them: those over several fields, and what may change


Validation = dict[str, Any]


def rule_validations() -> list[Validation]:
    """The rules that need no facts, at the top of the object, each reported at its field."""
    errors = [rule for rule in RULES if rule.cel is not None and rule.severity is Severity.ERROR and not rule.each]
    inside = [rule for rule in errors if not rule.field.startswith("metadata.")]
    return [{**_validation(rule), "fieldPath": f".{rule.field}"} for rule in inside] + [
        _validation(rule) for rule in errors if rule not in inside
    ]


def value_validations() -> dict[str, list[Validation]]:
    """The rules that are asked of each value of a mapping, by the mapping's field."""
    found: dict[str, list[Validation]] = {}
    for rule in RULES:
        if rule.each:
            found.setdefault(rule.field, []).append(_validation(rule))
    return found


def _validation(rule: Rule) -> Validation:
    return {"rule": rule.cel, "message": f"{rule.says} {rule.fix}", "reason": "FieldValueInvalid"}


@dataclass(frozen=True)
class _SchemaPlace:
    """A field below spec. `absent`: the part of the way to it, itself included, that an object may be without."""

    path: str
    absent: tuple[str, ...] = ()
    field: FieldInfo | None = None

    def below(self, name: str, field: FieldInfo, *, may_be_absent: bool) -> "_SchemaPlace":
        path = f"{self.path}.{name}" if self.path else name
        return _SchemaPlace(path, (*self.absent, path) if may_be_absent else self.absent, field)

    def unchanged(self) -> str:
        """CEL: as it was. Adding and removing it are changes too; another spelling of a size is none."""
        same = _same(self)
        if not self.absent:
            return same
        now, before = (" && ".join(f"has({root}.{path})" for path in self.absent) for root in ("self", "oldSelf"))
        return f"({now}) == ({before}) && (!({now}) || {same})"


def change_validations(spec: type[SpecBlock]) -> list[Validation]:
    """On `spec`: fields that never change, and fields that change only while the job is suspended.

    A block whose fields all behave alike is compared as a whole.
    """
    found = []
    for place, change in _unequal([spec], _SchemaPlace("")):
        if change is Mutability.NEVER:
            rule = place.unchanged()
            message = f"{place.path} never changes. Make a new job with the other value."
        else:
            rule = f"self.suspend || oldSelf.suspend || ({place.unchanged()})"
            message = (
                f"{place.path} changes only while the job is suspended. Set suspend: true first, resume it afterwards."
            )
        found.append({"rule": rule, "message": message, "fieldPath": f".{place.path}", "reason": "FieldValueForbidden"})
    return found


def _unequal(blocks: list[type[SpecBlock]], above: _SchemaPlace) -> Iterator[tuple[_SchemaPlace, Mutability]]:
    """Fields, or whole blocks, that may not change freely."""
    fields: dict[str, FieldInfo] = {}
    for block in blocks:
        fields = {**fields_of(block), **fields}
    for name, field in fields.items():
        shared = all(name in fields_of(block) for block in blocks)
        place = above.below(name, field, may_be_absent=not (shared and filled_in(field)))
        inner = blocks_in(field.annotation)
        changes = {*_changes(inner)} if inner else {_change(field)}
        if len(changes) > 1:
            yield from _unequal(inner, place)
        elif (change := changes.pop()) is not Mutability.LIVE:
            yield place, change


def _is_amount(field: FieldInfo) -> bool:
    from areal.spec.crd.schema import field_schema

    return "x-kubernetes-int-or-string" in field_schema(field, defaults=False)


def _same(place: _SchemaPlace) -> str:
    """CEL: a value that is there, and was, is the same. Sizes are compared by value: 2Gi is 2147483648."""
    now, before = f"self.{place.path}", f"oldSelf.{place.path}"
    if place.field is None:
        return f"{now} == {before}"
    if _is_amount(place.field):
        return f"quantity(string({now})) == quantity(string({before}))"
    fields = [field for block in blocks_in(place.field.annotation) for field in fields_of(block).items()]
    if not any(_is_amount(field) for _, field in fields):
        return f"{now} == {before}"
    inner = [_SchemaPlace(place.path).below(name, field, may_be_absent=not filled_in(field)) for name, field in fields]
    return " && ".join(f"({each.unchanged()})" for each in inner)


def _changes(blocks: list[type[SpecBlock]]) -> Iterator[Mutability]:
    for block in blocks:
        for field in fields_of(block).values():
            inner = blocks_in(field.annotation)
            yield from _changes(inner) if inner else (_change(field),)


def _change(field: FieldInfo) -> Mutability:
    extra: dict[str, Any] = field.json_schema_extra  # type: ignore[assignment]
    return Mutability(extra["cluster"])


def filled_in(field: FieldInfo) -> bool:
    """Whether an object in the API server always has a field: it is required, or has a default there."""
    from areal.spec.crd.schema import field_schema

    schema = field_schema(field, defaults=True)
    return field.is_required() or ("default" in schema and not schema.get("nullable"))
