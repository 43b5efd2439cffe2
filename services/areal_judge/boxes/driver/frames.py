"""Wire format between a box's holder and its driver: a JSON head and bytes behind it, in one frame."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<I")


def packed(head: dict[str, Any], body: bytes = b"") -> bytes:
    """A message: the head's length, the head, the body."""
    text = json.dumps(head).encode()
    return _LENGTH.pack(len(text)) + text + body


def unpacked(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A message's head and body. Raises ValueError for what is none."""
    if len(data) < _LENGTH.size:
        raise ValueError("a message without a head")
    (size,) = _LENGTH.unpack_from(data)
    head = json.loads(data[_LENGTH.size : _LENGTH.size + size])
    if not isinstance(head, dict):
        raise ValueError("a head that is no object")
    return head, data[_LENGTH.size + size :]


class FrameLine:
    """The cell's end of the channel. Blocking."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel  # kept: it closes its descriptor when it goes
        channel.setblocking(True)
        channel.set_inheritable(False)

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next request; None when the holder has gone."""
        head = self._exactly(_LENGTH.size)
        if head is None:
            return None
        data = self._exactly(*_LENGTH.unpack(head))
        return None if data is None else unpacked(data)

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        data = packed(head, body)
        self._channel.sendall(_LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        """Of a forked child's copy."""
        os.close(self._channel.detach())

    def _exactly(self, size: int) -> bytes | None:
        parts = []
        while size:
            part = self._channel.recv(min(size, 1 << 20))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
