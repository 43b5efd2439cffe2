"""Slot scheduler: admission to a bounded queue, slots, and the memory budget of one service.

A request waits in the queue, or is refused when that is full; a slot is given back in any case. Lives on one event
loop.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from areal_judge.judge.dispatch.admission import Bounds, DrainRate, MemoryBudget
from areal_judge.judge.dispatch.class_queue import ClassQueue, QueueEntry
from areal_judge.judge.dispatch.values import Priority, RefusedError
from areal_judge.judge.values import Status

R = TypeVar("R")


@dataclass(eq=False)
class Turn:
    """A request for a slot. `granted` is resolved when it has one, and fails with a RefusedError when it won't."""

    memory_bytes: int
    granted: asyncio.Future[None]
    started: float | None = None


@dataclass(eq=False)
class QueuePlace:
    """What a request asks of the queue, and how long it waited there."""

    priority: Priority
    deadline: float | None  # on the scheduler's clock
    memory_bytes: int
    size_bytes: int
    queued_s: float = 0.0


class SlotScheduler:
    """`slots` requests run at once; the rest waits in order."""

    def __init__(
        self,
        slots: int,
        memory: MemoryBudget,
        *,
        bounds: Bounds = Bounds(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = slots
        self.running = 0
        self.queue: ClassQueue[Turn] = ClassQueue()
        self.memory = memory
        self._bounds = bounds
        self._clock = clock
        self._drain = DrainRate(clock())
        self._closed = False

    async def run(self, place: QueuePlace, work: Callable[[], Awaitable[R]]) -> R:
        """Waits for a slot and does the work in it.

        Raises:
            RefusedError: the queue is full, the deadline passed before it began, or it needs more memory than there is.
        """
        entry = self._admit(place)
        turn = entry.item
        try:
            await turn.granted
        except BaseException:
            if not self.queue.remove(entry) and turn.started is not None:
                self._give_back(entry)
            raise
        place.queued_s = (turn.started or 0.0) - entry.arrived
        try:
            return await work()
        finally:
            self._give_back(entry)

    def retry_after_s(self) -> float:
        """When there will be room."""
        return self._drain.retry_after_s(len(self.queue), self._clock())

    def close(self) -> None:
        """Turns away all that wait, and all that come."""
        self._closed = True
        for entry in list(self.queue):
            self.queue.remove(entry)
            _refuse(entry, RefusedError(Status.SANDBOX_ERROR, "the reward service is stopping"))

    def _admit(self, place: QueuePlace) -> QueueEntry[Turn]:
        now = self._clock()
        if self._closed:
            raise RefusedError(Status.SANDBOX_ERROR, "the reward service is stopping")
        if place.deadline is not None and place.deadline <= now:
            raise RefusedError(Status.DEADLINE_EXCEEDED, "its deadline had passed when it came")
        if not self.memory.possible(place.memory_bytes):
            have, asked = self.memory.pod_bytes >> 20, place.memory_bytes >> 20
            message = f"limits.memory_bytes asks for {asked} MB, and the whole pod has {have} MB: lower the limit"
            raise RefusedError(Status.INVALID_REQUEST, message)
        full = self._bounds.exceeded(len(self.queue) + 1, self.queue.size_bytes + place.size_bytes)
        if full:
            raise self._overload(full)
        turn = Turn(place.memory_bytes, asyncio.get_running_loop().create_future())
        entry = QueueEntry(turn, place.priority, place.deadline, place.size_bytes)
        self.queue.push(entry, now)
        self._pump()
        return entry

    def _overload(self, why: str) -> RefusedError:
        after_s = self.retry_after_s()
        message = f"{why}; try again in {after_s:.2g} s, or add replicas of the reward service"
        return RefusedError(Status.REJECTED_OVERLOAD, message, retry_after_s=after_s)

    def _pump(self) -> None:
        """Starts whatever may start. What needs more memory than is free holds the rest up, or it would never start."""
        while self.running < self.slots:
            now = self._clock()
            entry, expired = self.queue.pop(now, lambda each: self.memory.fits(each.item.memory_bytes))
            for late in expired:
                waited_s = now - late.arrived
                message = f"its deadline passed while it waited for a slot ({waited_s:.1f} s)"
                _refuse(late, RefusedError(Status.DEADLINE_EXCEEDED, message))
            if entry is None:
                return
            self.running += 1
            self.memory.take(entry.item.memory_bytes)
            entry.item.started = now
            if not entry.item.granted.done():  # a caller that was cancelled this very moment gives the slot back
                entry.item.granted.set_result(None)

    def _give_back(self, entry: QueueEntry[Turn]) -> None:
        self.running -= 1
        self.memory.give(entry.item.memory_bytes)
        self._drain.finished(self._clock())
        self._pump()


def _refuse(entry: QueueEntry[Turn], error: RefusedError) -> None:
    if not entry.item.granted.done():
        entry.item.granted.set_exception(error)
