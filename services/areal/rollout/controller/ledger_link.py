"""The controller's line to the ledger: carries its operations out in order, through restarts of Redis.

Owns retries and the watch over Redis' run id. Closes that follow each other run together. When Redis comes back with
another run id the ledger is claimed again, what was queued is dropped, and the core is told: it compares everything
anew. Never blocks the core: answers are posted to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import takewhile
from typing import Protocol, TypeAlias

from areal.errors import InfraError
from areal.ledger.values import CloseResult, CloseStatus, LedgerSnapshot
from areal.observe.waits import WaitRegistry
from areal.rollout.controller.core import Controller
from areal.rollout.controller.decisions import AdvanceLedger, CloseGroup, ReopenGroup, ScanLedger

log = logging.getLogger(__name__)

Operation: TypeAlias = CloseGroup | ReopenGroup | ScanLedger | AdvanceLedger
Post: TypeAlias = Callable[[Callable[[Controller, float], None]], None]

_WATCH_S = 0.5  # how soon a restart that broke no call of ours is noticed
_PAUSE_S = 0.1  # between tries while Redis is away; it is back within a second when warm
_CLOSES_AT_ONCE = 64  # more would only queue inside the client


class ControllerLedger(Protocol):
    """What the link needs of `areal.ledger.AsyncLedger`."""

    async def claim(self, fence: int) -> None: ...
    async def close(
        self, fence: int, group: int, outcome: str, group_size: int, at_least: int | None = None
    ) -> CloseResult: ...
    async def reopen(self, fence: int, group: int) -> bool: ...
    async def advance(self, fence: int, cursor: int, trainer_fence: int | None = None) -> int: ...
    async def scan(self) -> LedgerSnapshot: ...
    async def run_id(self) -> str: ...


class LedgerLink:
    """One queue of operations and the task that works it off."""

    def __init__(
        self, ledger: ControllerLedger, fence: int, group_size: int, post: Post, waits: WaitRegistry, run_id: str
    ) -> None:
        self._ledger = ledger
        self._fence = fence
        self._group_size = group_size
        self._post = post
        self._waits = waits
        self._run_id = run_id
        self._queue: deque[Operation] = deque()
        self._wake = asyncio.Event()

    def submit(self, operation: Operation) -> None:
        """Queue an operation; its answer is posted to the core."""
        self._queue.append(operation)
        self._wake.set()

    async def run(self) -> None:
        """Work the queue off for ever. Ends by FencedError when a newer controller is alive."""
        while True:
            try:
                async with asyncio.timeout(_WATCH_S):
                    await self._wake.wait()
            except TimeoutError:
                await self._through_restarts(self._watch)
                continue
            self._wake.clear()
            while self._queue:
                await self._through_restarts(self._next)

    async def _through_restarts(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
            return
        except InfraError as error:
            log.warning("the ledger is away: %s", error)
        with self._waits.waiting("ledger", "Redis answers again"):
            while True:
                await asyncio.sleep(_PAUSE_S)
                try:
                    await self._watch()
                except InfraError:
                    continue
                return

    async def _watch(self) -> None:
        """Notice another run id: the ledger may have lost what it confirmed."""
        run_id = await self._ledger.run_id()
        if run_id == self._run_id:
            return
        await self._ledger.claim(self._fence)
        log.warning("Redis restarted (run id %s): comparing the ledger with the journal", run_id[:8])
        self._run_id = run_id
        self._queue.clear()
        self._post(lambda core, now: core.ledger_restarted())

    async def _next(self) -> None:
        """The first operation, or all closes up to the next other one. They leave the queue when they succeeded."""
        operation = self._queue[0]
        if isinstance(operation, CloseGroup):
            closes = list(takewhile(lambda op: isinstance(op, CloseGroup), self._queue))[:_CLOSES_AT_ONCE]
            await asyncio.gather(*(self._close(close) for close in closes if isinstance(close, CloseGroup)))
            done = len(closes)
        else:
            await self._one(operation)
            done = 1
        for _ in range(done):
            self._queue.popleft()

    async def _close(self, close: CloseGroup) -> None:
        at_least = len(close.indices) if close.short else None
        answer = await self._ledger.close(self._fence, close.group, close.outcome, self._group_size, at_least)
        outcome = answer.outcome or close.outcome
        missing = answer.missing if answer.status is CloseStatus.MISSING else ()
        self._post(lambda core, now: core.closed(now, close.epoch, close.group, outcome, missing))

    async def _one(self, operation: Operation) -> None:
        match operation:
            case ScanLedger(ticket, epoch):
                view = await self._ledger.scan()
                self._post(lambda core, now: core.scanned(now, ticket, epoch, view))
            case AdvanceLedger(cursor, trainer_fence):
                await self._ledger.advance(self._fence, cursor, trainer_fence or None)
            case ReopenGroup(group):
                await self._ledger.reopen(self._fence, group)
            case CloseGroup():
                await self._close(operation)
