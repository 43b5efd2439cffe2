"""Published versions of tiny models, an agent with its real engine, and a client on a raw stream."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from areal.generation.agent import AgentSettings, GenerationAgent
from areal.generation.engine_command import AdapterRoom
from areal.net.channel import connect
from areal.spec.serving import EmbeddedEngineBlock, SglangEngine
from areal.v1 import generation_pb2 as wire
from areal.v1 import generation_pb2_grpc as rpc
from areal.values.policy import PolicyId
from areal.weights.manifest import Canary
from areal.weights.publish import WeightsRef, publish
from safetensors import safe_open
from support.engine_models import VOCAB, hf_logprobs
from support.fake_controller import FakeController
from support.redis_server import free_port

TOKEN = "secret"
CANARY = tuple(range(3, 43, 2))


def publish_model(
    root: Path, policy: str, model: Path, canary_of: Path | None = None, tolerance: float = 1e-3
) -> WeightsRef:
    """Publish a model's weights. With the canary of another model, checksums are right and the weights wrong."""
    expected = hf_logprobs(canary_of or model, list(CANARY[:1]), list(CANARY[1:]))
    tensors = []
    with safe_open(model / "model.safetensors", framework="np") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            value = np.ascontiguousarray(file.get_tensor(name))
            tensors.append((name, "F32", value.shape, value))
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json")
    files = {name: model / name for name in names if (model / name).is_file()}
    canary = Canary(token_ids=CANARY, logprobs=(0.0, *expected), tolerance=tolerance)
    return publish(root, PolicyId.parse(policy), tensors, canary, files)


class Answer:
    """What came for one request."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.spans: list[tuple[str, int, int]] = []
        self.deltas: list[wire.GenerateDelta] = []
        self.end: wire.GenerateEnd | None = None

    def add(self, event: wire.GenerateEvent) -> None:
        assert self.end is None, "an event after the end"
        if event.HasField("end"):
            self.end = event.end
            return
        if not event.delta.token_ids:
            return  # it is being made
        self.deltas.append(event.delta)
        first = len(self.ids)
        self.ids += np.frombuffer(event.delta.token_ids, "<i4").tolist()
        self.logprobs += np.frombuffer(event.delta.logprobs, "<f4").tolist()
        for span in event.delta.spans:
            start, end = first + span.start, first + span.end
            if self.spans and self.spans[-1][0] == span.policy_id and self.spans[-1][2] == start:
                self.spans[-1] = (span.policy_id, self.spans[-1][1], end)
            else:
                self.spans.append((span.policy_id, start, end))
        assert len(self.ids) == len(self.logprobs) == self.spans[-1][2]

    @property
    def reason(self) -> str:
        assert self.end is not None
        return wire.EndReason.Name(self.end.reason).removeprefix("END_REASON_")


class RawClient:
    """One Generate stream."""

    def __init__(self, address: str) -> None:
        self.answers: dict[str, Answer] = defaultdict(Answer)
        self.messages = 0
        self._channel = connect(address, TOKEN)
        self._outgoing: asyncio.Queue[wire.GenerateCall | None] = asyncio.Queue()
        self._changed = asyncio.Condition()
        self._task = asyncio.create_task(self._run())

    def start(self, *starts: wire.GenerateStart) -> None:
        self._outgoing.put_nowait(wire.GenerateCall(starts=starts))

    def send(self, call: wire.GenerateCall) -> None:
        self._outgoing.put_nowait(call)

    async def ended(self, *request_ids: str, deadline_s: float = 90.0) -> list[Answer]:
        """Wait for the ends of these requests."""
        await self.until(lambda: all(self.answers[one].end is not None for one in request_ids), deadline_s)
        return [self.answers[one] for one in request_ids]

    async def until(self, condition, deadline_s: float = 90.0) -> None:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(condition), deadline_s)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    async def _run(self) -> None:
        async for reply in rpc.GenerationStub(self._channel).Generate(self._calls()):
            async with self._changed:
                self.messages += 1
                for event in reply.events:
                    self.answers[event.request_id].add(event)
                self._changed.notify_all()

    async def _calls(self) -> AsyncIterator[wire.GenerateCall]:
        while (call := await self._outgoing.get()) is not None:
            yield call


def start_of(request_id: str, prompt: list[int], tokens: int, *, floor: int = 0, **sampling) -> wire.GenerateStart:
    """A start with the usual sampling: temperature 1, no end by EOS."""
    chosen = {"temperature": 1.0, "max_new_tokens": tokens, "ignore_eos": True} | sampling
    assert max(prompt) < VOCAB or request_id.startswith("bad")
    return wire.GenerateStart(
        request_id=request_id,
        token_ids=np.asarray(prompt, "<i4").tobytes(),
        sampling=wire.GenerateStart().sampling.__class__(**chosen),
        floor=floor,
    )


SERVER = "generation-0"


@dataclass
class World:
    """An agent, its controller, a client; policies of this world carry its fence."""

    agent: GenerationAgent
    controller: FakeController
    client: RawClient
    models: list[Path]
    volume: Path
    fences: Iterator[int]
    fence: int = 0

    def __post_init__(self) -> None:
        self.new_fence()

    def new_fence(self) -> None:
        """Publish under a higher fence from now on."""
        self.fence = next(self.fences)

    def policy(self, version: int) -> str:
        return f"{version}.f{self.fence}"

    async def publish(self, version: int, model: int, canary_of: int | None = None) -> WeightsRef:
        """Publish and tell the server that it is wanted."""
        ref = self.prepare(version, model, canary_of)
        await self.controller.want(ref.message())
        return ref

    def prepare(self, version: int, model: int, canary_of: int | None = None) -> WeightsRef:
        other = None if canary_of is None else self.models[canary_of]
        return publish_model(self.volume, self.policy(version), self.models[model], other)

    async def serve(self, version: int, model: int) -> None:
        """Publish, and wait until the server is ready with it."""
        await self.publish(version, model)
        await self.ready(version)

    async def ready(self, version: int) -> None:
        await self.until(lambda state: state.ready and state.policy_id == self.policy(version))

    async def until(self, accepted) -> wire.ServerState:
        return await self.controller.until(SERVER, accepted)

    async def generate(self, *starts: wire.GenerateStart) -> list[Answer]:
        """Start requests and wait for their ends."""
        self.client.start(*starts)
        return await self.client.ended(*(start.request_id for start in starts))

    async def running(self, start: wire.GenerateStart, tokens: int = 8) -> None:
        """Start a request and wait until it has made tokens."""
        self.client.start(start)
        await self.client.until(lambda: len(self.client.answers[start.request_id].ids) >= tokens)


@asynccontextmanager
async def running_agent(
    controller: FakeController,
    models: list[Path],
    volume: Path,
    engine: EmbeddedEngineBlock | SglangEngine | None = None,
    adapters: AdapterRoom | None = None,
    server_id: str = SERVER,
    weight_group: str | None = None,
    cards: Path | None = None,
    routes: bool = False,
) -> AsyncIterator[GenerationAgent]:
    """An agent with its engine; both are stopped at the end."""
    agent = GenerationAgent(
        AgentSettings(
            server_id=server_id,
            job="test",
            run=str(volume),
            token=TOKEN,
            access=TOKEN,
            incarnation="one",
            controller=controller.address,
            model_path=models[0],
            tokenizer_path=models[0],
            engine=engine or EmbeddedEngineBlock(max_running_requests=64),
            engine_port=free_port(),
            stream_interval=4,
            adapters=adapters,
            weight_group=weight_group,
            cards=cards,
            routes=routes,
        )
    )
    await agent.start()
    stop = asyncio.Event()
    running = asyncio.create_task(agent.run(stop))
    try:
        yield agent
    finally:
        stop.set()
        await asyncio.wait_for(running, 60)


@asynccontextmanager
async def running_world(
    models: list[Path],
    volume: Path,
    engine: EmbeddedEngineBlock | SglangEngine | None = None,
    adapters: AdapterRoom | None = None,
    weight_group: str | None = None,
    cards: Path | None = None,
    routes: bool = False,
) -> AsyncIterator[World]:
    """A controller, and an agent with its engine; all are stopped at the end."""
    controller = FakeController(TOKEN)
    await controller.start()
    try:
        async with running_agent(
            controller, models, volume, engine, adapters, weight_group=weight_group, cards=cards, routes=routes
        ) as agent:
            client = RawClient(agent.address)
            try:
                yield World(agent, controller, client, models, volume, count(1))
            finally:
                await client.close()
    finally:
        await controller.stop()
