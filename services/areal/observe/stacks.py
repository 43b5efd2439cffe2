"""Watchdog that dumps the stacks of all threads into the log (faulthandler) when a role stalls.

Armed by a heartbeat and by the progress counter. A heartbeat that stays away, because the event loop is blocked or the
interpreter's lock is held, is told by faulthandler's own thread, which needs neither. A heart that beats while nothing
is done for long tells once, until something is done again.
"""

import asyncio
import contextlib
import faulthandler
import io
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from areal.observe.progress import ProgressCounter

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
