"""What was compiled, remembered: least recently used first out, bounded by bytes; one compilation at a time for a key.

Owns the tasks that compile. Whoever asks while one is under way waits for that one; when nobody waits any more, it is
cancelled.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Artefact(Protocol):
    """What can be remembered."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def lasting(self) -> bool:
        """Whether making it again would give the same."""
        ...


T = TypeVar("T", bound=Artefact)


@dataclass
class _Making(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0


class ArtefactCache(Generic[T]):
    """Makes each artefact once while it is remembered."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._kept: OrderedDict[str, T] = OrderedDict()
        self._making: dict[str, _Making[T]] = {}
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    async def get(self, key: str, make: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """The artefact, and whether somebody had it made already. Keeps nothing when `make` raises."""
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            self.hits += 1
            return kept, True
        making = self._making.get(key)
        shared = making is not None
        if making is None:
            self.misses += 1
            making = self._making[key] = _Making(asyncio.ensure_future(self._made(key, make)))
        else:
            self.hits += 1
        making.waiting += 1
        try:
            return await asyncio.shield(making.task), shared
        finally:
            making.waiting -= 1
            if making.waiting == 0 and not making.task.done():
                if self._making.get(key) is making:  # whoever asks from now on starts anew
                    del self._making[key]
                making.task.cancel()
                await asyncio.wait([making.task])

    async def close(self) -> None:
        """Ends what is under way."""
        tasks = [making.task for making in self._making.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._kept.clear()
        self.size_bytes = 0

    async def _made(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        me = asyncio.current_task()
        try:
            made = await make()
        finally:
            making = self._making.get(key)
            if making is not None and making.task is me:
                del self._making[key]
        if made.lasting and made.size_bytes <= self._capacity and key not in self._kept:
            self._kept[key] = made
            self.size_bytes += made.size_bytes
            while self.size_bytes > self._capacity:
                _, oldest = self._kept.popitem(last=False)
                self.size_bytes -= oldest.size_bytes
        return made
