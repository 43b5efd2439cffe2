"""YAML scalar resolution: an unquoted scalar as kubectl and the API server read it.

Pure. PyYAML's own resolver follows YAML 1.1, which reads 1:40 as 100, a date as a date and 1e3 as text; a cluster reads
the first two as text and the last as 1000. One spelling is refused: a number with a leading zero is octal to some
readers and decimal to others.
"""

import math
import re
from decimal import Decimal

Scalar = str | int | float | bool | None

_WORDS: dict[str, Scalar] = {
    **{form: True for word in ("y", "yes", "true", "on") for form in (word, word.capitalize(), word.upper())},
    **{form: False for word in ("n", "no", "false", "off") for form in (word, word.capitalize(), word.upper())},
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **{f"{sign}{form}": math.inf for sign in ("", "+") for form in (".inf", ".Inf", ".INF")},
    **{f"-{form}": -math.inf for form in (".inf", ".Inf", ".INF")},
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*|0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_WHOLE_BELOW = 1e21  # whole floats below it travel as integers: JSON writes them without a fraction
_INT64 = range(-(1 << 63), 1 << 63)  # a cluster keeps larger integers as doubles
_DOUBLE_BITS = 1000  # of an integer that a double can hold
_LONGEST = 400  # characters of a number; a longer one is text


class AmbiguousNumberError(ValueError):
    """A number that two readers of YAML read differently."""


def plain(text: str) -> Scalar:
    """The value of an unquoted scalar; raises AmbiguousNumberError for a number with a leading zero."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789" or len(text) > _LONGEST:
        return text
    number = text if text[0] == "." else text.replace("_", "")
    if _LEADING_ZERO.fullmatch(number):
        raise AmbiguousNumberError(
            f"{text} is octal to some readers of YAML and decimal to others: write the number without leading zeros, "
            "or put it in quotes where text is meant"
        )
    if _INTEGER.fullmatch(number):
        whole = int(number, 0)
        return whole if whole in _INT64 or whole.bit_length() > _DOUBLE_BITS else _rounded(float(whole))
    if _FLOAT.fullmatch(number):
        value = float(number)
        if math.isinf(value):
            return text
        return _rounded(value)
    return text


def _rounded(value: float) -> int | float:
    """A double as JSON writes it, with as few digits as tell it apart."""
    return int(Decimal(repr(value))) if value.is_integer() and abs(value) < _WHOLE_BELOW else value


def tagged(tag: str, text: str) -> Scalar:
    """The value of a scalar with a tag such as !!int; raises ValueError when the text is none of that type."""
    if (kind := tag.removeprefix("tag:yaml.org,2002:")) == "str":
        return text
    found = plain(text)
    types: dict[str, tuple[type, ...]] = {
        "int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),),
    }  # fmt: skip
    if kind not in types:
        raise ValueError(f"the tag {tag} is not for job files")
    if not isinstance(found, types[kind]) or (isinstance(found, bool) and kind != "bool"):
        raise ValueError(f"{text!r} is no {kind}")
    return found


def key(value: Scalar) -> str:
    """A mapping's key as JSON writes it; raises ValueError for null."""
    if value is None:
        raise ValueError("a field needs a name")
    return str(value).lower() if isinstance(value, bool) else str(value)
