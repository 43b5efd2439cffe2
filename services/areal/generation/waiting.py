"""Requests that the engine does not have yet: a priority queue by floor, then by arrival.

The lowest floor belongs to the group that the trainer needs first. A request that is removed leaves its entry in the
heap, which is skipped when it comes up: the cost does not depend on how many wait.
"""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Generic, Protocol, TypeVar

SPARE_ENTRIES = 256  # old entries that a heap may hold beside as many as there are requests


class WaitingEntry(Protocol):
    """What waits: its name, and the oldest version that may serve it."""

    rid: str
    floor: int


T = TypeVar("T", bound=WaitingEntry)


class WaitingQueue(Generic[T]):
    def __init__(self) -> None:
        self._members: dict[str, tuple[int, T]] = {}  # by rid: arrival number, request
        self._heap: list[tuple[int, int, str]] = []  # floor, arrival number, rid
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, rid: str) -> bool:
        return rid in self._members

    def __iter__(self) -> Iterator[T]:
        """In the order of arrival. Not to be changed meanwhile."""
        return (item for _, item in self._members.values())

    def push(self, item: T) -> None:
        """Append a request."""
        number = next(self._numbers)
        self._members[item.rid] = (number, item)
        heapq.heappush(self._heap, (item.floor, number, item.rid))

    def discard(self, rid: str) -> None:
        """Remove a request, if it waits."""
        if self._members.pop(rid, None) is not None:
            self._sweep()

    def pop(self) -> T | None:
        """Take the first request; None when none waits."""
        while self._heap:
            _, number, rid = heapq.heappop(self._heap)
            member = self._members.get(rid)
            if member is not None and member[0] == number:
                del self._members[rid]
                return member[1]
        return None

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._members) + SPARE_ENTRIES:
            self._heap = [(item.floor, number, rid) for rid, (number, item) in self._members.items()]
            heapq.heapify(self._heap)
