"""The registry of named waits: whatever waits in a role says who waits, for what, since when and until when.

`areal status` prints these. A wait that is not registered is a silent wait, which this project promises not to have.
A call of a user's function is one that tells the line it is at, so that a lock that never opens has a place: the stack
of its thread is read (`sys._current_frames`), as faulthandler does, when somebody asks.
"""

import asyncio
import contextlib
import faulthandler
import functools
import io
import math
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

SERVED_TEACHER = "teacher"
"""Name of the trainer's wait for a teacher behind an address: who is stuck is elsewhere."""
ENGINE_HEALTH = "engine.health"
"""Name of an agent's wait for its engine, since the first question that is not answered yet."""
LOST = ".lost"
"""Names of waits for a service that answers no call end so; see `LostService`."""


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
    def waiting(
        self, name: str, waits_for: str | Callable[[], str], *, deadline_s: float = 0.0, age_s: float = 0.0
    ) -> Iterator[None]:
        """Register a wait for the time of the block, and the `age_s` before it. Words that change are asked for at each
        listing.
        """
        key = next(self._ids)
        with self._lock:
            self._active[key] = (name, waits_for, self._clock() - age_s, deadline_s)
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


class LostService:
    """The wait for a service that answers none of a client's calls, since the first of them began.

    It begins when a call fails for want of the service, and ends with an answer, or when nobody asks any more: a call
    that only takes long says nothing of a service that works. For one event loop.
    """

    def __init__(
        self, waits: WaitRegistry, name: str, waits_for: str, *, deadline_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._enter = functools.partial(waits.waiting, f"{name}{LOST}", waits_for, deadline_s=deadline_s)
        self._clock = clock
        self._asking = 0
        self._answered_at = -math.inf
        self._wait = contextlib.ExitStack()
        self._lost = False

    def asked(self) -> float:
        """Somebody wants an answer; the time, for `failed`. Each is followed by a `left`."""
        self._asking += 1
        return self._clock()

    def left(self, *_: object) -> None:
        """Somebody has an answer, or wants none any more."""
        self._asking -= 1
        if not self._asking:
            self._end()

    def failed(self, began: float) -> None:
        """A call that began then failed: the service was not reached, or could not do its work. No news after an answer
        to a call that began later.
        """
        if not self._lost and self._asking and began >= self._answered_at:
            self._lost = True
            self._wait.enter_context(self._enter(age_s=self._clock() - began))

    def answered(self) -> None:
        """A call was answered."""
        self._answered_at = self._clock()
        self._end()

    def _end(self) -> None:
        self._lost = False
        self._wait.close()


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


# ---- A role's progress: a counter that grows only when work is done, and what the role is doing now


class ProgressCounter:
    """Safe from any thread. `policy_id` and `doing` are plain words for `areal status` and the logs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.value = 0  # units of work done since this process started
        self._changed = clock()
        self.policy_id = ""
        self.doing = "starting"

    def advance(self, n: int = 1) -> None:
        """`n` more units of work are done."""
        if n:
            with self._lock:
                self.value += n
                self._changed = self._clock()

    def since_s(self, now: float | None = None) -> float:
        """Seconds since the last progress."""
        return (self._clock() if now is None else now) - self._changed


# ---- Watchdog that dumps the stacks of all threads into the log (faulthandler) when a role stalls
# A heartbeat that stays away, as the loop is blocked or the interpreter's lock is held, is told by faulthandler's own
# thread, which needs neither. One that beats while nothing is done for long tells once.


BLOCKED_S = 8.0  # without a heartbeat: a loop that turns is never so late, even on a loaded machine
STALLED_S = 120.0  # without progress: most steps, answers and loads are shorter
_BEAT_S = 1.0
_DEPTH = 12  # frames of a task


class StallWatch:
    """`beat` is to be called once a second from what must not block. One a process: faulthandler has one timer."""

    def __init__(
        self, progress: ProgressCounter, *, blocked_s: float = BLOCKED_S, stalled_s: float = STALLED_S
    ) -> None:
        self._progress = progress
        self._blocked_s = blocked_s
        self._stalled_s = stalled_s
        self._told = False

    def beat(self, more: Callable[[], str] = lambda: "") -> None:
        """Arm the timer anew; when nothing was done for long, tell the stacks and what `more()` says, once."""
        faulthandler.dump_traceback_later(self._blocked_s, file=_target())
        if (since := self._progress.since_s()) < self._stalled_s:
            self._told = False
        elif not self._told:
            self._told = True
            print(f"no progress for {since:.0f} s: {self._progress.doing}; stacks of all threads:", file=_target())
            _target().flush()
            faulthandler.dump_traceback(file=_target())
            print(more(), file=_target(), flush=True)

    @contextlib.asynccontextmanager
    async def on_loop(self) -> AsyncIterator[None]:
        """Beat on this event loop for the time of the block."""

        async def beats() -> None:
            while True:
                self.beat(tasks)
                await asyncio.sleep(_BEAT_S)

        beating = asyncio.create_task(beats(), name="stall watch")
        try:
            yield
        finally:
            beating.cancel()
            faulthandler.cancel_dump_traceback_later()

    def on_thread(self) -> Callable[[], None]:
        """Beat on a thread of its own; the answer ends it."""
        stop = threading.Event()

        def beats() -> None:
            while not stop.is_set():
                self.beat()
                stop.wait(_BEAT_S)
            faulthandler.cancel_dump_traceback_later()

        threading.Thread(target=beats, name="stall watch", daemon=True).start()
        return stop.set


def tasks() -> str:
    """Stacks of the tasks of this event loop: a stack of threads shows none of it."""
    lines = []
    for task in sorted(asyncio.all_tasks(), key=lambda one: one.get_name()):
        lines.append(f"Task {task.get_name()} (most recent call last):")
        awaited: Any = task.get_coro()
        for _ in range(_DEPTH):
            frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
            if frame is None:
                break
            lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
            awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
    return "\n".join(lines)


def _target() -> io.TextIOBase:
    """Standard error as it was opened: it has a descriptor, which faulthandler needs."""
    return sys.__stderr__  # type: ignore[return-value]
