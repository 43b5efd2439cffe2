"""Counting semaphore whose callers may take several slots at once, first come, first served.

Owns how many runs there are at once. Whoever needs two runs at the same time takes both slots in one step, so that no
two callers hold one each and wait for the other's. Lives on one event loop.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


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
