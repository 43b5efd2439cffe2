"""A world for a trainer under test: a real Redis with synthetic samples and a scripted controller on real gRPC."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areal.errors import FencedError, InfraError
from areal.ledger import payload
from areal.ledger.async_client import AsyncLedger
from areal.ledger.values import COMPLETE, NewSample, SampleMeta
from areal.net import status
from areal.net.server import GrpcServer, LoopThread
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.plan.resolved import Endpoints, ResolvedJob
from areal.plan.roles import free_ports
from areal.spec.job import RLJob
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from areal_trainer.desk import TrainerPorts
from areal_trainer.run import run
from areal_trainer.settings import TrainerPaths, TrainerSettings
from support.redis_server import RedisServer, free_port
from support.trainer_parts import sample

TOKEN = "a-token-for-tests"
JOB = "world"


class ScriptedController(rollout_grpc.RolloutServicer):
    """Answers as a controller would, remembers what it was told, and misbehaves on request."""

    def __init__(self) -> None:
        self.attached: list[tuple[int, int]] = []  # fence, step
        self.advances: list[tuple[int, int, int]] = []  # fence, step, groups in hand
        self.published: list[tuple[str, bool, str]] = []  # policy, final, path
        self.tombstones: list[tuple[int, str]] = []
        self.committed = 0  # step
        self.beats = 0
        self.finished = False
        self.served = ""
        self.max_steps = 0
        self.fence = 0
        self.checkpoint_now = False
        self.refuse_advances = 0
        self.on_advance: Callable[[int], None] = lambda step: None
        self.due: tuple[int, tuple[int, ...]] = (0, ())  # a step, and groups that it will have

    async def AttachTrainer(self, request: Any, context: Any) -> rollout.AttachTrainerResponse:
        self.fence = request.fence
        self.attached.append((request.fence, request.step))
        return rollout.AttachTrainerResponse(controller_fence=1, served_policy_id=self.served, max_steps=self.max_steps)

    async def AdvanceTrainer(self, request: Any, context: Any) -> rollout.AdvanceTrainerResponse:
        if request.fence < self.fence:
            await status.abort(context, FencedError("a newer trainer lives"))
        if self.refuse_advances:
            self.refuse_advances -= 1
            await status.abort(context, InfraError("the batch changed while it was taken"))
        self.advances.append((request.fence, request.step, request.groups))
        self.on_advance(request.step)
        return rollout.AdvanceTrainerResponse(max_steps=self.max_steps)

    async def PublishWeights(self, request: Any, context: Any) -> rollout.PublishWeightsResponse:
        weights = request.weights
        self.published.append((weights.policy_id, request.final, weights.path))
        self.served = weights.policy_id
        return rollout.PublishWeightsResponse(accepted=True, served_policy_id=self.served)

    async def ProposeTombstone(self, request: Any, context: Any) -> rollout.ProposeTombstoneResponse:
        self.tombstones.append((request.group, request.reason))
        return rollout.ProposeTombstoneResponse(accepted=True)

    async def Train(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[rollout.TrainerOrders]:
        async for message in request_iterator:
            self.beats += 1
            self.committed = max(self.committed, message.committed_step)
            self.finished = message.finished
            yield rollout.TrainerOrders(
                checkpoint_now=self.checkpoint_now,
                max_steps=self.max_steps,
                served_policy_id=self.served,
                evaluation_done=self.finished,
                due_step=self.due[0],
                due_groups=self.due[1],
            )


@dataclass
class World:
    """Start it, run trainers in it, stop it."""

    root: Path
    model: Path
    redis: RedisServer
    algorithm: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    recipe: Path | None = None
    controller: ScriptedController = field(default_factory=ScriptedController)
    port: int = 0
    ports: list[int] = field(default_factory=list)  # of trainers in pods, and where they meet
    chosen: list[int] = field(default_factory=list)  # groups in the order of training

    def start(self) -> World:
        self.port = self.port or free_port()
        self.thread = LoopThread("controller")
        self.thread.call(self._serve(), 10.0)
        return self

    async def _serve(self) -> None:
        self._server = GrpcServer("controller", TOKEN, waits=WaitRegistry("controller"), progress=ProgressCounter())
        self._server.add(rollout_grpc.add_RolloutServicer_to_server, self.controller, "areal.v1.Rollout")
        await self._server.start(self.port)

    def stop(self) -> None:
        self.thread.call(self._server.stop(0.0), 5.0)
        self.thread.stop()

    def job(self) -> RLJob:
        algorithm = {"name": "GRPO", "groupSize": 4, "batchSize": 3, "maxSteps": 4}
        spec = {
            "model": {"path": str(self.model)},
            "dataset": {"train": {"jsonl": "unused.jsonl"}},
            "algorithm": {**algorithm, **self.algorithm},
            "optimizer": {"learningRate": 1e-2, **self.optimizer},
            "checkpoint": {"intervalSteps": 2, "keep": 2},
            **self.spec,
        }
        return RLJob.model_validate(
            {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": JOB}, "spec": spec}
        )

    def settings(self) -> TrainerSettings:
        root = self.root
        return TrainerSettings(
            name=JOB,
            uid=JOB,
            spec=self.job().spec,
            paths=TrainerPaths(
                start_model=self.model,
                tokenizer=self.model,
                recipe=self.recipe,
                hooks=None,
                checkpoints=root / "checkpoints",
                fences=root / "fences",
                cards=root / "cards",
                evidence=root / "evidence",
                weights=root / "weights",
                metrics=root / "metrics.jsonl",
                tensorboard=None,
                recording=root / "recording",
                tokens=root / "tokens",
                model=root / "model",
                exports=root / "exports",
                evaluations=root / "evaluations.jsonl",
            ),
            controller=f"127.0.0.1:{self.port}",
            redis=self.redis.address,
            redis_password=None,
            token=TOKEN,
            access=TOKEN,
            outage_s=20.0,
        )

    def resolve(self) -> Path:
        """Write what `areal run` would: the resolved job and its token. Returns the job's file."""
        resolved = ResolvedJob(
            job=self.job(),
            uid=JOB,
            digest="0",
            run_dir=self.root,
            model_path=self.model,
            tokenizer_path=self.model,
            recipe_path=self.recipe,
            dataset=self.job().spec.dataset,
            endpoints=Endpoints(controller=f"127.0.0.1:{self.port}", redis=self.redis.address),
            redis_users={},
            ports={},
        )
        self.root.mkdir(parents=True, exist_ok=True)
        resolved.layout.token.write_text(TOKEN)
        return resolved.save()

    def gang(self, processes: int = 1) -> subprocess.Popen[bytes]:
        """Start the trainer as a run does: torchrun and its ranks."""
        command = [sys.executable, "-m", "areal_trainer.torchrun", "--nproc-per-node", str(processes)]
        command += ["--max-restarts", "0", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        command += ["-m", "areal_trainer.main", "--job", str(self.resolve())]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        with (self.root / "trainer.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def pod(self, index: int, launcher: int) -> subprocess.Popen[bytes]:
        """Start one trainer of several as its pod does; `launcher` is its launcher's port."""
        resolved = ResolvedJob.load(self.resolve())
        self.ports = self.ports or free_ports(3)
        ports = {f"trainer-{at}": {"grpc": self.ports[at], "metrics": 0, "rendezvous": 0} for at in range(2)}
        meeting = resolved.endpoints.model_copy(update={"rendezvous": f"127.0.0.1:{self.ports[2]}"})
        resolved.model_copy(update={"namespace": "team", "ports": ports, "endpoints": meeting}).save()
        command = [
            sys.executable,
            "-m",
            "areal.processes.main",
            "--job",
            str(resolved.layout.resolved),
            "--role",
            "trainer",
        ]
        environment = {**os.environ, "AREAL_INDEX": str(index), "AREAL_POD_IP": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        with (self.root / f"trainer-{index}.log").open("ab") as log:
            return subprocess.Popen([*command, "--port", str(launcher)], stdout=log, stderr=log, env=environment)

    def train(self, stopping: threading.Event | None = None) -> int:
        """Run one trainer to its end, in this process."""
        return int(run(self.settings(), TrainerPorts(), stopping or threading.Event()))

    def fill(
        self, groups: range, *, size: int = 4, tombstones: tuple[int, ...] = (), poison: tuple[int, ...] = (),
        **fields: Any,
    ) -> None:  # fmt: skip
        """Put complete groups into the ledger and choose them, as workers and the controller would.

        `tombstones` are in no batch, `poison` ended after their batches were chosen.
        """
        asyncio.run(self._fill(groups, size, tombstones, poison, fields))

    async def _fill(
        self, groups: range, size: int, tombstones: tuple[int, ...], poison: tuple[int, ...], fields: dict[str, Any]
    ) -> None:
        batch_groups = self.job().spec.algorithm.batch_size
        async with AsyncLedger(self.redis.address, JOB) as ledger:
            await ledger.claim(1)
            for group in groups:
                if group in tombstones:
                    await ledger.close(1, group, "rejected", size)
                    continue
                await ledger.add_samples([stored(group, index, fields) for index in range(size)])
                await ledger.close(1, group, "poison" if group in poison else COMPLETE, size)
                self.chosen += [] if group in self.chosen else [group]
            for step in range(len(self.chosen) // batch_groups):
                await ledger.assign(1, step, self.chosen[step * batch_groups : (step + 1) * batch_groups])


def stored(group: int, index: int, fields: dict[str, Any]) -> NewSample:
    """A synthetic sample with what is stored beside it."""
    made = sample(group, index, **fields)
    raw = payload.encode(made)
    sequence = made.sequences[0]
    meta = SampleMeta(
        attempt=1,
        reward=sequence.reward,
        oldest_version=made.oldest_version,
        newest_version=made.oldest_version,
        max_staleness=made.max_staleness,
        tokens=len(sequence.loss_mask),
        truncated=False,
        xxh3=payload.digest(raw),
    )
    return NewSample(group, index, raw, meta)


def until(ready: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Poll a condition that another thread or process brings about."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def losses(world: World, field: str = "loss") -> list[float]:
    """By step, the newest of each."""
    by_step = {}
    for line in (world.root / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        by_step[row["step"]] = row[field]
    return [by_step[step] for step in sorted(by_step)]
