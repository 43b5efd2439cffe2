"""An event loop in a thread of its own, for the user's code: heartbeats go on whatever that code does.

Owns the loop and its daemon thread, and says whether the loop still turns and whose task it runs. A loop that a
blocking call holds can't be freed for certain; it is abandoned: told to stop by an exception in its thread, and never
used again.
"""

import asyncio
import contextlib
import ctypes
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

log = logging.getLogger(__name__)

DELIVERED_AT_ONCE = 64  # calls before the event loop serves others: about ten milliseconds
_LAST_WORDS_S = 0.5  # for the cleanup of cancelled user code when its loop ends

_OWNER: ContextVar[object] = ContextVar("owner of a task", default=None)


class OwnedTask(asyncio.Task[Any]):
    """A task that knows its owner. The owner ends with the task: no table keeps either of them."""

    owner: object = None


class LoopHeldTooLong(BaseException):
    """Raised inside user code that held its event loop for too long."""


class Mailbox:
    """Calls posted to an event loop from any thread, in order; a burst wakes the loop once and doesn't hold it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._awake = False

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Have the loop call `function(*args)` soon. Dropped when the loop is closed."""
        self._calls.append((function, args))
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        for _ in range(DELIVERED_AT_ONCE):
            if not self._calls:
                self._awake = False
                if not self._calls:  # a post from now on wakes the loop; one from before is seen here
                    return
                self._awake = True
            function, args = self._calls.popleft()
            try:
                function(*args)
            except Exception:
                log.exception("a call between event loops failed")
        self.loop.call_soon(self._deliver)


class UserLoop:
    """One event loop in a thread of its own. All methods may be called from any thread."""

    def __init__(self, name: str = "user code") -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(self._make_task)
        self.mailbox = Mailbox(self.loop)
        self.last_turn = time.monotonic()
        self._closing: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        with contextlib.suppress(LoopHeldTooLong):
            self.loop.run_forever()
            for task in (tasks := asyncio.all_tasks(self.loop)):
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=_LAST_WORDS_S))
            if self._closing is not None:
                self._close(self._closing)
            self.loop.close()

    def _close(self, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            self.loop.run_until_complete(asyncio.wait_for(closing(), _LAST_WORDS_S))
        except Exception:
            log.exception("the workflow could not close what it holds")

    def ping(self) -> None:
        """Ask for a sign of life; `last_turn` moves when the loop turns."""
        self.mailbox.post(self._turned)

    def _turned(self) -> None:
        self.last_turn = time.monotonic()

    def start(self, owner: object, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task; the tasks that it begins belong to the same owner. Called on this loop."""
        context = copy_context()
        context.run(_OWNER.set, owner)
        return context.run(self.loop.create_task, coroutine)

    def current_owner(self) -> object | None:
        """The owner of the task that the loop runs at this moment: the culprit, when the loop is held."""
        task = asyncio.current_task(self.loop)
        return task.owner if isinstance(task, OwnedTask) else None

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
        task = OwnedTask(coroutine, loop=loop, **named)
        task.owner = _OWNER.get()
        return task

    def stack(self) -> str:
        """Stack of the thread at this moment."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    def abandon(self) -> None:
        """Give this loop up: interrupt what holds it, if it ever returns to Python, and let the thread end."""
        thread = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(LoopHeldTooLong))
        self.mailbox.post(self.loop.stop)

    def stop(
        self, closing: Callable[[], Coroutine[Any, Any, None]] | None = None, timeout_s: float = 3 * _LAST_WORDS_S
    ) -> None:
        """End the loop, `closing` last; a thread that doesn't end in time dies with the process."""
        self._closing = closing
        self.mailbox.post(self.loop.stop)
        self._thread.join(timeout_s)


def stack_of(task: asyncio.Task[Any]) -> str:
    """Stack of a suspended task, innermost last."""
    lines = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        lines += traceback.format_stack(frame, limit=1)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return "".join(lines)
