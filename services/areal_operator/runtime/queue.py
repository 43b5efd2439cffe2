"""Work queue of keys: deduplicated, delayed, one worker a key, exponential back-off for keys that fail.

`KeySchedule` decides which key is due and is pure; `Queue` runs workers on it.
"""

import asyncio
import heapq
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from areal.errors import ArealError
from areal.net.heartbeat import Backoff

from areal_operator.kube.errors import ConflictError
from areal_operator.kube.resources import Key

log = logging.getLogger(__name__)

_BACKOFF_S = (1.0, 300.0)  # of a key whose worker raised, at first and at the longest


@dataclass
class KeySchedule:
    """When each key is due. A key is in at most one worker's hands; what is added meanwhile waits for its return."""

    _due: dict[Key, float] = field(default_factory=dict)
    _heap: list[tuple[float, Key]] = field(default_factory=list)  # with entries that `_due` has overtaken
    _held: set[Key] = field(default_factory=set)

    def add(self, key: Key, at: float) -> None:
        """Due at `at`, or earlier where it already was."""
        if at < self._due.get(key, float("inf")):
            self._due[key] = at
            if key not in self._held:
                heapq.heappush(self._heap, (at, key))

    def take(self, now: float) -> tuple[Key, float] | None:
        """Hand out the key that is due the longest, and since when; None when none is."""
        if not self._ripe(now):
            return None
        at, key = heapq.heappop(self._heap)
        del self._due[key]
        self._held.add(key)
        return key, at

    def done(self, key: Key) -> None:
        """The key was worked on."""
        self._held.discard(key)
        if key in self._due:
            heapq.heappush(self._heap, (self._due[key], key))

    def wait_s(self, now: float) -> float | None:
        """Seconds until some key is due; None when nothing is to come (but what is held, or added)."""
        self._ripe(now)
        return max(0.0, self._heap[0][0] - now) if self._heap else None

    def depth(self, now: float) -> int:
        """Number of due keys. Safe from any thread."""
        return sum(at <= now for at in list(self._due.values()))

    def _ripe(self, now: float) -> bool:
        while self._heap:
            at, key = self._heap[0]
            if key not in self._held and self._due.get(key) == at:
                return at <= now
            heapq.heappop(self._heap)
        return False


@dataclass(frozen=True)
class WorkResult:
    """What became of one run of the worker; for metrics."""

    key: Key
    result: str  # ok, requeue, conflict, error
    waited_s: float
    took_s: float


class Queue:
    """A deduplicating, delaying queue of keys."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
        on_done: Callable[[WorkResult], None] = lambda done: None,
    ) -> None:
        self._clock = clock
        self._uniform = uniform
        self._on_done = on_done
        self._schedule = KeySchedule()
        self._backoffs: dict[Key, Backoff] = {}
        self._changed = asyncio.Event()
        self._stopping = False

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """Have `key` worked on in `after_s` seconds or earlier. While it is being worked on, it runs again after."""
        self._schedule.add(key, self._clock() + max(0.0, after_s))
        self._changed.set()

    @property
    def depth(self) -> int:
        """Number of due keys that wait for a worker."""
        return self._schedule.depth(self._clock())

    def stop(self) -> None:
        """Hand out no more keys; `run` returns when no worker holds one."""
        self._stopping = True
        self._changed.set()

    async def run(self, worker: Callable[[Key], Awaitable[float | None]], workers: int = 4) -> None:
        """Work until stopped or cancelled. The worker returns seconds until it wants the key again, or None.

        An exception is logged and the key comes back after its own back-off: 1 s, doubled up to 5 minutes, until the
        worker returns.
        """
        running: set[asyncio.Task[None]] = set()
        try:
            while running or not self._stopping:
                self._changed.clear()
                room = 0 if self._stopping else workers
                while len(running) < room and (taken := self._schedule.take(self._clock())):
                    task = asyncio.create_task(self._work(worker, *taken), name=f"reconcile {taken[0]}")
                    running.add(task)
                    task.add_done_callback(running.discard)
                    task.add_done_callback(lambda _task: self._changed.set())
                wait_s = self._schedule.wait_s(self._clock()) if len(running) < room else None
                try:
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
                except TimeoutError:
                    pass
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _work(self, worker: Callable[[Key], Awaitable[float | None]], key: Key, due_at: float) -> None:
        began = self._clock()
        result = "error"
        try:
            again_s = await worker(key)
        except ConflictError as conflict:  # someone else wrote first: normal, but look again
            result = "conflict"
            self._again(key, conflict)
        except Exception as error:
            self._again(key, error)
        else:
            result = "ok" if again_s is None else "requeue"
            self._backoffs.pop(key, None)
            if again_s is not None:
                self.add(key, again_s)
        finally:
            self._schedule.done(key)
            self._changed.set()
            self._on_done(WorkResult(key, result, began - due_at, self._clock() - began))

    def _again(self, key: Key, error: Exception) -> None:
        backoff = self._backoffs.get(key)
        if backoff is None:
            backoff = self._backoffs[key] = Backoff(*_BACKOFF_S, self._uniform)
        pause_s = backoff.failed()
        self.add(key, pause_s)
        namespace, name = key
        where = {"namespace": namespace, "rljob": name, "again_s": round(pause_s, 1)}
        told = None if isinstance(error, ArealError) else error  # ours have a message for people, others a traceback
        log.warning("%s: %s", type(error).__name__, error, extra=where, exc_info=told)
