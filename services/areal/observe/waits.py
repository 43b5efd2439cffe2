"""The registry of named waits: whatever waits in a role says who waits, for what, since when and until when.

`areal status` prints these. A wait that is not registered is a silent wait, which this project promises not to have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

SERVED_TEACHER = "teacher"
"""Name of the trainer's wait for a teacher behind an address: who is stuck is elsewhere."""
ENGINE_HEALTH = "engine.health"
"""Name of an agent's wait for its engine, since the first question that is not answered yet."""


@dataclass(frozen=True)
class Wait:
    """One wait that goes on now. `deadline_s` counts from its start; 0 is none."""

    name: str
    owner: str
    waits_for: str
    age_s: float
    deadline_s: float


class WaitRegistry:
    """All waits of one role. Safe from any thread."""

    def __init__(self, owner: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.owner = owner
        self._clock = clock
        self._lock = threading.Lock()
        self._ids = count()
        self._active: dict[int, tuple[str, str | Callable[[], str], float, float]] = {}

    @contextmanager
    def waiting(self, name: str, waits_for: str | Callable[[], str], *, deadline_s: float = 0.0) -> Iterator[None]:
        """Register a wait for the time of the block. Words that change are asked for at each listing."""
        key = next(self._ids)
        with self._lock:
            self._active[key] = (name, waits_for, self._clock(), deadline_s)
        try:
            yield
        finally:
            with self._lock:
                self._active.pop(key, None)

    def reword(self, name: str, waits_for: str) -> None:
        """Other words for the current waits of this name, whose age goes on."""
        with self._lock:
            for key, (named, _, since, deadline_s) in self._active.items():
                if named == name:
                    self._active[key] = (name, waits_for, since, deadline_s)

    def list(self) -> list[Wait]:
        """All current waits, oldest first."""
        now = self._clock()
        with self._lock:
            active = list(self._active.values())
        waits = [
            Wait(name, self.owner, what if isinstance(what, str) else what(), now - since, deadline)
            for name, what, since, deadline in active
        ]
        return sorted(waits, key=lambda wait: -wait.age_s)
