"""LRU cache of compiled programs, bounded by bytes, single flight per key.

Owns the tasks that compile. A caller that asks while one is under way shares it; the last caller to leave cancels it.
"""

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from areal.single_flight import SingleFlight
from cachetools import LRUCache


class Artefact(Protocol):
    """What can be remembered."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def lasting(self) -> bool:
        """Whether making it again would give the same."""
        ...


T = TypeVar("T", bound=Artefact)


class ArtefactCache(Generic[T]):
    """Makes each artefact once while it is remembered.

    Who asks while it is being made waits for that: the cases of one program come all at once.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._kept: LRUCache[str, T] = LRUCache(capacity_bytes, getsizeof=lambda made: made.size_bytes)
        self._making: SingleFlight[T] = SingleFlight()
        self.misses = 0

    @property
    def size_bytes(self) -> int:
        """Of all that is remembered."""
        return int(self._kept.currsize)

    async def get(self, key: str, make: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """The artefact, and whether it was made or being made already. Keeps nothing when `make` raises."""
        if (kept := self._kept.get(key)) is not None:
            return kept, True
        shared = key in self._making
        self.misses += not shared
        return await self._making.share(key, lambda: self._made(key, make)), shared

    async def close(self) -> None:
        """Ends what is under way."""
        await self._making.close()
        self._kept.clear()

    async def _made(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        made = await make()
        if made.lasting and made.size_bytes <= self._kept.maxsize:
            self._kept[key] = made
        return made
