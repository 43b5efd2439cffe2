"""Pipes of a run as the service sees them: read up to a cap while the program writes, written without ever blocking."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable

_CHUNK_BYTES = 1 << 16


class CappedReader:
    """Collects what comes through a descriptor that it owns. Above the cap: `on_over`, and nothing more is read or,
    with `drop`, the rest is read and thrown away.
    """

    def __init__(
        self, descriptor: int, cap_bytes: int, *, drop: bool = False, on_over: Callable[[], None] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._cap = cap_bytes
        self._drop = drop
        self._on_over = on_over
        self._data = bytearray()
        self.over = False
        self.closed = asyncio.Event()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._readable)

    def _readable(self) -> None:
        try:
            data = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        room = self._cap - len(self._data)
        if room > 0:
            self._data += data[:room]
        if len(data) > room:
            self.over = True
            if not self._drop:
                self.close()
                if self._on_over is not None:
                    self._on_over()

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self.closed.set()

    async def finish(self, until: float) -> bytes:
        """Everything, once the other end is closed or the loop's clock says `until`."""
        if not self.closed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self.closed.wait()
            self.close()
        return bytes(self._data)


class Feeder:
    """Writes bytes into a descriptor that it owns as its reader takes them, then closes it."""

    def __init__(self, descriptor: int, data: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._left = memoryview(data)
        os.set_blocking(descriptor, False)
        self._writable()
        if self._descriptor >= 0:
            self._loop.add_writer(descriptor, self._writable)

    def _writable(self) -> None:
        try:
            while self._left:
                self._left = self._left[os.write(self._descriptor, self._left[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:
            pass  # the program closed its input
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self._left = memoryview(b"")


class DescriptorPair:
    """A pipe's two descriptors."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()


def input_of(data: bytes, stack: contextlib.ExitStack) -> int:
    """A descriptor from which a program reads this. The stack stops the feeding of what no pipe holds at once."""
    if not data:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    pipe = DescriptorPair()
    stack.callback(Feeder(pipe.writer, data).close)
    return pipe.reader


def unpack(data: bytes) -> dict[str, bytes]:
    """Kept files, as the warden wrote them; one that was cut off is left out."""
    files: dict[str, bytes] = {}
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        head = json.loads(data[at:end])
        at = end + 1 + head["size"]
        if at > len(data):
            break
        files[head["path"]] = data[end + 1 : at]
    return files
