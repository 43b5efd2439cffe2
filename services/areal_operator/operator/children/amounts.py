"""Amounts of resources as Kubernetes writes them, as far as requests and limits must be compared."""

from __future__ import annotations

from collections.abc import Mapping

from areal.spec.quantity import amount

from areal_operator.operator.children.wanted import Json

_SIZES = {"Ti": 1 << 40, "Gi": 1 << 30, "Mi": 1 << 20, "Ki": 1 << 10}


def fitted(resources: Json, defaults: Json) -> Json:
    """Resources whose requests fit their limits, where one of the two is a default of ours that nobody meant to keep.

    A job that asks for more memory than our default limit means to have it, and one that sets a lower limit means that.
    Where both were given, nothing is changed: the API server names the mistake.
    """
    requests, limits = dict(resources.get("requests") or {}), dict(resources.get("limits") or {})
    for name in sorted(requests.keys() & limits.keys()):
        asked, most = amount(requests[name]), amount(limits[name])
        if asked is None or most is None or asked <= most:
            continue
        if _is_default(defaults, "limits", name, limits[name]):
            limits[name] = requests[name]
        elif _is_default(defaults, "requests", name, requests[name]):
            requests[name] = limits[name]
    changed = {"requests": requests, "limits": limits}
    return {**resources, **{name: values for name, values in changed.items() if values}}


def size(count: int) -> str:
    """So many bytes as people write them: 20Gi."""
    for unit, scale in _SIZES.items():
        if count and count % scale == 0:
            return f"{count // scale}{unit}"
    return str(count)


def _is_default(defaults: Mapping[str, Mapping[str, str]], kind: str, name: str, value: str) -> bool:
    return (defaults.get(kind) or {}).get(name) == value
