"""Slot scheduler: admission to a bounded queue, slots, and the memory budget of one service.

A request waits in the queue, or is refused when that is full; a slot is given back in any case. Lives on one event
loop.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from areal_judge.judge.dispatch.values import Priority, RefusedError
from areal_judge.judge.values import Status

# ---- Admission control: bounds of the queue, its drain rate, and the memory budget of runs
# Pure: told the time. A bound that is reached is an answer with a hint, never a longer queue.


_RATE_OVER_S = 10.0  # the drain rate is a mean over about so long
_ROOM_SHARE = 0.1  # who was turned away comes back when this share of the queue has drained
_UNKNOWN_S = 1.0  # hint before anything has finished
_LEAST_S = 0.05
_MOST_S = 30.0

MEMORY_SHARE = 0.8  # of the pod's; the rest is the service, its zygotes and the page cache


@dataclass(frozen=True)
class Bounds:
    """What may wait at once."""

    items: int = 4096  # of all callers
    code_bytes: int = 64 << 20

    def exceeded(self, items: int, code_bytes: int) -> str:
        """Which bound such a queue breaks, in words; empty when none."""
        if items > self.items:
            return f"{self.items} requests wait already"
        if code_bytes > self.code_bytes:
            return f"requests of {self.code_bytes >> 20} MB wait already"
        return ""


class DrainRate:
    """How many requests a second finish."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._at = now
        self._sum = 0.0  # of finished requests, each fading over _RATE_OVER_S

    def finished(self, now: float) -> None:
        """One more."""
        self._sum = self._faded(now) + 1.0
        self._at = now

    def per_s(self, now: float) -> float:
        """Requests a second; 0 when none finished lately."""
        seen_s = max(now - self._began, 1e-3)
        return self._faded(now) / (_RATE_OVER_S * -math.expm1(-seen_s / _RATE_OVER_S))

    def retry_after_s(self, waiting: int, now: float) -> float:
        """When there will be room again, with `waiting` requests in front."""
        rate = self.per_s(now)
        if rate < 1e-3:
            return _UNKNOWN_S
        return min(_MOST_S, max(_LEAST_S, waiting * _ROOM_SHARE / rate))

    def _faded(self, now: float) -> float:
        return self._sum * math.exp(-max(0.0, now - self._at) / _RATE_OVER_S)


class MemoryBudget:
    """Memory that the limits of all runs together may reach."""

    def __init__(self, pod_bytes: int, share: float = MEMORY_SHARE) -> None:
        self.pod_bytes = pod_bytes
        self.budget_bytes = int(pod_bytes * share)
        self.held_bytes = 0

    def possible(self, need_bytes: int) -> bool:
        """Whether such a run could ever start."""
        return need_bytes <= self.pod_bytes

    def fits(self, need_bytes: int) -> bool:
        """Whether it may start now. One alone may have more than the budget, up to all of the pod."""
        return self.held_bytes + need_bytes <= self.budget_bytes or not self.held_bytes

    def take(self, need_bytes: int) -> None:
        self.held_bytes += need_bytes

    def give(self, had_bytes: int) -> None:
        self.held_bytes -= had_bytes


# ---- Queue of two classes, training and evaluation, first in first out in each. Pure: it is told the time
# Promises: whenever something that has not expired waits, `pop` gives something; it never gives what expired; while
# both classes wait, every third start is an evaluation's, so that neither starves.


T = TypeVar("T")

TRAIN_IN_A_ROW = 2  # starts of training while an evaluation waits


@dataclass(eq=False)
class QueueEntry(Generic[T]):
    """Something that waits for a slot."""

    item: T
    priority: Priority
    deadline: float | None  # on the clock of `now`; it never starts after it
    size_bytes: int = 0
    arrived: float = 0.0
    waiting: bool = False

    def expired(self, now: float) -> bool:
        return self.deadline is not None and self.deadline <= now


class ClassQueue(Generic[T]):
    """All that waits."""

    def __init__(self) -> None:
        self._classes: dict[Priority, deque[QueueEntry[T]]] = {each: deque() for each in Priority}
        self._train_in_a_row = 0
        self.size_bytes = 0  # of everything that waits

    def __len__(self) -> int:
        return sum(map(len, self._classes.values()))

    def __iter__(self) -> Iterator[QueueEntry[T]]:
        for waiting in self._classes.values():
            yield from waiting

    def push(self, entry: QueueEntry[T], now: float) -> None:
        """Adds what arrives now."""
        entry.arrived, entry.waiting = now, True
        self._classes[entry.priority].append(entry)
        self.size_bytes += entry.size_bytes

    def remove(self, entry: QueueEntry[T]) -> bool:
        """Takes out an entry; whether it was still waiting."""
        if not entry.waiting:
            return False
        entry.waiting = False
        self._classes[entry.priority].remove(entry)
        self.size_bytes -= entry.size_bytes
        return True

    def pop(
        self, now: float, may_start: Callable[[QueueEntry[T]], bool] = lambda _: True
    ) -> tuple[QueueEntry[T] | None, list[QueueEntry[T]]]:
        """What starts now, and what was found expired on the way; both left the queue.

        An entry that may not start yet keeps its turn; nothing overtakes it.
        """
        expired: list[QueueEntry[T]] = []
        while (entry := self._next()) is not None and entry.expired(now):
            self.remove(entry)
            expired.append(entry)
        if entry is None or not may_start(entry):
            return None, expired
        self.remove(entry)
        passes = entry.priority is Priority.TRAIN and self._classes[Priority.EVAL]
        self._train_in_a_row = self._train_in_a_row + 1 if passes else 0
        return entry, expired

    def depths(self) -> dict[Priority, int]:
        """Entries that wait, by class."""
        return {each: len(waiting) for each, waiting in self._classes.items()}

    def ages_s(self, now: float) -> dict[Priority, float]:
        """How long the oldest of each class has waited."""
        return {each: now - waiting[0].arrived if waiting else 0.0 for each, waiting in self._classes.items()}

    def _next(self) -> QueueEntry[T] | None:
        train, evaluation = self._classes[Priority.TRAIN], self._classes[Priority.EVAL]
        if evaluation and (not train or self._train_in_a_row >= TRAIN_IN_A_ROW):
            return evaluation[0]
        return train[0] if train else None


# ---- Slot scheduler: admission to a bounded queue, slots, and the memory budget of one service


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
        bounds: Bounds = Bounds(),
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
