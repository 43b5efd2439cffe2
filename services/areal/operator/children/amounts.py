"""Amounts of resources as Kubernetes writes them, as far as requests and limits must be compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from areal.operator.children.wanted import Json

_SCALES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15),
    "E": Decimal(10**18), "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|)(?:[eE]([+-]?[0-9]+))?")


def amount(text: str | int | float) -> Decimal | None:
    """The number that an amount means; None when it is no amount."""
    match = _TEXT.fullmatch(str(text))
    if match is None or (match[2] and match[3]):
        return None
    return Decimal(match[1]) * _SCALES[match[2]] * Decimal(10) ** int(match[3] or 0)


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
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if count and count % int(_SCALES[unit]) == 0:
            return f"{count // int(_SCALES[unit])}{unit}"
    return str(count)


def _is_default(defaults: Mapping[str, Mapping[str, str]], kind: str, name: str, value: str) -> bool:
    return (defaults.get(kind) or {}).get(name) == value
