"""Pipes of a run as the service sees them: read up to a cap while the program writes; its input is a file."""

import asyncio
import contextlib
import fcntl
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Callable

_CHUNK_BYTES = 1 << 16
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


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


class DescriptorPair:
    """A pipe's two descriptors."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()


def input_of(data: bytes, stack: contextlib.ExitStack) -> int:
    """A descriptor from which a program reads this: a regular file in memory, read-only, at its beginning.

    Judges of contests redirect files: a program may ask for its input's size, its position, or map it. Sealed, so that
    a program that opens it anew can't change it either.
    """
    written = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    stack.callback(os.close, written)
    left = memoryview(data)
    while left:
        left = left[os.write(written, left) :]
    fcntl.fcntl(written, fcntl.F_ADD_SEALS, _SEALS)
    return os.open(f"/proc/self/fd/{written}", os.O_RDONLY | os.O_CLOEXEC)


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


# ---- Counting semaphore whose callers may take several slots at once, first come, first served
# Whoever needs two runs at once takes both slots in one step, so that no two callers hold one each and wait.


class RunSlots:
    """`capacity` slots."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = capacity
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def held(self, count: int = 1) -> AsyncIterator[None]:
        """Holds `count` slots, or all there are when that is fewer: it can always be had."""
        needed = min(count, self.capacity)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (needed, granted)
        self._waiting.append(place)
        self._grant()
        try:
            await granted
        except BaseException:
            if place in self._waiting:
                self._waiting.remove(place)
                self._grant()  # the next may need fewer
            else:
                self._give_back(needed)
            raise
        try:
            yield
        finally:
            self._give_back(needed)

    def _give_back(self, count: int) -> None:
        self._free += count
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            needed, granted = self._waiting.popleft()
            self._free -= needed
            if not granted.done():  # a caller that was cancelled this very moment gives them back
                granted.set_result(None)
