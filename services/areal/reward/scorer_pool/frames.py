"""Messages between the service and a child process: a 4-byte little-endian length, then JSON.

JSON and not pickle: a child runs code that is not ours, and a pickle from it would run in the service.
"""

import mmap
import os
import struct
import time
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


# ---- Progress of a scorer process: the item it works on and since when, in 16 bytes of memory shared with the service
# The child writes it before each item, in CLOCK_MONOTONIC; the service reads it however stuck the child is.


_LAYOUT = struct.Struct("<Qd")
_SIZE = mmap.PAGESIZE


def create() -> int:
    """A new shared area; returns its file descriptor."""
    descriptor = os.memfd_create("areal-scorer-progress")
    os.ftruncate(descriptor, _SIZE)
    return descriptor


class ProgressArea:
    """One end of the area."""

    def __init__(self, descriptor: int) -> None:
        self._area = mmap.mmap(descriptor, _SIZE)

    def write(self, item: int) -> None:
        """The child begins item number `item`, counted over its life."""
        _LAYOUT.pack_into(self._area, 0, item, time.monotonic())

    def read(self) -> tuple[int, float]:
        """The item and when it began. Reads until two reads agree, so a half-written pair is never seen."""
        before = _LAYOUT.unpack_from(self._area)
        while (again := _LAYOUT.unpack_from(self._area)) != before:
            before = again
        return int(before[0]), float(before[1])

    def close(self) -> None:
        self._area.close()
