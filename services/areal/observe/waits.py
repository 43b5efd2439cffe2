"""The registry of named waits: whatever waits in a role says who waits, for what, since when and until when.

`areal status` prints these. A wait that is not registered is a silent wait, which this project promises not to have.
A call of a user's function is one that tells the line it is at, so that a lock that never opens has a place: the stack
of its thread is read (`sys._current_frames`), as faulthandler does, when somebody asks.
"""

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType
from typing import TypeVar

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


WAIT = "user code"
"""The name of these waits."""

T = TypeVar("T")


def told(function: Callable[..., T], waits: WaitRegistry) -> Callable[..., T]:
    """The function, whose calls `waits` lists: which function of which file, and where in it."""
    code = getattr(function, "__code__", None)
    file = code.co_filename if code is not None else ""
    named = f"{getattr(function, '__name__', 'a function')} of {Path(file).name or 'the user'}"

    @functools.wraps(function)
    def called(*args: object, **kwargs: object) -> T:
        thread = threading.get_ident()
        with waits.waiting(WAIT, lambda: f"{named}{_place(sys._current_frames().get(thread), file)}"):
            return function(*args, **kwargs)

    return called


def _place(frame: FrameType | None, file: str) -> str:
    """The innermost line of the file in a stack; empty when it is not there any more."""
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return f", at line {frame.f_lineno} in {frame.f_code.co_name}" if frame is not None else ""
