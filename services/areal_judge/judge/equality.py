"""Equality of a call's result and the expected value. A pure function of two plain values.

Owns what "equal" means for function results: a bool is no number, 1 and 1.0 are the same number, not-a-number equals
nothing unless asked, floats are exact unless the checker gives a tolerance. Both values are plain builtins (the codec
made one of them), so that no comparison runs code of a program. Nothing here hashes the program's values: unordered
comparison sorts, and costs n log n whatever the values are.
"""

import math
from typing import Any

from areal_judge.judge.codec import encode
from areal_judge.judge.values import Checker

MAX_MATCHING = 400  # elements to pair one by one when a tolerance leaves them without an order


def same(result: Any, expected: Any, checker: Checker) -> bool:
    """Whether `result` counts as `expected`. Raises CodecError when `expected` is not plain: the suite's fault."""
    encode(expected)
    if checker.unordered and isinstance(expected, list | tuple | set | frozenset):
        if checker.tuples_are_lists:
            alike = isinstance(result, list | tuple | set | frozenset)
        else:
            alike = _family(result, checker) == _family(expected, checker)
        return alike and _multiset(list(result), list(expected), checker)
    return _same(result, expected, checker)


def _same(a: Any, b: Any, checker: Checker) -> bool:
    family = _family(a, checker)
    if family != _family(b, checker):
        return False
    if family == "number":
        return _numbers(a, b, checker)
    if family == "complex":
        return _numbers(a.real, b.real, checker) and _numbers(a.imag, b.imag, checker)
    if family in ("list", "tuple"):
        return len(a) == len(b) and all(_same(x, y, checker) for x, y in zip(a, b, strict=True))
    if family == "set":
        return _multiset(list(a), list(b), checker)
    if family == "dict":
        return _dicts(a, b, checker)
    return bool(a == b)


def _family(value: Any, checker: Checker) -> str:
    kind = type(value)
    if kind in (int, float) or (kind is bool and checker.bool_is_int):
        return "number"
    if kind is tuple and checker.tuples_are_lists:
        return "list"
    return "set" if kind is frozenset else kind.__name__


def _numbers(a: float, b: float, checker: Checker) -> bool:
    if a != a or b != b:
        return checker.nan_equal and a != a and b != b
    if a == b:
        return True
    if (isinstance(a, int) and isinstance(b, int)) or not (checker.absolute or checker.relative):
        return False
    try:
        x, y = float(a), float(b)
    except OverflowError:
        return False
    if math.isinf(x) or math.isinf(y):
        return False
    return abs(x - y) <= checker.absolute + checker.relative * abs(y)  # numpy.allclose's bound


def _dicts(a: dict[Any, Any], b: dict[Any, Any], checker: Checker) -> bool:
    """Keys are compared exactly, so that sorting pairs them."""
    if len(a) != len(b):
        return False
    mine = sorted(((_key(key, checker), value) for key, value in a.items()), key=lambda pair: pair[0])
    theirs = sorted(((_key(key, checker), value) for key, value in b.items()), key=lambda pair: pair[0])
    return all(x[0] == y[0] and _same(x[1], y[1], checker) for x, y in zip(mine, theirs, strict=True))


def _multiset(a: list[Any], b: list[Any], checker: Checker) -> bool:
    if len(a) != len(b):
        return False
    if not checker.nan_equal and (_has_nan(a) or _has_nan(b)):
        return False
    mine = sorted(((_key(value, checker), value) for value in a), key=lambda pair: pair[0])
    theirs = sorted(((_key(value, checker), value) for value in b), key=lambda pair: pair[0])
    if not (checker.absolute or checker.relative):
        return all(x[0] == y[0] for x, y in zip(mine, theirs, strict=True))
    left, right = _without_common(mine, theirs)
    return _matched(left, right, checker)


def _without_common(a: list[tuple[bytes, Any]], b: list[tuple[bytes, Any]]) -> tuple[list[Any], list[Any]]:
    """What two sorted lists don't share exactly."""
    left: list[Any] = []
    right: list[Any] = []
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i][0] == b[j][0]:
            i, j = i + 1, j + 1
        elif a[i][0] < b[j][0]:
            left.append(a[i][1])
            i += 1
        else:
            right.append(b[j][1])
            j += 1
    return left + [value for _, value in a[i:]], right + [value for _, value in b[j:]]


def _matched(a: list[Any], b: list[Any], checker: Checker) -> bool:
    """Pairs what is close. Numbers pair best in their order; other values are paired greedily, up to a bound."""
    if all(type(value) in (int, float) and value == value for value in (*a, *b)):
        return all(_numbers(x, y, checker) for x, y in zip(sorted(a), sorted(b), strict=True))
    if len(a) > MAX_MATCHING:
        return False
    rest = list(b)
    for value in a:
        found = next((index for index, other in enumerate(rest) if _same(value, other, checker)), None)
        if found is None:
            return False
        rest.pop(found)
    return True


def _has_nan(value: Any) -> bool:
    kind = type(value)
    if kind in (float, complex):
        return bool(value != value)
    if kind is dict:
        return any(_has_nan(key) or _has_nan(item) for key, item in value.items())
    return kind in (list, tuple, set, frozenset) and any(_has_nan(item) for item in value)


def _key(value: Any, checker: Checker) -> bytes:
    """Bytes that two values share exactly when they are the same without tolerance."""
    kind = type(value)
    if kind is bool and checker.bool_is_int:
        return encode(int(value))
    if kind is float:
        if value != value:
            return b"n"  # one of its many bit patterns
        return encode(int(value)) if not math.isinf(value) and value == int(value) else encode(value)
    if kind is complex:
        return b"c" + _key(value.real, checker) + _key(value.imag, checker)
    if kind is list or kind is tuple:
        tag = b"l" if kind is list or checker.tuples_are_lists else b"t"
        return tag + _count(value) + b"".join(_key(item, checker) for item in value)
    if kind in (set, frozenset):
        return b"S" + _count(value) + b"".join(sorted(_key(item, checker) for item in value))
    if kind is dict:
        pairs = [_key(key, checker) + _key(item, checker) for key, item in value.items()]
        return b"d" + _count(value) + b"".join(sorted(pairs))
    return encode(value)


def _count(value: Any) -> bytes:
    return len(value).to_bytes(4, "little")
