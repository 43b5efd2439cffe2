"""Scripted peers of a real controller: they speak the real protocol and decide as little as possible."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import grpc
from areal.data.prepare import prepare
from areal.data.source import JsonlSource
from areal.errors import InfraError
from areal.ledger.async_client import AsyncLedger
from areal.ledger.consumer import Batch, Consumer, ConsumerPolicy, TrainerState
from areal.ledger.fences import allocate
from areal.ledger.payload import encode
from areal.ledger.sync_client import SyncLedger
from areal.ledger.values import NewSample, SampleMeta
from areal.net.channel import connect
from areal.net.status import raise_as
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from support.redis_server import free_port

TOKEN = "secret"
JOB = "job"
BEAT_S = 0.2


class RedisProcess:
    """A real redis-server on a free port; `kill` and `start` again keep port and append-only file."""

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        self.port = free_port()
        self.directory = directory
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        binary = shutil.which("redis-server")
        assert binary, "redis-server is not installed"
        self.directory.mkdir(parents=True, exist_ok=True)
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory), "--save", ""]
        arguments += ["--appendonly", "yes" if self._durable else "no", "--appendfsync", "everysec"]
        self._process = subprocess.Popen([binary, *arguments], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as link:
                link.sendall(b"PING\r\n")
                if link.recv(16).startswith(b"+PONG"):
                    return
            time.sleep(0.02)
        raise AssertionError("redis-server does not answer")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


class ScriptedAgent:
    """A generation server that takes every wanted version at once."""

    def __init__(self, address: str, name: str) -> None:
        self.name = name
        self.version = -1
        self.policy_id = ""
        self.tokens = 0
        self._address = address

    async def run(self) -> None:
        async with connect(self._address, TOKEN) as channel:
            stub = rollout_grpc.RolloutStub(channel)
            while True:
                with contextlib.suppress(grpc.RpcError):
                    async for orders in stub.Serve(self._beats()):
                        if orders.wanted.policy_id and orders.wanted.policy_id != self.policy_id:
                            self.policy_id = orders.wanted.policy_id
                            self.version = int(self.policy_id.split(".f")[0])
                await asyncio.sleep(0.05)

    async def _beats(self) -> AsyncIterator[rollout.ServerMessage]:
        while True:
            self.tokens += 1
            state = generation.ServerState(
                server_id=self.name,
                address="127.0.0.1:1",
                policy_id=self.policy_id,
                version=self.version,
                live=True,
                ready=self.version >= 0,
                tokens_total=self.tokens,
            )
            beat = common.Beat(incarnation=self.name, progress=self.tokens)
            yield rollout.ServerMessage(beat=beat, state=state)
            await asyncio.sleep(0.02)


class ScriptedWorker:
    """Stores a sample for every leased index, with the version of the fleet it was told, and says so."""

    def __init__(
        self,
        address: str,
        ledger: AsyncLedger,
        name: str,
        *,
        capacity: int = 8,
        reward: Callable[[int, int], float] = lambda group, index: float(index % 2),
        fail: Callable[[int, int, int], int] = lambda group, index, attempt: 0,
        delay_s: float = 0.002,
    ) -> None:
        self.name = name
        self.incarnation = f"{name}.{random.getrandbits(32):08x}"
        self.stopped = asyncio.Event()
        self.rows: dict[int, bytes] = {}
        self.leases: list[rollout.Lease] = []
        self.resent = 0
        self._address, self._ledger = address, ledger
        self._capacity, self._reward, self._fail, self._delay_s = capacity, reward, fail, delay_s
        self._outgoing: asyncio.Queue[rollout.WorkerMessage] = asyncio.Queue()
        self._work: dict[int, set[asyncio.Task[None]]] = {}
        self._in_work: dict[int, tuple[rollout.Lease, set[int]]] = {}
        self._kept: dict[tuple[int, int], tuple[NewSample, rollout.SampleDone]] = {}
        self._version = -1
        self._progress = 0

    async def run(self) -> None:
        async with connect(self._address, TOKEN) as channel:
            stub = rollout_grpc.RolloutStub(channel)
            while not self.stopped.is_set():
                with contextlib.suppress(grpc.RpcError):
                    async for orders in stub.Work(self._messages()):
                        await self._obey(orders)
                        if self.stopped.is_set():
                            return
                await asyncio.sleep(0.05)

    async def _messages(self) -> AsyncIterator[rollout.WorkerMessage]:
        held = [
            rollout.HeldGroup(
                group=g,
                attempt=lease.attempt,
                indices=left,
                max_staleness=lease.max_staleness,
                has_tokens=True,
                floor=lease.floor,
            )
            for g, (lease, left) in self._in_work.items()
        ]
        yield self._stamped(rollout.WorkerMessage(held=held))
        while True:
            try:
                message = await asyncio.wait_for(self._outgoing.get(), BEAT_S)
            except TimeoutError:
                message = rollout.WorkerMessage()
            yield self._stamped(message)

    def _stamped(self, message: rollout.WorkerMessage) -> rollout.WorkerMessage:
        message.worker_id = self.name
        message.capacity_groups = self._capacity
        message.beat.incarnation = self.incarnation
        message.beat.progress = self._progress
        return message

    async def _obey(self, orders: rollout.WorkOrders) -> None:
        if orders.fleet_changed:
            self._version = max((s.version for s in orders.fleet if s.live and s.ready), default=-1)
        for key in [key for key in self._kept if key[0] < orders.committed_group]:
            del self._kept[key]
        for group in orders.revoked:
            self._in_work.pop(group, None)
            for task in self._work.pop(group, set()):
                task.cancel()
        for lease in orders.leases:
            self.leases.append(lease)
            self.rows[lease.group] = lease.row_json
            _, left = self._in_work.setdefault(lease.group, (lease, set()))
            for index in lease.missing:
                left.add(index)
                task = asyncio.create_task(self._episode(lease, index))
                self._work.setdefault(lease.group, set()).add(task)
        for row in orders.evaluations:
            done = rollout.EvalDone(
                evaluation_id=row.evaluation_id,
                row=row.row,
                score=0.5,
                oldest_version=row.floor,
                newest_version=row.floor,
            )
            self._outgoing.put_nowait(rollout.WorkerMessage(evaluated=[done]))
        if orders.resend and self._kept:
            self.resent += 1
            await self._store([sample for sample, _ in self._kept.values()])
            self._outgoing.put_nowait(rollout.WorkerMessage(done=[done for _, done in self._kept.values()]))
        if orders.stop:
            self.stopped.set()

    async def _store(self, samples: Iterable[NewSample]) -> None:
        while True:
            try:
                await self._ledger.add_samples(list(samples))
                return
            except InfraError:
                await asyncio.sleep(0.05)

    async def _episode(self, lease: rollout.Lease, index: int) -> None:
        await asyncio.sleep(self._delay_s)
        kind = self._fail(lease.group, index, lease.attempt)
        if kind:
            failure = rollout.GroupFailure(
                group=lease.group, index=index, attempt=lease.attempt, kind=kind, fault=common.Fault(message="scripted")
            )
            self._outgoing.put_nowait(rollout.WorkerMessage(failures=[failure]))
            return
        version = max(self._version, lease.floor)
        key = common.SampleKey(group=lease.group, index=index, attempt=lease.attempt)
        reward = self._reward(lease.group, index)
        meta = SampleMeta(lease.attempt, reward, version, version, lease.max_staleness, 1, False, 0, self.name)
        sample = NewSample(lease.group, index, encode(common.Sample(key=key)), meta)
        await self._store([sample])
        done = rollout.SampleDone(
            key=key, reward=reward, oldest_version=version, newest_version=version, max_staleness=lease.max_staleness
        )
        self._kept[(lease.group, index)] = (sample, done)
        held = self._in_work.get(lease.group)
        if held is not None:
            held[1].discard(index)
            if not held[1]:
                del self._in_work[lease.group]
        self._progress += 1
        self._outgoing.put_nowait(rollout.WorkerMessage(done=[done]))


class ScriptedTrainer:
    """The real consumer and ledger client without a model: training is a line in `trained`."""

    def __init__(self, address: str, ledger: SyncLedger, fences: Path, policy: ConsumerPolicy) -> None:
        self.trained: list[tuple[int, tuple[int, ...]]] = []
        self.checkpoint = TrainerState()
        self.refused = 0
        self._address, self._ledger, self._fences, self._policy = address, ledger, fences, policy
        self._orders = rollout.TrainerOrders()
        self._fence = 0
        self._evaluated = asyncio.Event()

    async def run(self, until_step: int | None = None) -> None:
        """One life of the trainer: from its checkpoint to the end, or to a death at `until_step`."""
        async with connect(self._address, TOKEN) as channel:
            self._stub = rollout_grpc.RolloutStub(channel)
            self._fence = allocate(self._fences, "trainer")
            start = self.checkpoint
            await asyncio.to_thread(self._ledger.recover, self._fence, start.step)
            attach = rollout.AttachTrainerRequest(fence=self._fence, step=start.step)
            answer: rollout.AttachTrainerResponse = await self._call(
                lambda: self._stub.AttachTrainer(attach, timeout=5)
            )
            served = int(answer.served_policy_id.split(".f")[0]) if answer.served_policy_id else -1
            consumer = Consumer(self._fence, start, self._policy, served)
            consumer.set_max_steps(answer.max_steps)
            beats = asyncio.create_task(self._beat(consumer))
            try:
                await self._train(consumer, until_step)
                if until_step is None:
                    await self._until_evaluated()
            finally:
                beats.cancel()

    async def _train(self, consumer: Consumer, until_step: int | None) -> None:
        while True:
            await self._publish(consumer)
            if consumer.checkpoint_due(self._orders.checkpoint_now):
                self.checkpoint = consumer.state
                consumer.committed(consumer.state)
                await asyncio.to_thread(self._ledger.commit, self._fence, consumer.state.step)
            want = consumer.want()
            if want is None or consumer.version == until_step:
                return
            taken = await asyncio.to_thread(self._take, want)
            batch = consumer.offer(taken)
            if batch is not None and await self._advance(consumer, batch):
                self.trained.append((batch.step, tuple(group.group for group in batch.groups)))
                consumer.trained(batch)

    def _take(self, step: int) -> list:  # type: ignore[type-arg]
        with contextlib.suppress(InfraError):
            self._ledger.wait_ready(self._fence, step, 0.3)
            return self._ledger.take(self._fence, step)
        return []

    async def _advance(self, consumer: Consumer, batch: Batch) -> bool:
        request = rollout.AdvanceTrainerRequest(fence=self._fence, step=batch.step, groups=len(batch.groups))
        try:
            answer: rollout.AdvanceTrainerResponse = await self._call(
                lambda: self._stub.AdvanceTrainer(request, timeout=5), keep=("changed while",)
            )
        except InfraError:
            self.refused += 1
            consumer.drop()
            return False
        return consumer.accept(batch, answer.max_steps)

    async def _publish(self, consumer: Consumer) -> None:
        if not consumer.publish_due():
            return
        ref = common.WeightsRef(policy_id=f"{consumer.version}.f{self._fence}", path="weights", manifest_digest="d")
        request = rollout.PublishWeightsRequest(fence=self._fence, weights=ref, final=consumer.finished)
        await self._call(lambda: self._stub.PublishWeights(request, timeout=5))
        consumer.published()

    async def _call(self, call: Callable, keep: tuple[str, ...] = ()):  # type: ignore[type-arg, no-untyped-def]
        """Repeat a call through restarts of the controller; refusals are raised."""
        while True:
            try:
                try:
                    return await call()
                except grpc.RpcError as error:
                    raise_as(error)
            except InfraError as error:
                if any(words in error.message for words in keep):
                    raise
                await asyncio.sleep(0.05)

    async def _beat(self, consumer: Consumer) -> None:
        async def messages() -> AsyncIterator[rollout.TrainerMessage]:
            while True:
                state = consumer.state
                yield rollout.TrainerMessage(
                    beat=common.Beat(fence=self._fence, progress=state.step),
                    step=state.step,
                    committed_step=consumer.committed_state.step,
                    finished=consumer.finished and not consumer.publish_due() and not consumer.checkpoint_due(),
                )
                await asyncio.sleep(0.02)

        while True:
            with contextlib.suppress(grpc.RpcError):
                async for orders in self._stub.Train(messages()):
                    self._orders = orders
                    if orders.evaluation_done:
                        self._evaluated.set()
            await asyncio.sleep(0.05)

    async def _until_evaluated(self) -> None:
        await self._evaluated.wait()


def write_snapshot(directory: Path, rows: int) -> None:
    """A prepared dataset of numbered rows."""
    lines = directory.with_suffix(".jsonl")
    lines.parent.mkdir(parents=True, exist_ok=True)
    lines.write_text("".join(f'{{"question": "{i}"}}\n' for i in range(rows)))
    prepare(JsonlSource(lines), directory)
