"""Reading a dataset row: typed columns, JSON that may be text, limits in the units that datasets use.

Every mistake is a DataError that names the column and the fix.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from areal.errors import DataError

from areal_judge.sandbox.values import DEFAULT_LIMITS, Limits

Row = Mapping[str, Any]

MAX_TEXT_CHARS = 128 << 20
_LEAST_MEMORY_BYTES = 64 << 20  # an interpreter and its program's source
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(seconds?|s|milliseconds?|ms)?\s*", re.IGNORECASE)
_MEMORY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(bytes?|b|kilobytes?|kb|megabytes?|mb|gigabytes?|gb)?\s*", re.IGNORECASE)
_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def refuse(at: str, message: str, fix: str) -> NoReturn:
    raise DataError(f"row.{at}: {message}", fix=fix)


def has(row: Row, *names: str) -> bool:
    """Whether the row has a value in every one of these columns."""
    return all(row.get(name) not in (None, "", [], {}) for name in names)


def text(row: Row, name: str, default: str | None = None) -> str:
    """A column of text; required unless a default is given, which also stands for null."""
    value = row.get(name)
    if value is None and default is not None:
        return default
    if value is None:
        refuse(name, "missing", f"give the column {name!r}, or name another format")
    if not isinstance(value, str):
        refuse(name, f"a text is due, not {type(value).__name__}", f"write {name!r} as a string")
    return value


def texts(row: Row, name: str) -> list[str]:
    """A column with a list of texts; absent and null are none."""
    value = row.get(name)
    if value is None:
        return []
    if isinstance(value, str):
        value = parsed(value, name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        refuse(name, "a list of texts is due", f"write {name!r} as a list of strings")
    return list(value)


def parsed(value: Any, at: str) -> Any:
    """`value` itself, or what it says when it is JSON text."""
    if not isinstance(value, str | bytes):
        return value
    if len(value) > MAX_TEXT_CHARS:
        refuse(at, f"more than {MAX_TEXT_CHARS >> 20} MiB", "drop the largest cases")
    try:
        return json.loads(value)
    except RecursionError:
        refuse(at, "JSON that is nested too deeply", "drop the case")
    except (ValueError, UnicodeDecodeError) as error:
        refuse(at, f"no JSON: {error}", f"write {at!r} as JSON text, or as an object")


def mapping(value: Any, at: str) -> dict[str, Any]:
    """An object, or JSON text of one."""
    found = parsed(value, at)
    if not isinstance(found, Mapping):
        refuse(at, f"an object is due, not {type(found).__name__}", "see docs/reward.md for the formats")
    return dict(found)


def sequence(value: Any, at: str) -> list[Any]:
    """A list, or JSON text of one."""
    found = parsed(value, at)
    if not isinstance(found, list | tuple):
        refuse(at, f"a list is due, not {type(found).__name__}", "see docs/reward.md for the formats")
    return list(found)


def flag(row: Row, name: str, default: bool) -> bool:
    value = row.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        refuse(name, "true or false is due", f"write {name!r} as a boolean")
    return value


def number(value: Any, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        refuse(at, f"{value!r} is no number", "give a finite number, or leave the column out")
    return float(value)


def seconds(value: Any, at: str) -> float | None:
    """2, 2.5, "2.0 seconds", "500 ms", {"seconds": 2, "nanos": 0}; None when nothing (or zero) is said."""
    if value is None or value == "":
        return None
    if isinstance(value, Mapping):
        whole, nanos = value.get("seconds") or 0, value.get("nanos") or 0
        found = number(whole, f"{at}.seconds") + number(nanos, f"{at}.nanos") * 1e-9
    elif isinstance(value, str):
        match = _TIME.fullmatch(value)
        if match is None:
            refuse(at, f"{value[:40]!r} is no time", 'write seconds as a number, or "2.0 seconds"')
        found = float(match[1]) * (1e-3 if (match[2] or "s").lower().startswith("m") else 1.0)
    else:
        found = number(value, at)
    if found < 0:
        refuse(at, f"{value!r} is negative", "give a time above 0, or leave the column out")
    return found or None


def memory(value: Any, at: str) -> int | None:
    """Bytes as a number, or "256.0 megabytes"; None when nothing (or zero) is said."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        match = _MEMORY.fullmatch(value)
        if match is None:
            refuse(at, f"{value[:40]!r} is no amount of memory", 'write bytes as a number, or "256 megabytes"')
        found = float(match[1]) * _UNITS[(match[2] or "b")[0].lower()]
    else:
        found = number(value, at)
    if found < 0:
        refuse(at, f"{value!r} is negative", "give an amount above 0, or leave the column out")
    return int(found) or None


def limits(time_s: float | None = None, memory_bytes: int | None = None, base: Limits = DEFAULT_LIMITS) -> Limits:
    """A data set's limits: the time is of the processor; a busy machine gets twice as much by the clock."""
    found = base
    if time_s is not None:
        found = replace(found, cpu_s=time_s, wall_s=2 * time_s + 1)
    if memory_bytes is not None:
        found = replace(found, memory_bytes=max(memory_bytes, _LEAST_MEMORY_BYTES))
    return found
