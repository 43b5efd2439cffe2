"""Open streams and the orders that wait to go out on them.

Owns coalescing: orders gather for a few milliseconds, and a stream without orders still hears from us twice a second.
Whoever has no stream misses nothing: on reconnect what it holds is compared with what it was given.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from areal.v1 import rollout_pb2 as rollout

COALESCE_S = 0.004
BEAT_S = 0.5
_SERVER_BEAT_S = 0.002  # of each server, so that what many hear costs no more
MAX_BYTES = 8 << 20  # of several rows in a message, half of its limit: images make them large

Orders = TypeVar("Orders", bound=Message)


class Outbox(Generic[Orders]):
    """Orders for one peer. `complete` fills in what every message carries."""

    def __init__(
        self,
        empty: Callable[[], Orders],
        complete: Callable[[Orders], None],
        later: Callable[[Orders, Orders], bool] = lambda orders, rest: False,
        beat_s: Callable[[], float] = lambda: BEAT_S,
    ) -> None:
        """`later` moves what would make a message too large to the next one, and says whether there is some; a peer
        hears at least each `beat_s`."""
        self._empty = empty
        self._complete = complete
        self._later = later
        self._beat_s = beat_s
        self._orders: Orders = empty()
        self._wake = asyncio.Event()
        self.ended = False

    @property
    def orders(self) -> Orders:
        """The message being gathered. Reading it to change it wakes the sender."""
        self._wake.set()
        return self._orders

    def wake(self) -> None:
        """Something that `complete` fills in has changed."""
        self._wake.set()

    def end(self) -> None:
        """No more messages: the peer went, or came back on another stream."""
        self.ended = True
        self._wake.set()

    async def next(self) -> Orders | None:
        """The next message to send: soon after an order, at the latest after the beat's period. None at the end."""
        try:
            async with asyncio.timeout(self._beat_s()):
                await self._wake.wait()
            if not self.ended:
                await asyncio.sleep(COALESCE_S)
        except TimeoutError:
            pass
        if self.ended:
            return None
        self._wake.clear()
        orders, self._orders = self._orders, self._empty()
        if self._later(orders, self._orders):
            self._wake.set()
        self._complete(orders)
        return orders


def later_rows(orders: rollout.WorkOrders, rest: rollout.WorkOrders) -> bool:
    """Leave rows beyond MAX_BYTES to `rest`; one goes whatever its size. A group that is revoked meanwhile is taken out
    there."""
    size = 0
    for name in ("leases", "evaluations"):
        listed, kept = getattr(orders, name), 0
        while kept < len(listed) and (not size or size + listed[kept].ByteSize() <= MAX_BYTES):
            size += listed[kept].ByteSize()
            kept += 1
        getattr(rest, name).extend(listed[kept:])
        del listed[kept:]
    return bool(rest.leases or rest.evaluations)


class WorkerStream:
    """One worker's stream; `incarnation` names its process."""

    def __init__(
        self, worker_id: str, incarnation: str, complete: "Callable[[WorkerStream, rollout.WorkOrders], None]"
    ):
        self.worker_id = worker_id
        self.incarnation = incarnation
        self.fleet_due = True
        self.fleet_told = b""  # what was sent last
        self.fleet_told_at = 0.0
        self.outbox: Outbox[rollout.WorkOrders] = Outbox(
            rollout.WorkOrders, lambda orders: complete(self, orders), later_rows
        )


class Streams:
    """All open streams, by peer."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerStream] = {}
        self.fleet = -math.inf, b""  # all servers as they are told, and when that was made
        self.fleet_changed_at = 0.0
        self.servers: set[Outbox[rollout.ServerOrders]] = set()
        self.trainers: set[Outbox[rollout.TrainerOrders]] = set()

    def open_worker(self, stream: WorkerStream) -> None:
        """A worker's new stream takes the place of its old one."""
        if (old := self.workers.get(stream.worker_id)) is not None:
            old.outbox.end()
        self.workers[stream.worker_id] = stream

    def close_worker(self, stream: WorkerStream) -> None:
        """The stream ended."""
        stream.outbox.end()
        if self.workers.get(stream.worker_id) is stream:
            del self.workers[stream.worker_id]

    def fleet_changed(self) -> None:
        """Every worker is told the whole fleet."""
        self.fleet_changed_at = time.monotonic()
        for stream in self.workers.values():
            stream.fleet_due = True
            stream.outbox.wake()

    def server_beat_s(self) -> float:
        """A thousand servers hear each two seconds: they leave a controller that is silent for five."""
        return min(2.0, max(BEAT_S, len(self.servers) * _SERVER_BEAT_S))

    def wake_servers(self) -> None:
        """The wanted weights changed."""
        for outbox in self.servers:
            outbox.wake()

    def wake_trainers(self) -> None:
        """Wakes the trainers' streams: what they are told changed."""
        for outbox in self.trainers:
            outbox.wake()

    def end(self) -> None:
        """The role stops."""
        workers = [stream.outbox for stream in self.workers.values()]
        every: list[Outbox[Any]] = [*workers, *self.servers, *self.trainers]
        for outbox in every:
            outbox.end()
