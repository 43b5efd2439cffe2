"""Load is not a fault: thousands of requests through client, agent and controller's judgement, in virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from areal.clients.generation import Ask, GenerationClient
from areal.clients.generation import client as client_module
from areal.generation.aborts import Aborts
from areal.generation.core import AgentCore, WantedVersion
from areal.generation.dispatch import Dispatcher
from areal.generation.limits import ModelLimits
from areal.generation.requests import Requests
from areal.generation.service import GenerationService
from areal.generation.swap import Swapper
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.rollout.controller import service as controller_wire
from areal.rollout.controller.fleet import ServerFleet
from areal.rollout.controller.inputs import ServerReport
from areal.v1 import generation_pb2 as wire
from areal.values.generation import Sampling, as_ids
from areal.values.policy import PolicyId
from areal.weights.manifest import Canary, Manifest
from areal.weights.stage import StagedVersion, StagingArea
from support import virtual_time

MAX_RUNNING = 128
TOKENS = 4
STEP_S = 0.25
SWAP_S = 3.0


class SlowEngine:
    """Makes a token of each running request every `STEP_S`; loading weights takes `SWAP_S`."""

    def __init__(self) -> None:
        self.version = "0.f1"
        self.paused = False
        self.had = 0  # the most requests at once
        self.abort_calls: list[int] = []
        self._requests: dict[str, tuple[asyncio.Queue[list[dict[str, Any]]], list[str]]] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(STEP_S)
            if not self.paused:
                for rid in list(self._requests)[:MAX_RUNNING]:
                    self._requests[rid][1].append(self.version)
                    self._tell(rid, {"type": "length"} if len(self._requests[rid][1]) == TOKENS else None)

    def _tell(self, rid: str, finish: dict[str, Any] | None) -> None:
        out, made = self._requests[rid]
        spans: list[dict[str, Any]] = []
        for at, version in enumerate(made):
            if not spans or spans[-1]["version"] != version:
                spans.append({"version": version, "start": at, "end": at})
            spans[-1]["end"] = at + 1
        if finish:
            del self._requests[rid]
        meta = {"id": rid, "finish_reason": finish, "weight_version": self.version, "weight_versions": spans}
        meta["output_token_logprobs"] = [[-0.5, 7, None]] * len(made)
        out.put_nowait([{"output_ids": [7] * len(made), "meta_info": meta}])

    @asynccontextmanager
    async def stream(self, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[list[dict[str, Any]]]]:
        out: asyncio.Queue[list[dict[str, Any]]] = asyncio.Queue()
        left = set(body["rid"])
        self._requests.update({rid: (out, []) for rid in body["rid"]})
        self.had = max(self.had, len(self._requests))

        async def events() -> AsyncIterator[list[dict[str, Any]]]:
            while left:
                answers = await out.get()
                left.difference_update(a["meta_info"]["id"] for a in answers if a["meta_info"]["finish_reason"])
                yield answers

        yield events()

    async def abort(self, rids: Sequence[str]) -> None:
        self.abort_calls.append(len(rids))
        for rid in rids:
            if rid in self._requests:
                self._tell(rid, {"type": "abort"})

    async def abort_all(self) -> None:
        await self.abort(list(self._requests))

    async def pause(self, mode: str) -> None:
        self.paused = True

    async def resume(self) -> None:
        self.paused = False

    async def update_from_disk(self, path: str, version: str) -> None:
        await asyncio.sleep(SWAP_S)
        self.version = version

    async def weight_version(self) -> str:
        return self.version

    async def checksums(self) -> None:
        return None

    async def score(self, token_ids: Sequence[int], key: str, adapter: str | None = None) -> list[float]:
        return [-1.0] * (len(token_ids) - 1)


class StagedSwapper(Swapper):
    """Its versions need no reading: threads know no virtual time."""

    async def _stage(self, wanted: WantedVersion) -> StagedVersion:
        canary = Canary(token_ids=(7, 7), logprobs=(0.0, -1.0), tolerance=1e-3)
        manifest = Manifest(policy=str(wanted.policy), step=0, created=0.0, tensors={}, files={}, canary=canary)
        return StagedVersion(wanted.path, manifest)


class Server:
    """An agent's parts over a slow engine, with a beat that a test may hold back."""

    def __init__(self) -> None:
        self.engine, self.core, self.lock = SlowEngine(), AgentCore(), asyncio.Lock()
        engine: Any = self.engine
        self.requests = Requests(self.core, "s", ProgressCounter(), Aborts(engine))
        self.dispatcher = Dispatcher(self.core, engine, self.requests, self.lock, max_running=MAX_RUNNING)
        self.service = GenerationService(self.requests, self.dispatcher, ModelLimits(vocab=32, context=64))
        metrics, waits = RoleMetrics("generation", "t"), WaitRegistry("s")
        self.swapper = StagedSwapper(
            self.core,
            engine,
            self.requests,
            metrics,
            waits,
            self.lock,
            StagingArea(Path("/nowhere")),
            clock=virtual_time.now,
        )
        self.beats = True
        self.core.engine_started(None)

    def report(self) -> ServerReport:
        core = self.core
        return ServerReport("s", "1", "a:1", str(core.held), core.version, ready=core.ready, live=core.engine_up)


class MemoryLink:
    """A client's stream without a network. Counts how often it was given up."""

    server: Server
    abandoned = 0

    def __init__(self, server_id: str, address: str, token: str, on_change: Any) -> None:
        self.server_id, self.address, self.connected = server_id, address, True
        self.last_event = time.monotonic()
        self._sinks: dict[str, Any] = {}
        self._calls: asyncio.Queue[wire.GenerateCall] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    @property
    def running(self) -> int:
        return len(self._sinks)

    def start(self, start: wire.GenerateStart, sink: Any) -> None:
        self._sinks[start.request_id] = sink
        self._calls.put_nowait(wire.GenerateCall(starts=[start]))

    def cancel(self, request_id: str) -> None:
        del self._sinks[request_id]
        self._calls.put_nowait(wire.GenerateCall(cancels=[wire.GenerateCancel(request_id=request_id)]))

    def abandon(self, why: str) -> None:
        MemoryLink.abandoned += len(self._sinks)

    async def close(self) -> None:
        self._task.cancel()

    async def _messages(self) -> AsyncIterator[wire.GenerateCall]:
        while True:
            yield await self._calls.get()

    async def _run(self) -> None:
        context: Any = None
        async for reply in self.server.service.Generate(self._messages(), context):
            for event in reply.events:
                if (sink := self._sinks.get(event.request_id)) is None:
                    continue
                if event.HasField("delta"):
                    sink.on_delta(event.request_id, event.delta)
                else:
                    del self._sinks[event.request_id]
                    sink.on_end(event.request_id, event.end)


@asynccontextmanager
async def scene() -> AsyncIterator[tuple[Server, GenerationClient]]:
    """A server with version 0, and a client that hears of it what the controller believes, twice a second."""
    server = MemoryLink.server = Server()
    MemoryLink.abandoned = 0
    client = GenerationClient("t", owner="w", vocab_size=32, eos_ids=frozenset({1}), waits=WaitRegistry("w"))
    fleet = ServerFleet()

    async def controller() -> None:
        while True:
            if server.beats:
                fleet.beat(virtual_time.now(), server.report())
            fleet.tick(virtual_time.now())
            told = [controller_wire.server_state(s.report, live=s.live, ready=s.ready) for s in fleet.servers.values()]
            client.update_fleet(told)
            await asyncio.sleep(0.5)

    assert await server.swapper.take(wanted(0))
    tasks = [asyncio.create_task(server.engine.run()), asyncio.create_task(controller())]
    await asyncio.sleep(0.1)
    try:
        yield server, client
    finally:
        for task in tasks:
            task.cancel()
        await client.close()


def wanted(version: int) -> WantedVersion:
    return WantedVersion(PolicyId(version, 1), Path("/v"), "")


def ask(number: int, floor: int = 0) -> Ask:
    return Ask(as_ids([5, 6]), Sampling(max_new_tokens=TOKENS, ignore_eos=True), str(number // 8), floor)


@pytest.fixture(autouse=True)
def without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "AgentLink", MemoryLink)


def test_a_swap_of_three_seconds_and_a_late_server_abandon_none_of_2048_requests() -> None:
    async def body() -> None:
        async with scene() as (server, client):
            asked = [asyncio.create_task(client.generate(ask(number))) for number in range(2_048)]
            await asyncio.sleep(2.5)
            assert await server.swapper.take(wanted(1))
            server.beats = False  # late by 1.6 s
            await asyncio.sleep(1.6)
            server.beats = True
            results = await asyncio.gather(*asked)
            assert MemoryLink.abandoned == 0
            assert client.resubmissions_total == 0
            assert server.engine.abort_calls == []
            assert server.engine.had <= MAX_RUNNING * 5 // 4
            assert all(len(result.output_ids) == TOKENS for result in results)
            policies = [[span.policy_id for span in result.spans] for result in results]
            assert ["0.f1"] in policies
            assert ["0.f1", "1.f1"] in policies  # went on in place
            assert ["1.f1"] in policies

    virtual_time.run(body())


def test_what_waits_is_cancelled_without_a_call_and_what_runs_by_one() -> None:
    async def body() -> None:
        async with scene() as (server, client):
            asked = [asyncio.create_task(client.generate(ask(number))) for number in range(2_048)]
            await asyncio.sleep(0.5)
            at_engine = server.dispatcher.at_engine
            assert len(server.requests) == 2_048
            for task in asked:
                task.cancel()
            await asyncio.sleep(0.1)
            assert len(server.requests) == 0
            assert sum(server.engine.abort_calls) == at_engine
            assert len(server.engine.abort_calls) <= 3
            await asyncio.sleep(0.5)
            assert server.dispatcher.at_engine == 0

    virtual_time.run(body())


def test_the_lowest_floor_is_served_first_however_late_it_came() -> None:
    async def body() -> None:
        async with scene() as (server, client):
            assert await server.swapper.take(wanted(3))
            await asyncio.sleep(1.0)
            order: list[int] = []

            async def one(number: int, floor: int) -> None:
                await client.generate(ask(number, floor))
                order.append(floor)

            late = [asyncio.create_task(one(number, 3)) for number in range(600)]
            await asyncio.sleep(0.2)
            urgent = [asyncio.create_task(one(number, 1)) for number in range(600, 664)]
            await asyncio.gather(*late, *urgent)
            assert np.argmax(np.array(order) == 1) <= MAX_RUNNING * 5 // 4
            assert set(order[-200:]) == {3}

    virtual_time.run(body())
