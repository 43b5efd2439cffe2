"""Plain Python values as JSON, nothing lost: what JSON lacks stands in one-key objects whose key starts with `$`.

`{"$tuple": [1, 2]}`, `{"$set": […]}`, `{"$frozenset": […]}`, `{"$bytes": "hex"}`, `{"$complex": [re, im]}`,
`{"$float": "nan"}`, `{"$int": "0x…"}` for integers that other JSON readers would round, and `{"$dict": [[key, value]]}`
for dictionaries whose keys are no plain words. The same value always has the same form, in every process. Values are
of exactly the builtin types: a subclass is refused.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

MAX_DEPTH = 60
MAX_INT_BITS = 16_384
_EXACT_IN_JSON = 1 << 53  # beyond it, readers with doubles round
_HEX_DIGITS = MAX_INT_BITS // 4 + 3
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class TaggedError(ValueError):
    """A value that has no form, or a form that means no value. `path` says where, from the outside in."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self._steps: list[str] = []

    def within(self, step: str) -> "TaggedError":
        self._steps.append(step)
        return self

    @property
    def path(self) -> str:
        return "".join(reversed(self._steps))


def to_tagged(value: Any, depth: int = 0) -> Any:
    """The form of a value. Raises TaggedError for what is no plain value, or is nested too deeply."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return _integer(value)
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if depth >= MAX_DEPTH:
        raise TaggedError(f"nested more than {MAX_DEPTH} deep")
    if kind is list:
        return each_within(to_tagged, value, depth)
    if kind is tuple:
        return {"$tuple": each_within(to_tagged, value, depth)}
    if kind is dict:
        return _mapping(value, depth)
    if kind is set or kind is frozenset:
        return {f"${kind.__name__}": sorted(each_within(to_tagged, value, depth), key=_order)}
    if kind is bytes:
        return {"$bytes": value.hex()}
    if kind is complex:
        return {"$complex": [to_tagged(value.real), to_tagged(value.imag)]}
    raise TaggedError(f"a {kind.__module__}.{kind.__qualname__} is no plain value")


def _integer(value: int) -> Any:
    if -_EXACT_IN_JSON <= value <= _EXACT_IN_JSON:
        return value
    if value.bit_length() > MAX_INT_BITS:
        raise TaggedError(f"an integer of more than {MAX_INT_BITS} bits")
    return {"$int": hex(value)}


def each_within(convert: Callable[[Any, int], Any], items: Iterable[Any], depth: int) -> list[Any]:
    """What `convert` makes of each item, one deeper; a TaggedError of one says which."""
    converted = []
    for index, item in enumerate(items):
        try:
            converted.append(convert(item, depth + 1))
        except TaggedError as error:
            raise error.within(f"[{index}]") from None
    return converted


def _mapping(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    plain = all(type(key) is str and not key.startswith("$") for key in value)
    forms: list[list[Any]] = []
    for key, item in value.items():
        try:
            forms.append([key if plain else to_tagged(key, depth + 1), to_tagged(item, depth + 1)])
        except TaggedError as error:
            raise error.within(f"[{str(key)[:40]!r}]") from None
    return dict(forms) if plain else {"$dict": forms}


def _order(form: Any) -> str:
    import json

    return json.dumps(form)


def from_tagged(form: Any, depth: int = 0) -> Any:
    """The value of a form that a JSON reader made. Raises TaggedError."""
    kind = type(form)
    if form is None or kind is bool or kind is str:
        return form
    if kind is int:
        if form.bit_length() > MAX_INT_BITS:
            raise TaggedError(f"an integer of more than {MAX_INT_BITS} bits")
        return form
    if kind is float:
        if not math.isfinite(form):
            raise TaggedError(f'{form} is no JSON; write {{"$float": "{form}"}}')
        return form
    if depth >= MAX_DEPTH:
        raise TaggedError(f"nested more than {MAX_DEPTH} deep")
    if kind is list:
        return each_within(from_tagged, form, depth)
    if kind is dict:
        if any(type(key) is str and key.startswith("$") for key in form):
            return _special(form, depth)
        values = {}
        for key, item in form.items():
            try:
                values[key] = from_tagged(item, depth + 1)
            except TaggedError as error:
                raise error.within(f"[{key[:40]!r}]") from None
        return values
    raise TaggedError(f"a {kind.__qualname__} is no JSON")


def _special(form: dict[str, Any], depth: int) -> Any:
    if len(form) != 1:
        raise TaggedError('an object with a "$" key has no other; a dictionary with such keys is a $dict')
    ((tag, content),) = form.items()
    match tag, content:
        case "$tuple", list():
            return tuple(each_within(from_tagged, content, depth))
        case (("$set" | "$frozenset"), list()):
            kind = set if tag == "$set" else frozenset
            try:
                return kind(each_within(from_tagged, content, depth))
            except TypeError as error:
                raise TaggedError(f"in a set: {error}") from None
        case "$bytes", str():
            try:
                return bytes.fromhex(content)
            except ValueError:
                raise TaggedError("$bytes holds hexadecimal digits") from None
        case "$complex", [real, imaginary]:
            return complex(_real(real), _real(imaginary))
        case "$float", str() if content in _FLOATS:
            return _FLOATS[content]
        case "$int", str():
            return _from_hex(content)
        case "$dict", list():
            return _pairs(content, depth)
    raise TaggedError(f"{tag} with {str(content)[:40]!r} means nothing")


def _real(form: Any) -> float:
    value = from_tagged(form)
    if type(value) not in (int, float):
        raise TaggedError("$complex holds two numbers")
    try:
        return float(value)
    except OverflowError:
        raise TaggedError("$complex holds two floats") from None


def _from_hex(text: str) -> int:
    if len(text) > _HEX_DIGITS:
        raise TaggedError(f"an integer of more than {MAX_INT_BITS} bits")
    try:
        return int(text, 16)
    except ValueError:
        raise TaggedError("$int holds a hexadecimal integer like 0x1f") from None


def _pairs(content: list[Any], depth: int) -> dict[Any, Any]:
    values: dict[Any, Any] = {}
    for index, pair in enumerate(content):
        try:
            if type(pair) is not list or len(pair) != 2:
                raise TaggedError("$dict holds pairs [key, value]")
            key = from_tagged(pair[0], depth + 1)
            if key in values:
                raise TaggedError(f"the key {str(key)[:40]!r} twice")
            values[key] = from_tagged(pair[1], depth + 1)
        except TypeError as error:
            raise TaggedError(f"as a key: {error}").within(f"[{index}]") from None
        except TaggedError as error:
            raise error.within(f"[{index}]") from None
    return values
