"""The controller's Serve stream, scripted: says which weights are wanted, remembers what servers told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rpc


class FakeController(rpc.RolloutServicer):
    """One gRPC server; `tests/generation` uses it where the real controller would bring a whole job."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._wanted: common.WeightsRef | None = None
        self._turn = (0, False)  # of shared cards: its number, and whether servers sleep
        self._changed = asyncio.Condition()
        self._server: GrpcServer | None = None
        self.address = ""
        self.beats = 0
        self.states: dict[str, generation.ServerState] = {}

    async def start(self, port: int = 0) -> str:
        self._server = GrpcServer("controller", self._token, waits=WaitRegistry("c"), progress=ProgressCounter())
        self._server.add(rpc.add_RolloutServicer_to_server, self, "areal.v1.Rollout")
        self.address = f"127.0.0.1:{await self._server.start(port)}"
        return self.address

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0)

    async def want(self, wanted: common.WeightsRef) -> None:
        async with self._changed:
            self._wanted = wanted
            self._changed.notify_all()

    async def turn(self, number: int, *, sleep: bool) -> None:
        """Say whose turn it is on shared cards."""
        async with self._changed:
            self._turn = (number, sleep)
            self._changed.notify_all()

    async def until(
        self, server_id: str, accepted: Callable[[generation.ServerState], bool], deadline_s: float = 90.0
    ) -> generation.ServerState:
        """Wait for a server to tell a state like that."""

        async def told() -> generation.ServerState:
            async with self._changed:
                await self._changed.wait_for(lambda: server_id in self.states and accepted(self.states[server_id]))
                return self.states[server_id]

        return await asyncio.wait_for(told(), deadline_s)

    async def Serve(
        self, request_iterator: AsyncIterator[rollout.ServerMessage], context: Any
    ) -> AsyncIterator[rollout.ServerOrders]:
        reader = asyncio.create_task(self._read(request_iterator))
        try:
            while True:
                turn, sleep = before = self._turn
                wanted = self._wanted
                yield rollout.ServerOrders(wanted=wanted, turn=turn, sleep=sleep)
                async with self._changed:
                    try:
                        await asyncio.wait_for(
                            self._changed.wait_for(
                                lambda wanted=wanted, before=before: self._wanted is not wanted or self._turn != before
                            ),
                            0.5,
                        )
                    except TimeoutError:
                        continue
        finally:
            reader.cancel()

    async def _read(self, messages: AsyncIterator[rollout.ServerMessage]) -> None:
        async for message in messages:
            async with self._changed:
                self.beats += 1
                self.states[message.state.server_id] = message.state
                self._changed.notify_all()
