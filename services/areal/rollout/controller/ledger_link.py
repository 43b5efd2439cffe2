"""The controller's line to the ledger: carries operations out through restarts of Redis.

Owns retries and the watch over Redis' run id. When Redis comes back with another run id the ledger is claimed again
and the carrier is told, which drops what was meant for the old one. Never blocks the core.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from areal.errors import InfraError
from areal.ledger.values import CloseResult, LedgerSnapshot
from areal.observe.waits import WaitRegistry
from areal.rollout.controller.carrier import Carrier, Operation
from areal.rollout.controller.decisions import AdvanceLedger, AssignBatch, CloseGroup, ReopenGroup, ScanLedger

log = logging.getLogger(__name__)

_WATCH_S = 0.5  # how soon a restart that broke no call of ours is noticed
_PAUSE_S = 0.1  # between tries while Redis is away; it is back within a second when warm


class ControllerLedger(Protocol):
    """What the link needs of `areal.ledger.AsyncLedger`."""

    async def claim(self, fence: int) -> None: ...
    async def close(
        self, fence: int, group: int, outcome: str, group_size: int, at_least: int | None = None
    ) -> CloseResult: ...
    async def reopen(self, fence: int, group: int) -> bool: ...
    async def assign(self, fence: int, step: int, groups: Sequence[int]) -> None: ...
    async def advance(self, fence: int, low: int) -> None: ...
    async def scan(self) -> LedgerSnapshot: ...
    async def run_id(self) -> str: ...


class LedgerLink:
    """The task that asks. What it owes is what the carrier has `unanswered`: a failed call is asked again."""

    def __init__(self, ledger: ControllerLedger, fence: int, group_size: int, waits: WaitRegistry, run_id: str) -> None:
        self._ledger = ledger
        self._fence = fence
        self._group_size = group_size
        self._waits = waits
        self._run_id = run_id
        self._wake = asyncio.Event()
        self._heard = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Since Redis answered last: to a machine without power a call may wait ten seconds before it fails."""
        return time.monotonic() - self._heard

    def wake(self) -> None:
        """The carrier has operations to ask."""
        self._wake.set()

    async def run(self, carrier: Carrier) -> None:
        """Ask for ever. Ends by FencedError when a newer controller is alive."""
        while True:
            try:
                async with asyncio.timeout(_WATCH_S):
                    await self._wake.wait()
            except TimeoutError:
                await self._through_restarts(carrier, lambda: self._watch(carrier))
                continue
            self._wake.clear()
            while operations := carrier.unanswered:
                await self._through_restarts(carrier, lambda asked=operations: self._all(carrier, asked))  # type: ignore[misc]

    async def _through_restarts(self, carrier: Carrier, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
            self._heard = time.monotonic()
            return
        except InfraError as error:
            log.warning("Redis is away: %s", error.message)
        with self._waits.waiting("ledger", "Redis answers"):
            while True:
                await asyncio.sleep(_PAUSE_S)
                try:
                    await self._watch(carrier)
                except InfraError:
                    continue
                self._heard = time.monotonic()
                return

    async def _watch(self, carrier: Carrier) -> None:
        """Notice another run id: the ledger may have lost what it confirmed."""
        if (run_id := await self._ledger.run_id()) == self._run_id:
            return
        await self._ledger.claim(self._fence)
        log.warning("Redis restarted (run id %s): comparing the ledger with the journal", run_id[:8])
        self._run_id = run_id
        carrier.ledger_restarted()

    async def _all(self, carrier: Carrier, operations: Sequence[Operation]) -> None:
        await asyncio.gather(*(self._one(carrier, operation) for operation in operations))

    async def _one(self, carrier: Carrier, operation: Operation) -> None:
        ledger, fence = self._ledger, self._fence
        match operation:
            case CloseGroup(group=group, outcome=outcome):
                at_least = len(operation.indices) if operation.short else None
                closed = await ledger.close(fence, group, outcome, self._group_size, at_least)
                carrier.answered(operation, closed)
            case ScanLedger():
                carrier.answered(operation, await ledger.scan())
            case AssignBatch(step, groups):
                await ledger.assign(fence, step, groups)
                carrier.answered(operation, None)
            case AdvanceLedger(low):
                await ledger.advance(fence, low)
                carrier.answered(operation, None)
            case ReopenGroup(group):
                await ledger.reopen(fence, group)
                carrier.answered(operation, None)
