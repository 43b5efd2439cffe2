"""Result sanitiser: turns what a program returned into plain builtins that the codec carries.

Standard classes that behave as a builtin (a Counter is a dict, a named tuple a tuple, numpy's numbers are numbers)
become that builtin, here in the cell: only plain content crosses, so nothing is won by posing as one. Whatever else is
no plain builtin is refused, and it is told apart whether it is merely foreign or poses as a builtin.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict
from typing import Any

from areal_judge.judge.codec import MAX_DEPTH, TOO_BIG, CodecError

_DICTS = (Counter, OrderedDict, defaultdict)
_NUMPY_SCALARS = ("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
                  "float32", "float64", "complex64", "complex128", "str_", "bytes_")  # fmt: skip
_type, _dict, _tuple, _list, _set, _frozenset = type, dict, tuple, list, set, frozenset
_mro_of = type.__dict__["__mro__"].__get__
_namespace_of = type.__dict__["__dict__"].__get__
_name_of = type.__dict__["__name__"].__get__
_BUILTINS = (int, float, str, bool, bytes, list, tuple, set, frozenset, dict, complex)


class ForeignTypeError(Exception):
    """A value of a type that can't be carried. `posing`: its class derives from a builtin, or overrides equality."""

    def __init__(self, name: str, posing: bool) -> None:
        super().__init__(f"a result of type {name[:100]} is no plain builtin value")
        self.posing = posing


def plain(value: Any) -> Any:
    """A copy of builtin values only. Raises ForeignTypeError, or CodecError when it is nested too deeply."""
    return _plain(value, 0, _numpy_scalars())


def _plain(value: Any, depth: int, scalars: tuple[type, ...]) -> Any:
    if depth > MAX_DEPTH:
        raise CodecError(TOO_BIG, "nested too deeply")
    kind = _type(value)
    if kind is _list:
        return [_plain(item, depth + 1, scalars) for item in value]
    if kind is _tuple:
        return _tuple([_plain(item, depth + 1, scalars) for item in value])
    if kind is _set or kind is _frozenset:
        return kind([_plain(item, depth + 1, scalars) for item in value])
    if kind is _dict or kind in _DICTS:
        pairs = _list(_dict.items(value))
        return {_plain(key, depth + 1, scalars): _plain(item, depth + 1, scalars) for key, item in pairs}
    if value is None or kind in _BUILTINS:
        return value
    if kind in scalars:
        return _plain(value.item(), depth + 1, ())
    mro = _mro_of(kind)
    if _tuple in mro and "_fields" in _namespace_of(kind) and not _overrides_equality(mro):
        return _tuple([_plain(item, depth + 1, scalars) for item in _tuple.__iter__(value)])
    posing = any(base in _BUILTINS for base in mro) or _overrides_equality(mro)
    raise ForeignTypeError(_name_of(kind), posing)


def _overrides_equality(mro: tuple[type, ...]) -> bool:
    return any("__eq__" in _namespace_of(base) for base in mro if base is not object and base not in _BUILTINS)


def _numpy_scalars() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy")
    found = [getattr(numpy, name, None) for name in _NUMPY_SCALARS] if numpy is not None else []
    return _tuple([kind for kind in found if isinstance(kind, type)])
