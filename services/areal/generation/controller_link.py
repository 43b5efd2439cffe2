"""The agent's stream to the rollout controller: beats go up each half second, wanted weights come down.

Owns reconnection. The controller is level-triggered: whoever was away misses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable

import grpc

from areal.net.channel import connect, raise_if_cancelled
from areal.net.heartbeat import PERIOD_S
from areal.observe.progress import ProgressCounter
from areal.observe.waits import WaitRegistry
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rpc

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 1.0  # a controller that restarted should know its servers within a second
SILENCE_S = 5.0  # a controller answers each half second; one that doesn't for so long hangs


class ControllerLink:
    """Runs until cancelled. `on_orders` runs on the event loop and must not block."""

    def __init__(
        self,
        address: str,
        token: str,
        *,
        name: str,
        incarnation: str,
        state: Callable[[], generation.ServerState],
        on_orders: Callable[[rollout.ServerOrders], None],
        progress: ProgressCounter,
        waits: WaitRegistry,
    ) -> None:
        self._address = address
        self._token = token
        self._name = name
        self._incarnation = incarnation
        self._state = state
        self._on_orders = on_orders
        self._progress = progress
        self._waits = waits
        self._news = asyncio.Event()
        self._sequence = itertools.count(1)

    def wake(self) -> None:
        """The state changed: tell it now."""
        self._news.set()

    async def run(self) -> None:
        """Connect, beat, listen; connect again."""
        backoff = FIRST_BACKOFF_S
        while True:
            began = time.monotonic()
            try:
                await self._stream()
                why = "it ended the stream"
            except grpc.aio.AioRpcError as error:
                why = f"{error.code().name}: {error.details()}"
            except TimeoutError:
                why = f"it was silent for {SILENCE_S} s"
            raise_if_cancelled()
            lived = time.monotonic() - began > MAX_BACKOFF_S
            backoff = FIRST_BACKOFF_S if lived else min(2 * backoff, MAX_BACKOFF_S)
            log.info("no stream to the controller (%s), trying again", why)
            with self._waits.waiting("controller", f"a stream to the controller at {self._address}"):
                await asyncio.sleep(backoff)

    async def _stream(self) -> None:
        async with connect(self._address, self._token) as channel:
            with self._waits.waiting("controller", f"the controller at {self._address}"):
                await channel.channel_ready()
            call = rpc.RolloutStub(channel).Serve(self._messages())
            try:
                while True:
                    async with asyncio.timeout(SILENCE_S):
                        orders = await call.read()
                    if not isinstance(orders, rollout.ServerOrders):  # the end of the stream
                        return
                    self._on_orders(orders)
            finally:
                with contextlib.suppress(asyncio.CancelledError):
                    call.cancel()

    async def _messages(self) -> AsyncIterator[rollout.ServerMessage]:
        while True:
            self._news.clear()
            beat = common.Beat(
                node=self._name,
                incarnation=self._incarnation,
                seq=next(self._sequence),
                monotonic_s=time.monotonic(),
                progress=self._progress.value,
            )
            waiting = [
                rollout.Wait(
                    name=wait.name,
                    owner=wait.owner,
                    waits_for=wait.waits_for,
                    age_s=wait.age_s,
                    deadline_s=wait.deadline_s,
                )
                for wait in self._waits.list()
            ]
            yield rollout.ServerMessage(beat=beat, state=self._state(), waiting=waiting)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._news.wait()
