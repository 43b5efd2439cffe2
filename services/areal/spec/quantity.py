"""Sizes in bytes as people and Kubernetes write them: 512Mi, 2Gi, 1.5G, 1073741824; amounts of any resource: 500m."""

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator

from areal.spec.text import WireSchema, quantity_schema

_UNITS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)(|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)")
_SCALES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "E": Decimal(10**18), "Ei": Decimal(2**60),
    **{unit: Decimal(scale) for unit, scale in _UNITS.items()},
}  # fmt: skip
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|)(?:[eE]([+-]?[0-9]+))?")
_PATTERN = r"^[0-9]{1,18}(\.[0-9]{1,9})?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"  # the same for an API server


def parse_bytes(text: str) -> int:
    """`"2Gi"` → 2147483648; raises ValueError for text that is no size or no whole number of bytes."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size in bytes: write a number, or one with Ki, Mi, Gi, Ti (or k, M, G, T)")
    size = Decimal(match[1]) * _UNITS[match[2]]
    if size != int(size):
        raise ValueError(f"{text!r} is no whole number of bytes")
    return int(size)


def amount(text: str | int | float) -> Decimal | None:
    """The number that an amount of a resource means; None when it is no amount."""
    match = _AMOUNT.fullmatch(str(text))
    if match is None or (match[2] and match[3]):
        return None
    return Decimal(match[1]) * _SCALES[match[2]] * Decimal(10) ** int(match[3] or 0)


def kubernetes_bytes(count: int) -> str:
    """So many bytes as Kubernetes writes them: 20Gi."""
    unit = next((unit for unit in ("Ti", "Gi", "Mi", "Ki") if count and count % _UNITS[unit] == 0), "")
    return f"{count // _UNITS[unit]}{unit}"


def show_bytes(size: int) -> str:
    """A size for people: 1536 → `1.5 KiB`."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount == int(amount) else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def _coerce(value: Any) -> Any:
    size = parse_bytes(value) if isinstance(value, str) else value
    if type(size) is int and size.bit_length() <= 64 and int(float(size)) != size:
        raise ValueError(f"{size} has more digits than a cluster counts with: write a rounder size, such as 900Pi")
    return size


Bytes = Annotated[int, BeforeValidator(_coerce), WireSchema(quantity_schema(_PATTERN))]
"""A size in a job file: a number of bytes or a string with a unit."""
