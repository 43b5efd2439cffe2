"""Progress of a scorer process: the item it works on and since when, in 16 bytes of memory shared with the service.

The child writes it before each item; the service reads it when a deadline may have passed, however stuck the child is.
Clock: CLOCK_MONOTONIC, which all processes of a machine share.
"""

import mmap
import os
import struct
import time

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
