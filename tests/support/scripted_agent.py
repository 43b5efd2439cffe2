"""A generation agent whose tokens are a function of (seed, position): whoever continues a sample continues it alike.

Speaks the real gRPC protocol on a real port. It makes tokens by itself, or only when a test says `step`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import numpy as np
import xxhash
from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as wire
from areal.v1 import generation_pb2_grpc as wire_grpc

TOKEN = "a-token-for-this-test"
VOCABULARY = 24  # ids; 1 ends an answer
EOS = 1


def token_at(seed: int, position: int) -> int:
    """The token that follows `position` tokens: an end token once in twelve."""
    draw = xxhash.xxh3_64_intdigest(f"{seed}/{position}".encode())
    return EOS if draw % 12 == 0 else 4 + draw % (VOCABULARY - 4)


def logprob_at(seed: int, position: int) -> float:
    """Its log-probability."""
    return float(np.float32(-0.01 * (xxhash.xxh3_64_intdigest(f"p{seed}/{position}".encode()) % 400) - 0.001))


def answer(seed: int, prompt_tokens: int, limit: int) -> tuple[list[int], list[float], str]:
    """What an uninterrupted request gets: ids, log-probabilities and finish reason."""
    ids: list[int] = []
    while len(ids) < limit:
        ids.append(token_at(seed, prompt_tokens + len(ids)))
        if ids[-1] == EOS:
            return ids, [logprob_at(seed, prompt_tokens + k) for k in range(len(ids))], "stop"
    return ids, [logprob_at(seed, prompt_tokens + k) for k in range(len(ids))], "length"


@dataclass(eq=False)
class Running:
    """One request at the agent."""

    start: wire.GenerateStart
    out: asyncio.Queue[wire.GenerateEvent]
    position: int
    left: int
    floor: int = 0
    routed: int = 0  # rows that were told


@dataclass(eq=False)
class ScriptedAgent(wire_grpc.GenerationServicer):
    """One server. `by_itself` answers at once; otherwise tests call `step` and `end_all`."""

    server_id: str = "a"
    policy_id: str = "0.f1"
    by_itself: bool = True
    refuses: bool = False
    port: int = 0
    starts: list[wire.GenerateStart] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    messages: int = 0
    running: dict[str, Running] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    server: GrpcServer | None = None

    async def start(self) -> ScriptedAgent:
        """Serve, on the same port as before after a `die`."""
        self.server = GrpcServer(self.server_id, TOKEN, waits=WaitRegistry("agent"), progress=ProgressCounter())
        self.server.add(wire_grpc.add_GenerationServicer_to_server, self, "areal.v1.Generation")
        self.port = await self.server.start(self.port)
        return self

    async def die(self) -> None:
        """End at once: streams break."""
        self.running.clear()
        if self.server is not None:
            await self.server.stop(0)
            self.server = None

    @property
    def version(self) -> int:
        return int(self.policy_id.split(".")[0]) if self.policy_id else -1

    def state(self, **changes: object) -> wire.ServerState:
        """As the controller would report it."""
        state = wire.ServerState(
            server_id=self.server_id,
            address=f"127.0.0.1:{self.port}",
            policy_id=self.policy_id,
            version=self.version,
            live=True,
            ready=True,
        )
        for name, value in changes.items():
            setattr(state, name, value)
        return state

    async def until_running(self, count: int) -> None:
        """Wait until so many requests run here."""
        async with asyncio.timeout(60):
            while len(self.running) < count:
                self.changed.clear()
                await self.changed.wait()

    def step(self, tokens: int = 1) -> None:
        """Make so many tokens of every running request."""
        for request in list(self.running.values()):
            self._make(request, tokens)

    def end_all(self, reason: wire.EndReason.ValueType) -> None:
        """End every running request for this reason."""
        for request_id, request in list(self.running.items()):
            self._end(request_id, request, reason)

    async def Generate(
        self, request_iterator: AsyncIterator[wire.GenerateCall], context: object
    ) -> AsyncIterator[wire.GenerateReply]:
        out: asyncio.Queue[wire.GenerateEvent] = asyncio.Queue()
        reader = asyncio.create_task(self._read(request_iterator, out))
        try:
            while True:
                events = [await out.get()]
                while not out.empty():
                    events.append(out.get_nowait())
                yield wire.GenerateReply(events=events)
        finally:
            reader.cancel()

    async def _read(self, calls: AsyncIterator[wire.GenerateCall], out: asyncio.Queue[wire.GenerateEvent]) -> None:
        async for call in calls:
            self.messages += 1
            for start in call.starts:
                self._begin(start, out)
            for cancel in call.cancels:
                self.cancels.append(cancel.request_id)
                self.running.pop(cancel.request_id, None)
            self.changed.set()

    def _begin(self, start: wire.GenerateStart, out: asyncio.Queue[wire.GenerateEvent]) -> None:
        self.starts.append(start)
        request = Running(start, out, len(start.token_ids) // 4, start.sampling.max_new_tokens, start.floor)
        self.running[start.request_id] = request
        if self.refuses:
            fault = common.Fault(kind=common.FAULT_KIND_DATA, message="refused", fix="ask for something else")
            self._end(start.request_id, request, wire.END_REASON_REFUSED, fault)
        elif self.version < start.floor:
            self._end(start.request_id, request, wire.END_REASON_BELOW_FLOOR)
        elif self.by_itself:
            self._make(request, request.left)

    def _make(self, request: Running, tokens: int) -> None:
        seed, first = request.start.sampling.seed, request.position
        ids: list[int] = []
        while len(ids) < min(tokens, request.left):
            ids.append(token_at(seed, first + len(ids)))
            if ids[-1] == EOS:
                break
        request.position += len(ids)
        request.left -= len(ids)
        delta = wire.GenerateDelta(
            token_ids=np.asarray(ids, dtype="<i4").tobytes(),
            logprobs=np.asarray([logprob_at(seed, first + k) for k in range(len(ids))], dtype="<f4").tobytes(),
            spans=[common.Span(start=0, end=len(ids), policy_id=self.policy_id, server_id=self.server_id)],
        )
        if request.start.routes:
            rows = [bytes([self.version, at]) for at in range(request.routed, request.position - 1)]
            delta.routes, delta.route_bytes, request.routed = b"".join(rows), 2, request.position - 1
        request.out.put_nowait(wire.GenerateEvent(request_id=request.start.request_id, delta=delta))
        if ids and ids[-1] == EOS:
            self._end(request.start.request_id, request, wire.END_REASON_STOP)
        elif request.left <= 0:
            self._end(request.start.request_id, request, wire.END_REASON_LENGTH)

    def _end(
        self, request_id: str, request: Running, reason: wire.EndReason.ValueType, fault: common.Fault | None = None
    ) -> None:
        self.running.pop(request_id, None)
        end = wire.GenerateEnd(reason=reason, fault=fault)
        request.out.put_nowait(wire.GenerateEvent(request_id=request_id, end=end))
