"""A whole worker of real parts on loopback: its servers are scripted, its wire and its Redis are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from areal.clients.generation import GenerationClient
from areal.clients.reward import RewardClient
from areal.gateway.session import SessionLimits
from areal.ledger.async_client import AsyncLedger
from areal.ledger.payload import decode
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.record.segment import frames, read
from areal.record.writer import RecordWriter
from areal.rollout.worker.episode_engine import EpisodeBoxes
from areal.rollout.worker.episode_run import EpisodeSettings
from areal.rollout.worker.recording import EpisodeRecording, RecordLimits
from areal.rollout.worker.sessions import Gateways, Sessions
from areal.rollout.worker.worker import Identity, Worker, WorkerTools
from areal.v1 import common_pb2 as common
from areal.v1 import record_pb2 as record
from areal.values.generation import Sampling
from areal.workflow.agent import AgentWorkflow, RunAgent
from areal.workflow.base import RolloutWorkflow
from areal.workflow.rlvr import RLVRWorkflow
from areal.workflow.tokenizer import Tokenizer
from support.redis_server import RedisServer
from support.scripted_agent import TOKEN, ScriptedAgent
from support.scripted_controller import ScriptedController
from support.scripted_reward import ScriptedReward

ROW = orjson.dumps({"prompt": "321=", "answer": "123"})
SEED = 5
LIMIT = 30


@dataclass(eq=False)
class Bench:
    """Everything around one worker."""

    root: Path
    tokenizer: Tokenizer
    redis: RedisServer
    workflow: Callable[[], RolloutWorkflow] = RLVRWorkflow
    agents_run: RunAgent | None = None  # instead of a workflow
    agents: list[ScriptedAgent] = field(default_factory=list)
    controller: ScriptedController = field(default_factory=ScriptedController)
    reward: ScriptedReward = field(default_factory=ScriptedReward)
    limits: SessionLimits = field(default_factory=lambda: SessionLimits(LIMIT, 256, 16))  # of an agent's session
    gateways: Gateways | None = None
    boxes: EpisodeBoxes | None = None
    stall_s: float = 30.0
    routes: bool = False
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    waits: WaitRegistry = field(default_factory=lambda: WaitRegistry("worker-0"))
    task: asyncio.Task[bool] | None = None

    async def start(self, *agents: ScriptedAgent) -> Bench:
        """Start the servers and the worker, and tell it the fleet."""
        self.agents = [await agent.start() for agent in agents or (ScriptedAgent(),)]
        await self.controller.start()
        await self.reward.start()
        self.client = GenerationClient(
            TOKEN,
            owner="w",
            vocab_size=self.tokenizer.vocab_size,
            eos_ids=self.tokenizer.eos_ids,
            waits=self.waits,
            decode=self.tokenizer.decode,
            routes=self.routes,
        )
        self.scores = RewardClient([self.reward.address], TOKEN, waits=self.waits)
        self.ledger = AsyncLedger(self.redis.address, "job")
        if self.agents_run is not None:
            run = self.agents_run
            self.workflow = lambda: AgentWorkflow(run)
        self.sessions = Sessions(self.tokenizer, self.limits, gateways=self.gateways)
        self.sessions.start()
        metrics = RoleMetrics("worker", "job")
        writer = RecordWriter(self.root, "worker-0", metrics, keep_bytes=64 << 20)
        tools = WorkerTools(
            client=self.client,
            reward=self.scores,
            ledger=self.ledger,
            tokenizer=self.tokenizer,
            recording=EpisodeRecording(writer, self.tokenizer, RecordLimits(1.0, 1 << 20, 4), "worker-0"),
            waits=self.waits,
            progress=ProgressCounter(),
            metrics=metrics,
            sessions=self.sessions,
            boxes=self.boxes,
        )
        self.worker = Worker(
            Identity("worker-0", "worker-0.1", 64, common.Digests()),
            tools,
            EpisodeSettings(
                SEED,
                Sampling(max_new_tokens=self.limits.max_new_tokens),
                max_sample_tokens=64 if self.agents_run is None else self.limits.max_sample_tokens,
                chat_template=None,
                verifier="exact",
                evaluation_sampling=Sampling(temperature=0.5, max_new_tokens=self.limits.max_new_tokens),
            ),
            self.workflow,
            self.controller.address,
            TOKEN,
            deadline_s=600.0,
            stall_s=self.stall_s,
        )
        self.task = asyncio.create_task(self.worker.run(self.stop))
        self.tell_fleet()
        async with asyncio.timeout(60):
            while sum(server.connected for server in self.client.servers()) < len(self.agents):  # noqa: ASYNC110
                await asyncio.sleep(0.005)  # what is watched has no event
        return self

    def tell_fleet(self) -> None:
        """Send the fleet as it is."""
        self.controller.send(fleet=[agent.state() for agent in self.agents], fleet_changed=True)

    async def end(self) -> None:
        """Stop everything."""
        if self.task is not None:
            self.stop.set()
            await asyncio.gather(self.task, return_exceptions=True)
            await self.client.close()
            await self.scores.close()
            await self.ledger.close_connection()
            await self.sessions.stop()
        await self.controller.die()
        await self.reward.die()
        for agent in self.agents:
            await agent.die()

    def recorded(self) -> list[record.SampleRecord]:
        """What the worker has recorded; all of it is there once it has ended."""
        files = sorted(self.root.glob("*.rec"))
        return [record.SampleRecord.FromString(read(path, frame.offset)) for path in files for frame in frames(path)]

    async def stored(self) -> dict[tuple[int, int], Any]:
        """What the ledger holds: (group, index) → Sample."""
        found = {}
        async for key in self.ledger._redis.scan_iter(match="{job}:s:*"):
            for name, value in (await self.ledger._redis.hgetall(key)).items():
                if name[:1] == b"p":
                    found[int(key.rpartition(b":")[2]), int(name[1:])] = decode(value)
        return found
