"""Suites on the wire and on disk: one canonical JSON text for each, its digest, and what makes a suite unfit to judge.

`from_json(to_json(suite)) == suite`, and equal texts have equal digests in every process. Reading is bounded and names
the place of every mistake. A suite that could fail no program (no cases, nothing expected) is an error, never a pass.

A document for people may leave out what has a default:

    {"kind": "stdio", "cases": [{"stdin": "1 2\\n", "expected": "3\\n"}], "checker": {"name": "tokens"}}
    {"kind": "call", "entry_point": "add", "cases": [{"arguments": [1, 2], "expected": 3}]}
    {"kind": "assert", "entry_point": "add", "test": "assert add(1, 2) == 3"}
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from enum import IntEnum
from typing import Any, NoReturn

from areal.errors import DataError

from areal_judge.judge.tagged import TaggedError, each_within, from_tagged, to_tagged
from areal_judge.judge.validation import MAX_CASES, validate
from areal_judge.judge.values import AssertSuite, CallCase, CallSuite, Checker, Integrity, StdioCase, StdioSuite, Suite
from areal_judge.sandbox.values import Limits

__all__ = ["digest", "document", "from_document", "from_json", "to_json", "validate"]

MAX_DOCUMENT_BYTES = 128 << 20
_KINDS: dict[str, type[Suite]] = {"stdio": StdioSuite, "call": CallSuite, "assert": AssertSuite}
_KIND_OF = {kind: name for name, kind in _KINDS.items()}


def digest(suite: Suite) -> str:
    """SHA-256 of the canonical text, hexadecimal."""
    return hashlib.sha256(to_json(suite).encode("ascii")).hexdigest()


def to_json(suite: Suite) -> str:
    """The canonical text: ASCII, every field in the order of its definition, no spaces."""
    return json.dumps(document(suite), ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def document(suite: Suite) -> dict[str, Any]:
    """The suite as a JSON object. Raises DataError for values that no codec carries."""
    try:
        kind = _KIND_OF[type(suite)]
    except KeyError:
        raise DataError(
            f"a {type(suite).__name__} is no suite", fix="make a StdioSuite, CallSuite or AssertSuite"
        ) from None
    try:
        return {"kind": kind} | _written(suite)
    except TaggedError as error:
        _refuse(f"suite{error.path}", error.message)


def _written(record: Any) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for spec in fields(record):
        value = getattr(record, spec.name)
        try:
            if spec.name == "cases":
                written[spec.name] = each_within(lambda case, _: _written(case), value, 0)
            elif isinstance(value, Checker | Limits):
                written[spec.name] = _written(value)
            elif isinstance(value, IntEnum):
                written[spec.name] = value.name
            elif spec.name == "arguments":
                written[spec.name] = to_tagged(list(value))
            elif spec.name == "keywords":
                written[spec.name] = to_tagged(dict(value))
            else:
                written[spec.name] = to_tagged(value)
        except TaggedError as error:
            raise error.within(f".{spec.name}") from None
    return written


def from_json(text: str | bytes, at: str = "suite") -> Suite:
    """Reads a suite. Raises DataError that names the place in the document."""
    if len(text) > MAX_DOCUMENT_BYTES:
        raise DataError(
            f"{at}: more than {MAX_DOCUMENT_BYTES >> 20} MiB", fix="split the suite, or drop its largest cases"
        )
    try:
        read = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except RecursionError:
        _refuse(at, "nested too deeply")
    except (ValueError, UnicodeDecodeError) as error:
        _refuse(at, f"no JSON: {error}")
    return from_document(read, at)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is no JSON; write {{"$float": "nan"}}, "inf" or "-inf"')


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} twice in one object")
    return read


def from_document(read: Any, at: str = "suite") -> Suite:
    """Reads a suite from its JSON object, and validates it."""
    if not isinstance(read, Mapping):
        _refuse(at, f"an object is due, not {_sort(read)}")
    kind = _KINDS.get(read["kind"]) if isinstance(read.get("kind"), str) else None
    if kind is None:
        _refuse(f"{at}.kind", f"one of {', '.join(_KINDS)} is due")
    suite: Suite = _record(kind, {key: value for key, value in read.items() if key != "kind"}, at)
    validate(suite, at)
    return suite


def _record(kind: type[Any], read: Any, at: str) -> Any:
    """A dataclass from an object, field by field."""
    if not isinstance(read, Mapping):
        _refuse(at, f"an object is due, not {_sort(read)}")
    known = {spec.name: spec for spec in fields(kind)}
    for key in read:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            _refuse(
                f"{at}.{key}",
                "no such field" + (f"; {near[0]} is meant?" if near else ""),
                f"known: {', '.join(known)}",
            )
    for name, spec in known.items():
        if spec.default is MISSING and spec.default_factory is MISSING and name not in read:
            _refuse(f"{at}.{name}", "missing")
    return kind(**{name: _field(kind, known[name], value, f"{at}.{name}") for name, value in read.items()})


def _field(kind: type[Any], spec: Field[Any], value: Any, at: str) -> Any:
    match spec.name:
        case "cases":
            return _cases(StdioCase if kind is StdioSuite else CallCase, value, at)
        case "checker":
            return _record(Checker, {"name": value} if isinstance(value, str) else value, at)
        case "limits":
            return _record(Limits, value, at)
        case "integrity":
            if not isinstance(value, str) or value not in Integrity.__members__:
                _refuse(at, f"one of {', '.join(Integrity.__members__)} is due")
            return Integrity[value]
        case "arguments":
            return tuple(_expect(list, _value(value, at), at))
        case "keywords":
            return _expect(dict, _value(value, at), at)
        case "expected" if kind is CallCase:
            return _value(value, at)
        case _:
            named = spec.type.__name__ if isinstance(spec.type, type) else str(spec.type)
            kind_of_value, _, other = named.partition(" | ")
            if other == "None" and value is None:
                return None
            return _expect(_TYPES[kind_of_value], value, at)


_TYPES: Mapping[str, type[Any]] = {"str": str, "bool": bool, "int": int, "float": float}


def _cases(kind: type[Any], read: Any, at: str) -> tuple[Any, ...]:
    cases = _expect(list, read, at)
    if len(cases) > MAX_CASES:
        _refuse(at, f"{len(cases)} cases are more than {MAX_CASES}")
    return tuple(_record(kind, case, f"{at}[{index}]") for index, case in enumerate(cases))


def _value(read: Any, at: str) -> Any:
    try:
        return from_tagged(read)
    except TaggedError as error:
        _refuse(at + error.path, error.message)


def _expect(kind: type[Any], value: Any, at: str) -> Any:
    if kind is float and type(value) is int:
        return float(value) if abs(value) < 1 << 53 else _refuse(at, "a smaller number is due")
    if type(value) is not kind:
        _refuse(at, f"{_NAMES[kind]} is due, not {_sort(value)}")
    return value


_NAMES: dict[type[Any], str] = {
    str: "a text", bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "an object",
    type(None): "null",
}  # fmt: skip


def _sort(value: Any) -> str:
    return _NAMES.get(type(value), f"a {type(value).__name__}")


def _refuse(at: str, message: str, fix: str = "") -> NoReturn:
    raise DataError(f"{at}: {message}", fix=fix or "see docs/reward.md for the form of a suite")
