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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from areal.errors import ConfigError
from areal.spec.rules_cluster import OPEN_ENV, RESERVED_ANNOTATIONS, RESERVED_ENV, RESERVED_LABELS

Json = dict[str, Any]

_PROTOCOL = "TCP"  # of a port that names none


@dataclass(frozen=True)
class MergeShape:
    """How one place of a template merges, and what it must be where the operator relies on that.

    `key` says that it is a list whose items merge by that; `added` that it is a list which only grows; `is_map`, or
    `fields` below it, that it is a map. Of the fields in `one_of`, only the last one given stays.
    """

    fields: "Mapping[str, MergeShape]" = field(default_factory=dict)
    key: Callable[[Json], tuple[Any, ...] | None] | None = None
    added: bool = False
    is_map: bool = False
    one_of: tuple[frozenset[str], ...] = ()
    only_one_but: frozenset[str] | None = None  # every field outside of these excludes every other


_PLAIN = MergeShape()
_MAP = MergeShape(is_map=True)


def _by(*names: str) -> Callable[[Json], tuple[Any, ...] | None]:
    """A key of these fields, all of which an item must have."""

    def key(item: Json) -> tuple[Any, ...] | None:
        values = tuple(item.get(name) for name in names)
        return values if all(isinstance(value, str) for value in values) else None

    return key


def _port_key(item: Json) -> tuple[Any, ...] | None:
    number = item.get("containerPort")
    protocol = item.get("protocol") or _PROTOCOL
    return (number, protocol) if isinstance(number, int) and isinstance(protocol, str) else None


_HANDLERS = frozenset({"exec", "grpc", "httpGet", "tcpSocket", "sleep"})
_PROBE = MergeShape(is_map=True, one_of=(_HANDLERS,))
_CONTAINER_FIELDS = {
    "env": MergeShape(key=_by("name"), one_of=(frozenset({"value", "valueFrom"}),)),
    "envFrom": MergeShape(added=True),
    "lifecycle": MergeShape(fields={"postStart": _PROBE, "preStop": _PROBE}),
    "livenessProbe": _PROBE,
    "ports": MergeShape(key=_port_key),
    "readinessProbe": _PROBE,
    "resources": MergeShape(fields={"claims": MergeShape(key=_by("name")), "limits": _MAP, "requests": _MAP}),
    "securityContext": _MAP,
    "startupProbe": _PROBE,
    "volumeDevices": MergeShape(key=_by("devicePath")),
    "volumeMounts": MergeShape(key=_by("mountPath")),
}
_CONTAINERS = MergeShape(key=_by("name"), fields=_CONTAINER_FIELDS)
_RULE = "DuringSchedulingIgnoredDuringExecution"
_TERMS = MergeShape(fields={f"{strength}{_RULE}": MergeShape(added=True) for strength in ("required", "preferred")})
_POD_FIELDS = {
    "affinity": MergeShape(fields={"nodeAffinity": _MAP, "podAffinity": _TERMS, "podAntiAffinity": _TERMS}),
    "containers": _CONTAINERS,
    "ephemeralContainers": _CONTAINERS,
    "hostAliases": MergeShape(key=_by("ip")),
    "imagePullSecrets": MergeShape(key=_by("name")),
    "initContainers": _CONTAINERS,
    "nodeSelector": _MAP,
    "resourceClaims": MergeShape(key=_by("name")),
    "schedulingGates": MergeShape(key=_by("name")),
    "securityContext": _MAP,
    "tolerations": MergeShape(added=True),
    "topologySpreadConstraints": MergeShape(key=_by("topologyKey", "whenUnsatisfiable")),
    "volumes": MergeShape(key=_by("name"), only_one_but=frozenset({"name"})),
}
POD_TEMPLATE = MergeShape(
    fields={
        "metadata": MergeShape(fields={"annotations": _MAP, "labels": _MAP}),
        "spec": MergeShape(fields=_POD_FIELDS),
    }
)
"""How a pod template (`metadata` and `spec`) merges."""


def merge(base: Json, *patches: Json, shape: MergeShape = POD_TEMPLATE, where: str = "template") -> Json:
    """`base` with `patches` over it, in order.

    Raises ConfigError, which names the place below `where`, when a map is no map, a list that merges by a key is no
    list of maps, or an item lacks the key.
    """
    merged: Json = _merge_maps({}, base, shape, where)
    for patch in patches:
        merged = _merge_maps(merged, patch, shape, where)
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
    for group in shape.one_of:
        if chosen := given & group:
            found |= (base.keys() & group) - chosen
    if shape.only_one_but is not None and (chosen := given - shape.only_one_but):
        found |= base.keys() - shape.only_one_but - chosen
    return found


def _merge_values(base: Any, patch: Any, shape: MergeShape, where: str) -> Any:
    if shape.key is not None:
        return _merge_by_key(base or [], patch, shape, where)
    if shape.added:
        items = [_merge_values(None, item, _PLAIN, where) for item in _maps(patch, where)]
        return _distinct([*(base or []), *items])
    if (shape.is_map or shape.fields) and not isinstance(patch, dict):
        raise ConfigError(f"{where}: expected a map, found {str(patch)[:80]}", fix="Write it as a map.")
    if isinstance(patch, dict):
        return _merge_maps(base if isinstance(base, dict) else {}, patch, shape, where)
    if isinstance(patch, list):
        return [_merge_values(None, item, _PLAIN, where) for item in patch]
    return copy.deepcopy(patch)


def _merge_by_key(base: list[Json], patch: Any, shape: MergeShape, where: str) -> list[Json]:
    assert shape.key is not None
    merged: dict[tuple[Any, ...], Json] = {_key(item, shape, where): item for item in base}
    for item in _maps(patch, where):
        key = _key(item, shape, where)
        place = f"{where}[{'/'.join(str(part) for part in key)}]"
        merged[key] = _merge_maps(merged.get(key, {}), item, shape, place)
    return list(merged.values())


def _key(item: Json, shape: MergeShape, where: str) -> tuple[Any, ...]:
    assert shape.key is not None
    key = shape.key(item)
    if key is None:
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
