"""A reward service that answers as a test wants: scores by default, faults on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as wire
from areal.v1 import reward_pb2_grpc as wire_grpc
from support.scripted_agent import TOKEN


def parity(item: wire.ScoreItem) -> wire.ScoreResult:
    """1 for an answer with an even number of tokens."""
    return wire.ScoreResult(score=float((len(item.completion_ids) // 4) % 2 == 0))


def fault(kind: common.FaultKind.ValueType, message: str, traceback: str = "") -> wire.ScoreResult:
    """A fault of some kind."""
    return wire.ScoreResult(fault=common.Fault(kind=kind, message=message, fix="mend it", traceback=traceback))


@dataclass(eq=False)
class ScriptedReward(wire_grpc.RewardServicer):
    """Records batches; `judge` scores an item."""

    judge: Callable[[wire.ScoreItem], wire.ScoreResult] = parity
    port: int = 0
    batches: list[list[wire.ScoreItem]] = field(default_factory=list)
    server: GrpcServer | None = None
    gate: asyncio.Event | None = None  # no answer before it is set

    async def start(self) -> ScriptedReward:
        """Serve, on the same port as before after a `die`."""
        self.server = GrpcServer("reward", TOKEN, waits=WaitRegistry("reward"), progress=ProgressCounter())
        self.server.add(wire_grpc.add_RewardServicer_to_server, self, "areal.v1.Reward")
        self.port = await self.server.start(self.port)
        return self

    async def die(self) -> None:
        """End at once."""
        if self.server is not None:
            await self.server.stop(0)
            self.server = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def Score(self, request: wire.ScoreRequest, context: object) -> wire.ScoreResponse:
        self.batches.append(list(request.items))
        if self.gate is not None:
            await self.gate.wait()
        return wire.ScoreResponse(results=[self.judge(item) for item in request.items])
