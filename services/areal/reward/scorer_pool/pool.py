"""A pool of killable processes that judge items.

Owns the queue, the processes and the blame. Promises that each item gets exactly one outcome, that an item past its
deadline is killed and costs nobody else more than a restart, and that no process outlives `stop`. It retries an item
once when a process died on it; what happens twice is the item's doing. A process that somebody else killed counts only
when it was a fresh one that had nothing but this item.

Items of a killed process that were judged but not yet reported are judged again, so judging must be repeatable.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from areal.errors import ArealError, BugError
from areal.net.heartbeat import Backoff
from areal.observe.waits import WaitRegistry
from areal.reward.scorer_pool.fork_server import ForkServer
from areal.reward.scorer_pool.process import Child, ScorerCommand, Spawner, Starter

log = logging.getLogger(__name__)

_CHUNK_ITEMS = 64  # items a message: enough to hide its cost
_CHUNK_S = 0.05  # of expected work a message: slow items spread over the processes
_SLOW_ITEM_S = 0.005  # slower items go out in shares for as many processes as there may be
_GROW_AFTER_S = 0.1  # an item waits this long before another process is started for it
_SLACK_S = 5.0  # to begin a batch, or to report it: a healthy process needs microseconds
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0  # between failed starts
_ENDED_BY_OTHERS = ("signal SIGKILL", "signal SIGTERM")  # the kernel short of memory, or a person


@dataclass(frozen=True)
class PoolSize:
    """How many processes. `standby` ones are ready to replace a killed one at once."""

    least: int = 1
    most: int = 1
    standby: int = 0
    start_s: float = 60.0
    recycle_items: int = 0  # a process is replaced after so many items; 0 is never
    recycle_growth_bytes: int = 0  # and when its resident memory has grown by so much; 0 is never


@dataclass(frozen=True, slots=True)
class ScorerAnswer:
    """What the judge returned."""

    value: Any
    wall_s: float


@dataclass(frozen=True, slots=True)
class DeadlineHit:
    """The item ran longer than its deadline and was killed."""

    deadline_s: float


@dataclass(frozen=True, slots=True)
class ScorerCrash:
    """The item ended its process, twice; `killed`: from outside, each time in a fresh process of its own."""

    how: str
    killed: bool = False


@dataclass(frozen=True, slots=True)
class ScorerUnavailable:
    """No process could judge the item; nothing is known about it."""

    reason: str


Outcome = ScorerAnswer | DeadlineHit | ScorerCrash | ScorerUnavailable


@dataclass(eq=False, slots=True)
class _Task:
    payload: Any
    deadline_s: float
    queued_at: float
    wait_s: float
    answer: asyncio.Future[Outcome]
    deaths: int = 0  # of a process while it judged this item
    kills: int = 0  # of a fresh process that had only this item, by somebody else
    losses: int = 0  # of a process that held this item, for no item's sake
    alone: bool = field(default=False)
    fresh: bool = field(default=False)  # wants a process that has judged nothing

    def resolve(self, outcome: Outcome) -> None:
        if not self.answer.done():
            self.answer.set_result(outcome)


class KillablePool:
    """Judges items in child processes. `start` before use."""

    def __init__(self, command: ScorerCommand, size: PoolSize, waits: WaitRegistry | None = None) -> None:
        self._command = command
        self._starter: Starter = ForkServer(command) if command.preloaded else Spawner(command)
        self._size = size
        self.slots = size.most
        self._waits = waits or WaitRegistry("reward")
        self._queue: deque[_Task] = deque()
        self._arrived = asyncio.Event()
        self._slots: set[asyncio.Task[None]] = set()
        self._spares: deque[asyncio.Task[Child]] = deque()
        self._last_failure = ""
        self._item_s = _SLOW_ITEM_S  # smoothed; unknown items may be slow
        self._growing: asyncio.TimerHandle | None = None
        self.kills = 0
        self.starts = 0

    async def start(self) -> None:
        """Starts the first processes. Raises DataError when they can never work, InfraError when they don't start."""
        first = await self._starter.start_child(self._size.start_s)
        self.starts += 1
        self._add_slot(first)
        for _ in range(self._size.least - 1):
            self._add_slot(None)
        self._top_up()

    async def stop(self) -> None:
        """Kills all processes; items still waiting are unserved."""
        if self._growing is not None:
            self._growing.cancel()
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)
        for spare in self._spares:
            spare.cancel()
            with contextlib.suppress(asyncio.CancelledError, ArealError):
                await (await spare).kill()
        self._spares.clear()
        await self._starter.stop()
        for task in self._queue:
            task.resolve(ScorerUnavailable("the reward service is stopping"))
        self._queue.clear()

    async def run(self, payloads: Sequence[Any], deadlines_s: Sequence[float], wait_s: float) -> list[Outcome]:
        """Judges items; returns their outcomes in order.

        Args:
            payloads: JSON values, one an item.
            deadlines_s: how long each may run.
            wait_s: how long items may wait for a process before they are unserved.
        """
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        tasks = [
            _Task(payload, deadline_s, now, wait_s, loop.create_future())
            for payload, deadline_s in zip(payloads, deadlines_s, strict=True)
        ]
        self._queue.extend(tasks)
        self._arrived.set()
        if self._growing is None:
            self._growing = loop.call_later(_GROW_AFTER_S, self._grow)
        expiry = loop.call_later(wait_s, self._expire, tasks)
        try:
            with self._waits.waiting(f"reward.{self._command.name}", f"{len(tasks)} items judged", deadline_s=wait_s):
                return list(await asyncio.gather(*(task.answer for task in tasks)))
        finally:
            expiry.cancel()

    def _expire(self, tasks: list[_Task]) -> None:
        for task in tasks:
            if task in self._queue:
                self._queue.remove(task)
                reason = f"no {self._command.name} scorer was free for {task.wait_s:g} s"
                task.resolve(ScorerUnavailable(f"{reason}; {self._last_failure}" if self._last_failure else reason))

    def _grow(self) -> None:
        """Adds a process while items wait and there may be more; looks again later as long as any wait."""
        self._growing = None
        if not self._queue or len(self._slots) >= self._size.most:
            return
        if time.monotonic() - self._queue[0].queued_at >= _GROW_AFTER_S:
            self._add_slot(None)
        self._growing = asyncio.get_running_loop().call_later(_GROW_AFTER_S, self._grow)

    def _add_slot(self, child: Child | None) -> None:
        slot = asyncio.create_task(self._work(child))
        self._slots.add(slot)
        slot.add_done_callback(self._slot_ended)

    def _slot_ended(self, slot: asyncio.Task[None]) -> None:
        self._slots.discard(slot)
        if not slot.cancelled() and (error := slot.exception()) is not None:
            log.error("a slot of the %s scorers failed; it starts anew", self._command.name, exc_info=error)
            self._add_slot(None)

    def _top_up(self) -> None:
        while len(self._spares) < self._size.standby:
            self._spares.append(self._starting())

    def _starting(self) -> asyncio.Task[Child]:
        return asyncio.create_task(self._starter.start_child(self._size.start_s))

    async def _fresh(self) -> Child:
        """A ready process, however many starts it takes."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            starting = self._spares.popleft() if self._spares else self._starting()
            try:
                child = await starting
            except ArealError as error:
                self._last_failure = error.message
                log.error("a %s scorer did not start: %s", self._command.name, error)
                pause = backoff.failed()
                with self._waits.waiting(f"reward.{self._command.name}.restart", error.message, deadline_s=pause):
                    await asyncio.sleep(pause)
                continue
            except asyncio.CancelledError:
                starting.cancel()
                raise
            self.starts += 1
            self._top_up()
            if child.alive:
                self._last_failure = ""
                return child
            await child.kill()

    async def _work(self, child: Child | None) -> None:
        """One slot: takes work, has it judged, replaces its process when that dies."""
        try:
            while True:
                if child is None:
                    child = await self._fresh()
                if not (chunk := await self._chunk()):
                    continue
                # It died while it had nothing to do, which is nobody's fault; or it isn't fresh enough.
                if not child.alive or (chunk[0].fresh and child.items_sent):
                    self._again(chunk)
                    await child.kill()
                    child = None
                    continue
                try:
                    survived = await self._judge(child, chunk)
                except BaseException:
                    for task in chunk:
                        task.resolve(ScorerUnavailable("the reward service is stopping"))
                    raise
                items, growth = self._size.recycle_items, self._size.recycle_growth_bytes
                worn = (items and child.items_sent >= items) or (growth and child.grown_bytes() >= growth)
                if survived and worn:
                    await child.kill()
                    survived = False
                if not survived:
                    child = None
        finally:
            if child is not None:
                await asyncio.shield(child.kill())

    async def _chunk(self) -> list[_Task]:
        """The next items for one message."""
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        by_time = int(_CHUNK_S / self._item_s) if self._item_s > 0 else _CHUNK_ITEMS
        shares = self._size.most if self._item_s >= _SLOW_ITEM_S else max(1, len(self._slots))
        by_share = -(-len(self._queue) // shares)
        room = max(1, min(_CHUNK_ITEMS, by_time, by_share))
        chunk: list[_Task] = []
        while self._queue and len(chunk) < room:
            if self._queue[0].answer.done():  # its caller went away
                self._queue.popleft()
                continue
            if self._queue[0].alone and chunk:
                break
            chunk.append(self._queue.popleft())
            if chunk[-1].alone:
                break
        return chunk

    async def _judge(self, child: Child, chunk: list[_Task]) -> bool:
        """Has a batch judged; True when the process lives on. Afterwards each item is resolved or queued again."""
        sent = time.monotonic()
        only = child.items_sent == 0 and len(chunk) == 1
        first = child.send([task.payload for task in chunk])
        done = 0
        soonest_s = min(task.deadline_s for task in chunk)  # whatever it works on by then can't be overdue before
        while done < len(chunk):
            item, overdue_at = _overdue(child, chunk, first, done, sent)
            try:
                message = await child.receive(max(0.0, min(soonest_s, overdue_at - time.monotonic())))
            except TimeoutError:
                item, overdue_at = _overdue(child, chunk, first, done, sent)
                if time.monotonic() < overdue_at:
                    continue
                self.kills += 1
                await child.kill()
                if item is None:
                    self._lost(chunk[done:], "the process stopped reporting")
                else:
                    chunk[item].resolve(DeadlineHit(chunk[item].deadline_s))
                    self._took(chunk[item].deadline_s)
                    self._again([task for task in chunk[done:] if task is not chunk[item]])
                return False
            if message is None:
                item, _ = _overdue(child, chunk, first, done, sent)
                self._after_death(chunk[done:], None if item is None else chunk[item], await child.gone(), only)
                return False
            if not isinstance(message, list) or len(message) > len(chunk) - done:
                raise BugError(f"a {self._command.name} scorer sent {message!r:.80} for {len(chunk) - done} items")
            for value, wall_s in message:
                chunk[done].resolve(ScorerAnswer(value, wall_s))
                self._took(wall_s)
                done += 1
        return True

    def _took(self, wall_s: float) -> None:
        self._item_s += 0.05 * (wall_s - self._item_s)

    def _after_death(self, left: list[_Task], guilty: _Task | None, how: str, only: bool) -> None:
        """`only`: the process had judged nothing before, and held nothing but the guilty item."""
        if guilty is None:
            self._lost(left, f"the process ended ({how})")
            return
        guilty.alone = True
        log.warning("a %s scorer ended (%s) while it judged an item", self._command.name, how)
        if killed := how in _ENDED_BY_OTHERS:
            guilty.fresh = True
            guilty.kills += only
        else:
            guilty.deaths += 1
        if guilty.deaths > 1 or guilty.kills > 1:
            guilty.resolve(ScorerCrash(how, killed))
            left = [task for task in left if task is not guilty]
        self._again(left)

    def _lost(self, left: list[_Task], why: str) -> None:
        for task in left:
            task.losses += 1
            if task.losses > 1:
                task.resolve(ScorerUnavailable(why))
        self._again([task for task in left if task.losses <= 1])

    def _again(self, tasks: list[_Task]) -> None:
        self._queue.extendleft(reversed(tasks))
        self._arrived.set()
        if tasks:
            asyncio.get_running_loop().call_later(max(task.wait_s for task in tasks), self._expire, tasks)


def _overdue(child: Child, chunk: list[_Task], first: int, done: int, sent: float) -> tuple[int | None, float]:
    """Which item of the batch runs now, and when patience with the process ends.

    None: it runs none — it has yet to begin the batch, or has judged all of it and has yet to say so.
    """
    number, began = child.working_on()
    item = number - first
    if item < 0 or began < sent:
        return None, sent + _SLACK_S
    if item >= len(chunk):
        return None, began + _SLACK_S
    if item < done:
        return None, began + chunk[item].deadline_s + _SLACK_S
    return item, began + chunk[item].deadline_s
