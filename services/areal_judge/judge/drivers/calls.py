"""Inside a cell: loads a program and calls it, once for each request. Knows inputs, never what is expected.

Requests and answers, each `(kind, nonce, …)`; the payload of the run is `(nonce, prelude, source, entry point)`:
  → payload        ← (prepared, nonce) once the prelude has run, (parsed, nonce) once the source is known to be Python
                   ← (loaded | prelude_failed | refused | missing | raised | exited, nonce, name, message, line, family)
  → call, arguments, keywords, whether to bring the arguments back
                   ← (result, nonce, value, arguments | None)
                   | (raised | exited | foreign | posing | too_big, nonce, name, message, line, family)
  → bye            ← nothing: the process ends with code 0, without the program's exit hooks
What the program prints goes to its standard output, which nobody reads as an answer.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

from areal_judge.judge import codec
from areal_judge.judge.codec import MAX_DEPTH, TOO_BIG, CodecError
from areal_judge.judge.drivers import loading
from areal_judge.judge.drivers.wire import REQUEST_BYTES, REQUEST_NODES, SessionWire, describe, family_of, line_of

_exit = os._exit
_set_recursion_limit = sys.setrecursionlimit
RECURSION_LIMIT = 1000  # the interpreter's own; a program may have lowered it when its result is to be encoded


def main(channel: socket.socket, payload: bytes) -> int:
    """Serves until the holder says bye or has gone."""
    wire = SessionWire(channel)
    nonce, prelude, source, entry_point = codec.decode(payload, max_bytes=REQUEST_BYTES, max_nodes=REQUEST_NODES)
    function = _load(wire, nonce, prelude, source, entry_point)
    while True:
        request = wire.receive()
        if request is None or request[0] == "bye":
            _flush()
            _exit(0)
        if function is None:
            _exit(1)
        _, nonce, arguments, keywords, bring_back = request
        _call(wire, nonce, function, arguments, keywords, bring_back)


def _load(wire: SessionWire, nonce: bytes, prelude: str, source: str, entry_point: str) -> Callable[..., Any] | None:
    try:
        fallback = loading.run_prelude(prelude, entry_point)
    except BaseException as error:
        _tell(wire, "prelude_failed", nonce, error)
        return None
    wire.send("prepared", nonce)
    try:
        program = loading.ParsedProgram(source, fallback)
    except BaseException as error:
        name, message = describe(error)
        line = error.lineno if type(error) is SyntaxError else None
        wire.send("refused", nonce, name, message, line, family_of(error))
        return None
    wire.send("parsed", nonce)
    try:
        program.run()
        function = program.entry(entry_point)
    except loading.NoEntryPointError as error:
        _tell(wire, "missing", nonce, error)
    except BaseException as error:
        _tell(wire, _kind(error), nonce, error)
    else:
        wire.send("loaded", nonce)
        return function
    return None


def _call(
    wire: SessionWire, nonce: bytes, function: Callable[..., Any], arguments: Any, keywords: Any, bring_back: bool
) -> None:
    try:
        value = function()(*arguments, **keywords)
    except BaseException as error:
        _tell(wire, _kind(error), nonce, error)
        return
    try:
        _set_recursion_limit(max(RECURSION_LIMIT, sys.getrecursionlimit()))
        _answer(wire, nonce, value, arguments if bring_back else None)
    except ForeignTypeError as error:
        _tell(wire, "posing" if error.posing else "foreign", nonce, error)
    except CodecError as error:
        _tell(wire, "too_big", nonce, error)
    except Exception as error:
        _tell(wire, "foreign", nonce, error)


def _answer(wire: SessionWire, nonce: bytes, value: Any, arguments: Any) -> None:
    try:
        wire.send("result", nonce, value, arguments)
    except CodecError as error:
        if error.reason != codec.BAD_TYPE:
            raise
        value = plain(value)
        try:
            arguments = plain(arguments)
        except (ForeignTypeError, CodecError):
            arguments = None
        wire.send("result", nonce, value, arguments)


def _kind(error: BaseException) -> str:
    return "exited" if isinstance(error, SystemExit) else "raised"


def _tell(wire: SessionWire, kind: str, nonce: bytes, error: BaseException) -> None:
    wire.send(kind, nonce, *describe(error), line_of(error, loading.FILE), family_of(error))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            continue


# ---- Result sanitiser: turns what a program returned into plain builtins that the codec carries
# Classes that behave as a builtin become it here, in the cell: only plain content crosses, so nothing is won by
# posing as one. What else is no plain builtin is refused.


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
