"""Equal questions that are asked at the same time are answered by one run.

Promises: who stops waiting stops only himself; when the last one does, the run is cancelled. A question that comes
after that begins a new run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")


@dataclass(eq=False)
class Flight(Generic[R]):
    """One run and those who wait for it."""

    task: asyncio.Task[R]
    waiters: int = 0


class SingleFlight(Generic[R]):
    """Runs by key."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight[R]] = {}
        self._ending: set[asyncio.Task[R]] = set()

    def find(self, key: str) -> Flight[R] | None:
        """The run that goes on for this key."""
        return self._flights.get(key)

    def begin(self, key: str, body: Callable[[], Coroutine[Any, Any, R]]) -> Flight[R]:
        """Starts a run for a key that has none. `wait` for it at once: nobody else may keep it alive."""
        flight = Flight(asyncio.create_task(body()))
        self._flights[key] = flight
        flight.task.add_done_callback(lambda _: self._landed(key, flight))
        return flight

    async def wait(self, key: str, flight: Flight[R]) -> R:
        """The run's result. A cancelled waiter leaves; the last to leave ends the run."""
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                self._landed(key, flight)
                self._ending.add(flight.task)
                flight.task.add_done_callback(self._ending.discard)
                flight.task.cancel()

    async def close(self) -> None:
        """Cancels every run and waits until they ended."""
        tasks = [flight.task for flight in self._flights.values()] + list(self._ending)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _landed(self, key: str, flight: Flight[R]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
