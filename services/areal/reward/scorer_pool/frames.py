"""Messages between the service and a child process: a 4-byte little-endian length, then JSON.

JSON and not pickle: a child runs code that is not ours, and a pickle from it would run in the service.
"""

import struct
from typing import Any

import orjson

from areal.errors import InfraError

_LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 256 << 20  # a batch of 64 samples of a million tokens each


def encode(message: Any) -> bytes:
    body = orjson.dumps(message)
    if len(body) > MAX_FRAME_BYTES:
        raise InfraError(f"a message of {len(body)} bytes is too long", fix="send fewer or shorter samples at once")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """All messages that are complete now. Raises InfraError on bytes that are no messages."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise InfraError(f"a child announced a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            try:
                messages.append(orjson.loads(memoryview(self._buffer)[_LENGTH.size : end]))
            except orjson.JSONDecodeError as error:
                raise InfraError(f"a child sent no JSON: {error}") from None
            del self._buffer[:end]
        return messages
