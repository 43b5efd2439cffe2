"""Queue of two classes, training and evaluation, first in first out in each. Pure: it is told the time.

Promises: whenever something that has not expired waits, `pop` gives something; it never gives what expired; while both
classes wait, every third start is an evaluation's, so that neither starves.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from areal_judge.judge.dispatch.values import Priority

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
