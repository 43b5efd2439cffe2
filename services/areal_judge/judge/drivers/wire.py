"""Frames inside a cell: a length of four bytes, little-endian, and an encoded tuple `(kind, nonce, …)`.

Each request carries a nonce that its answer repeats, so that a frame written before its request was known answers
nothing. What a call needs is bound when the module loads, before any program does: an honest program that patches
`os.write` breaks nothing here. A hostile one owns the process and the descriptor; the holder of the other end believes
no frame more than it would believe the program's own return value.
"""

from __future__ import annotations

import builtins
import os
import socket
from typing import Any

from areal_judge.judge import codec

REQUEST_BYTES = 64 << 20  # the holder is trusted: inputs may be longer than results
REQUEST_NODES = 8_000_000
MAX_TEXT = 500  # characters of a message about an exception

_read, _write = os.read, os.write
_encode, _decode = codec.encode, codec.decode
_from_bytes, _len, _join = int.from_bytes, len, b"".join


class SessionWire:
    """The cell's end of a session. Blocking."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel  # kept: it closes its descriptor when it goes
        self._descriptor = channel.fileno()
        channel.setblocking(True)

    def receive(self) -> tuple[Any, ...] | None:
        """The next request; None when the holder has gone."""
        head = self._exactly(4)
        if head is None:
            return None
        body = self._exactly(_from_bytes(head, "little"))
        return None if body is None else _decode(body, max_bytes=REQUEST_BYTES, max_nodes=REQUEST_NODES)

    def send(self, *frame: Any) -> None:
        """Raises CodecError, before a byte is written, when the frame holds what can't be carried."""
        body = _encode(frame)
        data = _len(body).to_bytes(4, "little") + body
        while data:
            data = data[_write(self._descriptor, data) :]

    def _exactly(self, size: int) -> bytes | None:
        parts = []
        while size:
            part = _read(self._descriptor, min(size, 1 << 20))
            if not part:
                return None
            parts.append(part)
            size -= _len(part)
        return _join(parts)


_name_of = type.__dict__["__name__"].__get__
_mro_of = type.__dict__["__mro__"].__get__
_EXCEPTIONS = tuple(
    kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)
)
_str, _type = str, type


def describe(error: BaseException) -> tuple[str, str]:
    """An exception's type and message as plain, short texts, whatever its class makes of them."""
    name = _name_of(_type(error))
    try:
        message = _str(error)
        if _type(message) is not _str:
            message = ""
    except BaseException:
        message = ""
    return name[:MAX_TEXT], message[:MAX_TEXT]


def line_of(error: BaseException, file: str) -> int | None:
    """The last line of a file that an exception went through."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def family_of(error: BaseException) -> str:
    """The name of an exception's nearest builtin class: by what others can catch it, whatever its own is called."""
    for base in _mro_of(_type(error)):
        for kind in _EXCEPTIONS:
            if base is kind:
                return _str(_name_of(kind))
    return "BaseException"
