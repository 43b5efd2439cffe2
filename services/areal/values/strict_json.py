"""Strict JSON reader: what it reads can be written again by any encoder, sent as UTF-8, and means the same there.

Python's own takes NaN, half an emoji and numbers of any size, and ends by a RecursionError in deep texts; orjson turns
2**64 into a float. These are refused here, or kept exact. Pure.
"""

import json
import math
import re
from typing import Any

MOST_DEPTH = 64
"""Objects and lists within each other: more is no call of a tool."""
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
_SPACE = re.compile(r"[ \t\n\r]*")


def read_json(text: str, *, most_depth: int = MOST_DEPTH) -> Any:
    """The value of a JSON text; of a key that comes twice the last value.

    Raises ValueError for what is no JSON, NaN and infinities, numbers beyond a float or of more than 4,300 digits, a
    lone surrogate, and more than `most_depth` levels of brackets, which are counted before anything is read.
    """
    _refuse_deep(text, most_depth)
    value = _DECODER.decode(text)
    _refuse_surrogates(text)
    return value


def first_json(text: str, start: int = 0) -> tuple[Any, int]:
    """The value at `start` (white space may come before it), and where it ends. Raises ValueError as `read_json`."""
    start = _space(text, start)
    _refuse_deep(text, MOST_DEPTH, start)
    value, end = _DECODER.raw_decode(text, start)
    _refuse_surrogates(text[start:end])
    return value, end


def members(text: str) -> dict[str, tuple[Any, str]]:
    """The values of a JSON object by key, each with its own text. Raises ValueError as `read_json`."""
    if not isinstance(read_json(text), dict):
        raise ValueError("no object")
    found: dict[str, tuple[Any, str]] = {}
    at = _space(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _space(text, _space(text, at) + 1)  # behind the colon
        value, at = _DECODER.raw_decode(text, start)
        found[key] = value, text[start:at]
        at = _space(text, at)
        if text[at] == ",":
            at = _space(text, at + 1)
    return found


def as_utf8(text: str) -> str:
    """A text that can be sent: half a surrogate pair becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _refuse_deep(text: str, most: int, start: int = 0) -> None:
    if text.count("{", start) + text.count("[", start) <= most:
        return
    depth = 0
    for found in _BRACKET.finditer(text, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
        if depth > most:
            raise ValueError(f"more than {most} levels of brackets")
        if depth <= 0 and found[0] in ("}", "]"):
            return  # the first value ends here


def _refuse_surrogates(text: str) -> None:
    """Half an emoji, as it is or escaped, is what no UTF-8 can say."""
    text.encode()
    if "\\ud" in text.lower() and any(found[1] for found in _ESCAPE.finditer(text)):
        raise ValueError("a surrogate stands alone")


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is beyond a float")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
