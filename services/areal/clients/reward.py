"""Scoring completions: items of many episodes travel in one call, and a fault is never a score.

Owns batching (a short window), retries of infrastructure faults on other replicas or after a pause, and the deadline
after which the fault surfaces as InfraError. A fault of the user's data or code surfaces at once as DataError.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from areal.errors import ArealError, BugError, InfraError
from areal.net.channel import connect
from areal.net.status import from_fault, raise_as
from areal.observe.waits import LostService, WaitRegistry
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as wire
from areal.v1 import reward_pb2_grpc as wire_grpc

log = logging.getLogger(__name__)

WINDOW_S = 0.002  # answers of one engine step end together: 2 ms gathers most of them
MAX_ITEMS = 64
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 2.0
CALL_SLACK = 4.0  # a batch may wait for slots: this many times an item's deadline, and
CALL_EXTRA_S = 20.0  # this long for the service's own queue


def call_timeout_s(deadline_s: float) -> float:
    """Timeout of a call whose slowest item may take `deadline_s`: afterwards nobody reads its results."""
    return CALL_SLACK * deadline_s + CALL_EXTRA_S


@dataclass(frozen=True)
class Score:
    """A score, and the verdict behind it where there is one."""

    value: float
    verdict: common.Verdict | None = None


@dataclass
class _PendingScore:
    item: wire.ScoreItem
    future: asyncio.Future[Score]
    gives_up_at: float
    tries: int = 0


class RewardClient:
    """Scores by one reward service, of one or more replicas. Lives on one event loop."""

    def __init__(
        self,
        addresses: Sequence[str],
        token: str,
        *,
        waits: WaitRegistry,
        deadline_s: float = 10.0,
        patience_s: float = 120.0,
    ) -> None:
        if not addresses:
            raise BugError("a reward client needs an address")
        self._channels = [connect(address, token) for address in addresses]
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        named = f"{', '.join(dict.fromkeys(addresses))} to score"
        self._lost = LostService(waits, "reward", named, deadline_s=patience_s)
        self._turn = 0
        self._queue: list[_PendingScore] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def score(self, item: wire.ScoreItem) -> Score:
        """Score one item. Raises InfraError when nobody could for `patience_s`, DataError when the item is at fault."""
        return await self.submit(item)

    def submit(self, item: wire.ScoreItem) -> asyncio.Future[Score]:
        """Begin to score one item; cancel the future to drop it."""
        if not item.deadline_s:
            item.deadline_s = self._deadline_s
        loop = asyncio.get_running_loop()
        pending = _PendingScore(item, loop.create_future(), self._lost.asked() + self._patience_s)
        pending.future.add_done_callback(self._lost.left)
        self._enqueue(pending)
        return pending.future

    async def close(self) -> None:
        """Drop what is under way and close the channels."""
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pending in self._queue:
            pending.future.cancel()
        for channel in self._channels:
            await channel.close()

    def _enqueue(self, pending: _PendingScore) -> None:
        self._queue.append(pending)
        if len(self._queue) >= MAX_ITEMS:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._queue = self._queue[:MAX_ITEMS], self._queue[MAX_ITEMS:]
        batch = [pending for pending in batch if not pending.future.done()]
        if batch:
            task = asyncio.create_task(self._send(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._queue:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._flush)

    async def _send(self, batch: list[_PendingScore]) -> None:
        replica = self._turn = (self._turn + 1) % len(self._channels)
        call_s, began = call_timeout_s(max(pending.item.deadline_s for pending in batch)), time.monotonic()
        try:
            results = await self._call(replica, batch, call_s)
        except asyncio.CancelledError:
            for pending in batch:
                pending.future.cancel()
            raise
        except ArealError as error:
            for pending in batch:
                self._failed(pending, error)
        else:
            for pending, result in zip(batch, results, strict=True):
                self._settle(pending, result)
        self._lost.failed(began)  # unless an item was answered
        await self._again([pending for pending in batch if not pending.future.done()])

    async def _call(self, replica: int, batch: list[_PendingScore], timeout_s: float) -> list[wire.ScoreResult]:
        stub = wire_grpc.RewardStub(self._channels[replica])
        try:
            reply = await stub.Score(wire.ScoreRequest(items=[pending.item for pending in batch]), timeout=timeout_s)
        except grpc.RpcError as error:
            raise_as(error)
        if len(reply.results) != len(batch):
            raise BugError(f"the reward service answered {len(reply.results)} of {len(batch)} items")
        return list(reply.results)

    def _settle(self, pending: _PendingScore, result: wire.ScoreResult) -> None:
        if (outcome := result.WhichOneof("outcome")) == "fault":
            if not isinstance(error := from_fault(result.fault), InfraError):
                self._lost.answered()
            self._failed(pending, error)
            return
        self._lost.answered()
        if outcome is None:
            self._failed(pending, BugError("the reward service answered neither score nor fault"))
        elif not pending.future.done():
            verdict = result.verdict if outcome == "verdict" else None
            value = verdict.score if verdict is not None else result.score
            if value != value or abs(value) == float("inf"):
                self._failed(pending, BugError(f"the reward service answered {value}, which is no score"))
            else:
                pending.future.set_result(Score(value, verdict))

    def _failed(self, pending: _PendingScore, error: ArealError) -> None:
        """An infrastructure fault stays pending until patience ends; any other one is final."""
        if pending.future.done():
            return
        pending.tries += 1
        if isinstance(error, InfraError) and time.monotonic() < pending.gives_up_at:
            log.info("scoring failed, trying again: %s", error.message)
            return
        pending.future.set_exception(error)

    async def _again(self, pending: list[_PendingScore]) -> None:
        if not pending:
            return
        await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** min(pending[0].tries, 8), MAX_PAUSE_S))
        for item in pending:
            if not item.future.done():
                self._enqueue(item)
