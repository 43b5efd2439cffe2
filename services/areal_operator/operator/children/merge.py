"""Strategic merge of pod templates: patches of the platform and of the user over the operator's defaults.

Owns how a patch changes a template: maps merge key by key, null removes a key, lists of named things merge by their
key (containers, variables, volumes by name; mounts by path; ports by number and protocol), tolerations and affinity
terms are added, every other list is replaced. Where only one of several fields may be set (a volume's source, a probe's
handler, a variable's value), the patch's one wins. Pure: no argument is changed, and the result shares nothing with
them.

Merging the same patch again changes nothing, and what a patch does not name keeps its place. A patch that sets what
only the operator sets (an environment variable, a label, an annotation) is refused with the field's name, not silently
replaced: a variable that does nothing costs an afternoon.
"""

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from areal.errors import ConfigError
from areal.spec.rules_cluster import OPEN_ENV, RESERVED_ANNOTATIONS, RESERVED_ENV, RESERVED_LABELS
from areal.yaml_file.table import read_table

Json = dict[str, Any]

_PROTOCOL = "TCP"  # of a port that names none


@dataclass(frozen=True)
class MergeShape:
    """How one place of a template merges: a row of `pod_template.yaml`, which says what the fields mean."""

    fields: "Mapping[str, MergeShape]" = field(default_factory=dict)
    key: tuple[str, ...] = ()
    added: bool = False
    map: bool = False
    one_of: frozenset[str] = frozenset()
    alone: bool = False


def _shape(row: Json) -> MergeShape:
    below = {name: _shape(inner) for name, inner in row.get("fields", {}).items()}
    lists = {"key": tuple(row.get("key", ())), "one_of": frozenset(row.get("one_of", ()))}
    return MergeShape(**{**row, **lists, "fields": below})


_PLAIN = MergeShape()
_POD_TEMPLATE = _shape({"fields": read_table("areal_operator.operator.children", "pod_template.yaml")})


def merge(base: Json, *patches: Json, where: str = "template") -> Json:
    """`base` with `patches` over it, in order.

    Raises ConfigError, which names the place below `where`, when a map is no map, a list that merges by a key is no
    list of maps, or an item lacks the key.
    """
    merged: Json = {}
    for patch in (base, *patches):
        merged = _merge_maps(merged, patch, _POD_TEMPLATE, where)
    return merged


def _merge_maps(base: Json, patch: Json, shape: MergeShape, where: str) -> Json:
    merged = dict(base)
    for rivals in _rivals(base, patch, shape):
        merged.pop(rivals, None)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
            continue
        below = shape.fields.get(name, _PLAIN)
        merged[name] = _merge_values(merged.get(name), value, below, f"{where}.{name}")
    return merged


def _rivals(base: Json, patch: Json, shape: MergeShape) -> set[str]:
    """Fields of `base` that can't stand beside those of `patch`."""
    given = {name for name, value in patch.items() if value is not None}
    found: set[str] = set()
    if chosen := given & shape.one_of:
        found |= (base.keys() & shape.one_of) - chosen
    if shape.alone and (chosen := given - {*shape.key}):
        found |= base.keys() - {*shape.key} - chosen
    return found


def _merge_values(base: Any, patch: Any, shape: MergeShape, where: str) -> Any:
    if shape.key:
        return _merge_by_key(base or [], patch, shape, where)
    if shape.added:
        items = [_merge_values(None, item, _PLAIN, where) for item in _maps(patch, where)]
        return _distinct([*(base or []), *items])
    if (shape.map or shape.fields) and not isinstance(patch, dict):
        raise ConfigError(f"{where}: expected a map, found {str(patch)[:80]}", fix="Write it as a map.")
    if isinstance(patch, dict):
        return _merge_maps(base if isinstance(base, dict) else {}, patch, shape, where)
    if isinstance(patch, list):
        return [_merge_values(None, item, _PLAIN, where) for item in patch]
    return copy.deepcopy(patch)


def _merge_by_key(base: list[Json], patch: Any, shape: MergeShape, where: str) -> list[Json]:
    merged: dict[tuple[Any, ...], Json] = {_key(item, shape, where): item for item in base}
    for item in _maps(patch, where):
        key = _key(item, shape, where)
        place = f"{where}[{'/'.join(str(part) for part in key)}]"
        merged[key] = _merge_maps(merged.get(key, {}), item, shape, place)
    return list(merged.values())


def _key(item: Json, shape: MergeShape, where: str) -> tuple[Any, ...]:
    named = {**item, "protocol": item.get("protocol") or _PROTOCOL}
    key = tuple(named.get(name) for name in shape.key)
    kinds = [int if name == "containerPort" else str for name in shape.key]
    if not all(map(isinstance, key, kinds)):
        raise ConfigError(
            f"{where}: an item has no name to merge it by: {str(item)[:80]}",
            fix="Give it its name (a mount its mountPath, a port its containerPort).",
        )
    return key


def _maps(value: Any, where: str) -> list[Json]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ConfigError(f"{where}: expected a list of maps, found {str(value)[:80]}", fix="Write it as a list.")
    return value


def _distinct(items: list[Json]) -> list[Json]:
    """The items without repetitions, in order."""
    found: list[Json] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found


def refuse_env(names: Iterable[str], field: str) -> None:
    """Raise ConfigError for the first reserved variable. `field` says where: `spec.podTemplate.trainer.env`."""
    for index, name in enumerate(names):
        if name != OPEN_ENV and re.match(RESERVED_ENV, name):
            raise ConfigError(
                f"{field}[{index}].name: {name} is set by the operator", fix=f"Remove {name} from {field}."
            )


def refuse_labels(labels: Iterable[str], field: str) -> None:
    """Raise ConfigError for a label by which pods are found."""
    for name in labels:
        if re.match(RESERVED_LABELS, name):
            raise ConfigError(f"{field}: the label {name} is set by the operator", fix=f"Remove {name} from {field}.")


def refuse_annotations(annotations: Iterable[str], field: str) -> None:
    """Raise ConfigError for an annotation that is the operator's or would loosen the pod's confinement."""
    for name in annotations:
        if re.match(RESERVED_ANNOTATIONS, name):
            raise ConfigError(
                f"{field}: the annotation {name} is not for jobs",
                fix=f"Remove {name} from {field}; the platform's runtime may set what concerns confinement.",
            )


def refuse_template(template: Mapping[str, Any], field: str) -> None:
    """Raise ConfigError for what a runtime's pod template may not set: reserved labels, and variables of `main`."""
    metadata = template.get("metadata") or {}
    refuse_labels(metadata.get("labels") or {}, f"{field}.metadata.labels")
    for container in (template.get("spec") or {}).get("containers") or ():
        names = [str(variable.get("name", "")) for variable in container.get("env") or ()]
        refuse_env(names, f"{field}.spec.containers[{container.get('name')}].env")
