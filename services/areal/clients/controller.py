"""A worker's stream to the rollout controller: always open, opened again when it breaks.

Owns the connection, the beat each half second and the pace of messages. What a message says comes from its owner:
`hello` makes the first one of every stream (all that a controller which forgot must know), `report` every later one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable

import grpc

from areal.net.channel import connect, raise_if_cancelled
from areal.net.heartbeat import PERIOD_S
from areal.observe.waits import WaitRegistry
from areal.v1 import rollout_pb2 as wire
from areal.v1 import rollout_pb2_grpc as wire_grpc

log = logging.getLogger(__name__)

GATHER_S = 0.003  # news of one burst travel together
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 1.0  # a controller that restarted should know its workers within a second
_ENDED = "the controller ended it"
SILENCE_S = 5.0  # a controller answers each half second; one that doesn't for so long hangs


class WorkClient:
    """Runs from `start` to `close`. Callbacks run on the event loop and must not block."""

    def __init__(
        self,
        address: str,
        token: str,
        *,
        hello: Callable[[], wire.WorkerMessage],
        report: Callable[[], wire.WorkerMessage],
        on_orders: Callable[[wire.WorkOrders], None],
        waits: WaitRegistry,
    ) -> None:
        self._address = address
        self._token = token
        self._hello = hello
        self._report = report
        self._on_orders = on_orders
        self._waits = waits
        self._news = asyncio.Event()
        self._stream_number = 0
        self._finishing = False
        self._said_last = False
        self._finished = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.connected = False

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._run(), name="controller stream")

    def wake(self) -> None:
        """There is something to report."""
        self._news.set()

    async def finish(self, timeout_s: float) -> bool:
        """Report what there is to report, as the last message; True when the controller has read it.

        The stream is closed from this side then, and the controller ends it once it has read everything: a stream that
        is cut off may take with it what was sent.
        """
        self._finishing = True
        self._news.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._finished.wait()
                return True
        return False

    async def close(self) -> None:
        """End the stream."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        backoff = FIRST_BACKOFF_S
        while True:
            began = time.monotonic()
            why = await self._stream()
            raise_if_cancelled()
            self.connected = False
            if self._said_last and why == _ENDED:
                self._finished.set()
                return
            self._stream_number += 1
            self._news.set()
            log.warning("the controller's stream ended: %s", why)
            backoff = FIRST_BACKOFF_S if time.monotonic() - began > MAX_BACKOFF_S else min(2 * backoff, MAX_BACKOFF_S)
            with self._waits.waiting("controller", self._address):
                await asyncio.sleep(backoff)

    async def _stream(self) -> str:
        """One stream from its first message to its end; says why it ended."""
        try:
            async with connect(self._address, self._token) as channel:
                with self._waits.waiting("controller", self._address):
                    await channel.channel_ready()
                call = wire_grpc.RolloutStub(channel).Work(self._messages(self._stream_number))
                while True:
                    async with asyncio.timeout(SILENCE_S):  # wait_for may swallow a cancellation
                        orders = await anext(aiter(call), None)
                    if orders is None:
                        return _ENDED
                    self.connected = True
                    self._on_orders(orders)
        except TimeoutError:
            return f"no answer for {SILENCE_S} s"
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except asyncio.CancelledError:
            raise_if_cancelled()
            return "cancelled by the peer"

    async def _messages(self, number: int) -> AsyncIterator[wire.WorkerMessage]:
        """Messages of stream `number`. A generator may outlive its stream: it must not take the next one's news."""
        if number == self._stream_number:
            self._said_last = False
            yield self._hello()
        while number == self._stream_number:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._news.wait()
                    await asyncio.sleep(GATHER_S)
            if number != self._stream_number:
                return
            self._news.clear()
            last = self._finishing
            yield self._report()
            if last:
                self._said_last = True
                return
