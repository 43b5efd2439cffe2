"""Requests that wait for a server, by their floor: whoever needs the oldest version may start first.

Owns the named wait of each floor. A server that is too old for one floor is too old for every higher one, so what is
done for waiting requests depends on how many may start, not on how many wait.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from areal.observe.waits import WaitRegistry

T = TypeVar("T", bound=Hashable)


class WaitingRequests(Generic[T]):
    """Each request once, in the order of arrival within its floor."""

    def __init__(self, waits: WaitRegistry) -> None:
        self._waits = waits
        self._floors: dict[T, int] = {}
        self._by_floor: dict[int, dict[T, None]] = {}
        self._named: dict[int, AbstractContextManager[None]] = {}

    def __len__(self) -> int:
        return len(self._floors)

    def add(self, request: T, floor: int) -> None:
        """A request waits, or waits with another floor."""
        self.discard(request)
        self._floors[request] = floor
        if floor not in self._by_floor:
            self._by_floor[floor] = {}
            what = f"version ≥ {floor} on a server" if floor > 0 else "a server"
            self._named[floor] = self._waits.waiting("generation", what)
            self._named[floor].__enter__()
        self._by_floor[floor][request] = None

    def discard(self, request: T) -> None:
        """A request waits no more, if it did."""
        floor = self._floors.pop(request, None)
        if floor is None:
            return
        requests = self._by_floor[floor]
        del requests[request]
        if not requests:
            del self._by_floor[floor]
            self._named.pop(floor).__exit__(None, None, None)

    def __contains__(self, request: object) -> bool:
        return request in self._floors

    def lowest(self) -> Iterator[T]:
        """The first request of the lowest floor, again and again: discard it before the next."""
        while self._by_floor:
            yield next(iter(self._by_floor[min(self._by_floor)]))
