"""Single flight: callers that ask for the same key at the same time share one computation.

Owns the tasks that compute. A caller that is cancelled cancels only its own wait; the last one cancels the computation.
Nothing is remembered: a caller that comes after the end begins a new one.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

R = TypeVar("R")


@dataclass(eq=False)
class _Flight(Generic[R]):
    """One computation and the number of callers that wait for it."""

    task: asyncio.Task[R]
    waiters: int = 0


class SingleFlight(Generic[R]):
    """The computations under way, by key. Lives on one event loop."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight[R]] = {}
        self._tasks: set[asyncio.Task[R]] = set()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._flights

    async def share(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """The result of the computation under way for `key`; `make` begins one when there is none.

        Raises what the computation raises, to each of its callers.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(make()))
            self._tasks.add(flight.task)
            flight.task.add_done_callback(partial(self._landed, key))
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                self._forget(key, flight.task)  # a later caller begins a new one
                flight.task.cancel()

    async def close(self) -> None:
        """Cancel every computation and wait for their ends."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _landed(self, key: Hashable, task: asyncio.Task[R]) -> None:
        self._tasks.discard(task)
        self._forget(key, task)
        if not task.cancelled():
            task.exception()  # nobody may be left to hear of it

    def _forget(self, key: Hashable, task: asyncio.Task[R]) -> None:
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]
