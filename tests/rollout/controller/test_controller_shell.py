"""A real controller process between a real Redis and scripted peers: whole small runs, through deaths and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from areal.ledger.async_client import AsyncLedger
from areal.ledger.consumer import ConsumerPolicy
from areal.ledger.journal import JournalState, read_journal
from areal.ledger.sync_client import SyncLedger
from areal.net.channel import connect
from areal.net.status import idle_from_wire
from areal.observe.live import Idle, IdleCause
from areal.record.episode_ends import read_ends
from areal.rollout.controller.settings import ControllerSettings
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from controller_peers import JOB, TOKEN, RedisProcess, ScriptedAgent, ScriptedTrainer, ScriptedWorker, write_snapshot
from support.redis_server import free_port

pytestmark = [pytest.mark.component, pytest.mark.timeout(90)]

B, N, STEPS = 4, 3, 8
SETTINGS = ControllerSettings(
    group_size=N,
    batch_groups=B,
    max_steps=STEPS,
    max_staleness=1,
    max_concurrent=8,
    group_deadline_s=60,
    adopt_grace_s=0.5,
    resend_grace_s=0.5,
)
POLICY = ConsumerPolicy(batch_groups=B, group_size=N, max_steps=STEPS, checkpoint_interval=2)


class Stage:
    """Redis, a controller process, and what the peers need to reach them."""

    def __init__(self, root: Path, settings: ControllerSettings) -> None:
        self.root = root
        self.redis = RedisProcess(root / "redis")
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.ledger = AsyncLedger(self.redis.address, JOB, retry_for_s=0.5)
        write_snapshot(root / "train", 50)
        write_snapshot(root / "evaluation", 5)
        given = {"root": str(root), "redis": self.redis.address, "job": JOB, "token": TOKEN, "port": self.port}
        self._given = root / "settings.json"
        self._given.write_text(json.dumps({**given, "settings": asdict(settings)}))
        self._log = (root / "controller.log").open("ab")
        self._controller: subprocess.Popen[bytes] | None = None
        self.start_controller()

    def start_controller(self) -> None:
        script = Path(__file__).with_name("controller_process.py")
        self._controller = subprocess.Popen([sys.executable, script, self._given], stdout=self._log, stderr=self._log)

    def kill_controller(self) -> None:
        assert self._controller is not None
        self._controller.kill()
        self._controller.wait()

    def worker(self, name: str = "worker-0", **options: object) -> ScriptedWorker:
        return ScriptedWorker(self.address, self.ledger, name, **options)  # type: ignore[arg-type]

    def trainer(self, policy: ConsumerPolicy = POLICY) -> ScriptedTrainer:
        return ScriptedTrainer(
            self.address, SyncLedger(self.redis.address, JOB, retry_for_s=0.5), self.root / "fences", policy
        )

    async def status(self) -> rollout.GetRolloutStatusResponse:
        async with connect(self.address, TOKEN) as channel:
            stub = rollout_grpc.RolloutStub(channel)
            return await stub.GetRolloutStatus(rollout.GetRolloutStatusRequest(), timeout=20, wait_for_ready=True)

    async def status_where(
        self, holds: Callable[[rollout.GetRolloutStatusResponse], bool]
    ) -> rollout.GetRolloutStatusResponse:
        """The first status for which something holds."""
        async with asyncio.timeout(60):
            while True:
                status = await self.status()
                if holds(status):
                    return status
                await asyncio.sleep(0.02)

    @property
    def journal(self) -> JournalState:
        return read_journal(self.root / "journal.jsonl")

    def close(self) -> None:
        self.kill_controller()
        self.redis.kill()
        self._log.close()


@pytest.fixture
def stage_of(tmp_path: Path) -> Iterator[Callable[[ControllerSettings], Stage]]:
    stages: list[Stage] = []

    def make(settings: ControllerSettings) -> Stage:
        stages.append(Stage(tmp_path, settings))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


@contextlib.asynccontextmanager
async def running(*peers: ScriptedAgent | ScriptedWorker) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(peer.run()) for peer in peers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], *tasks: asyncio.Task[None]) -> None:
    """Wait for a condition, or for the error of a task that it depends on."""
    async with asyncio.timeout(60):
        while not condition():
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.01)


def consumed(trainer: ScriptedTrainer) -> list[int]:
    """Groups in the surviving lineage: of each step the last time it was trained."""
    last = dict(trainer.trained)
    return [group for step in sorted(last) for group in last[step]]


def assert_each_group_ended_once(trainer: ScriptedTrainer, stage: Stage, *, steps: int = STEPS) -> None:
    tombstones = stage.journal.tombstones
    groups = consumed(trainer)
    assert len(dict(trainer.trained)) == steps
    assert len(groups) == len(set(groups))
    assert not set(groups) & set(tombstones)
    every = set(groups) | set(tombstones)
    assert every == set(range(max(every) + 1))
    assert not {t.reason for t in tombstones.values()} & {"infra", "deadline", "poison"}


async def test_a_small_run_ends_with_every_group_trained(stage_of: Callable[[ControllerSettings], Stage]) -> None:
    settings = ControllerSettings(**{**asdict(SETTINGS), "evaluation_interval": 4, "evaluation_rows": 5})
    stage = stage_of(settings)
    worker, trainer = stage.worker(), stage.trainer()
    async with running(ScriptedAgent(stage.address, "server-0"), worker):
        await asyncio.wait_for(trainer.run(), 60)
        await asyncio.wait_for(worker.stopped.wait(), 60)
        status = await stage.status()
    assert [len(groups) for _, groups in trainer.trained] == [B] * STEPS
    assert sorted(group for _, groups in trainer.trained for group in groups) == list(range(STEPS * B))
    assert status.finished
    assert status.staleness_max <= settings.max_staleness
    assert not status.staleness_violations_total
    results = [json.loads(line) for line in (stage.root / "evaluations.jsonl").read_text().splitlines()]
    assert [(r["version"], r["rows"], r["mean"]) for r in results] == [(0, 5, 0.5), (4, 5, 0.5), (8, 5, 0.5)]
    assert len(set(worker.rows.values())) == len(worker.rows)


async def test_filtered_and_rejected_groups_are_replaced(stage_of: Callable[[ControllerSettings], Stage]) -> None:
    stage = stage_of(ControllerSettings(**{**asdict(SETTINGS), "filter_zero_variance": True}))

    def reward(group: int, index: int) -> float:
        return 1.0 if group % 3 == 0 else float(index % 2)

    def fail(group: int, index: int, attempt: int) -> int:
        return rollout.FAILURE_KIND_EXCEPTION if group % 5 == 1 and index == 1 else 0

    trainer = stage.trainer()
    async with running(ScriptedAgent(stage.address, "server-0"), stage.worker(reward=reward, fail=fail)):
        await asyncio.wait_for(trainer.run(), 60)
    assert_each_group_ended_once(trainer, stage)
    reasons = {t.group: t.reason for t in stage.journal.tombstones.values() if t.group <= max(consumed(trainer))}
    assert reasons
    for group, reason in reasons.items():
        assert reason == ("rejected" if group % 5 == 1 else "filtered")
    assert "exception: scripted" in next(t.detail for t in stage.journal.tombstones.values() if t.reason == "rejected")


async def test_infrastructure_faults_are_retried_and_leave_no_trace(
    stage_of: Callable[[ControllerSettings], Stage],
) -> None:
    stage = stage_of(SETTINGS)

    def fail(group: int, index: int, attempt: int) -> int:
        return rollout.FAILURE_KIND_INFRA if (group + index) % 4 == 0 and attempt <= 2 else 0

    worker, trainer = stage.worker(fail=fail), stage.trainer()
    async with running(ScriptedAgent(stage.address, "server-0"), worker):
        await asyncio.wait_for(trainer.run(), 80)
    assert_each_group_ended_once(trainer, stage)
    assert not stage.journal.tombstones
    assert max(lease.attempt for lease in worker.leases) == 3


async def test_a_killed_controller_is_rebuilt_and_loses_nothing(
    stage_of: Callable[[ControllerSettings], Stage],
) -> None:
    stage = stage_of(SETTINGS)
    trainer = stage.trainer()
    async with running(ScriptedAgent(stage.address, "server-0"), stage.worker(delay_s=0.02)):
        run = asyncio.create_task(trainer.run())
        kept = [0]
        for at in (2, 5):
            await until(lambda at=at: len(trainer.trained) >= at, run)  # type: ignore[misc]
            ends = stage.root / f"episode-ends.f{len(kept)}.json"
            await until(ends.is_file)
            stage.kill_controller()
            kept.append(read_ends(stage.root)["complete"])
            stage.start_controller()
        await asyncio.wait_for(run, 60)
        await until((stage.root / "episode-ends.f3.json").is_file)
        assert 0 < kept[1] <= kept[2] <= read_ends(stage.root)["complete"]
    assert_each_group_ended_once(trainer, stage)
    assert len(trainer.trained) == STEPS
    assert sorted(os.listdir(stage.root / "fences"))[:3] == [f"controller-{i:08d}" for i in (1, 2, 3)]


async def test_redis_that_comes_back_empty_is_filled_again(stage_of: Callable[[ControllerSettings], Stage]) -> None:
    stage = stage_of(SETTINGS)
    worker, trainer = stage.worker(delay_s=0.02), stage.trainer()
    async with running(ScriptedAgent(stage.address, "server-0"), worker):
        run = asyncio.create_task(trainer.run())
        await until(lambda: len(trainer.trained) >= 3, run)
        stage.redis.kill()
        for path in stage.redis.directory.rglob("*.aof"):
            path.write_bytes(b"")
        stage.redis.start()
        await asyncio.wait_for(run, 60)
    assert_each_group_ended_once(trainer, stage)
    assert len(trainer.trained) == STEPS
    assert not stage.journal.tombstones


async def test_a_trainer_that_dies_goes_on_from_its_checkpoint(stage_of: Callable[[ControllerSettings], Stage]) -> None:
    stage = stage_of(SETTINGS)
    trainer = stage.trainer()
    async with running(ScriptedAgent(stage.address, "server-0"), stage.worker()):
        await asyncio.wait_for(trainer.run(until_step=5), 60)
        assert trainer.checkpoint.step == 4
        await asyncio.wait_for(trainer.run(), 60)
    assert_each_group_ended_once(trainer, stage)
    again = [groups for step, groups in trainer.trained if step == 4]
    assert len(again) == 2
    assert again[0] == again[1]


async def test_a_dead_workers_groups_go_to_another(stage_of: Callable[[ControllerSettings], Stage]) -> None:
    stage = stage_of(SETTINGS)
    slow, quick, trainer = stage.worker("worker-0", delay_s=30.0), stage.worker("worker-1"), stage.trainer()
    async with running(ScriptedAgent(stage.address, "server-0")):
        victim = asyncio.create_task(slow.run())
        run = asyncio.create_task(trainer.run())
        await until(lambda: bool(slow.leases), run, victim)
        async with running(quick):
            victim.cancel()
            await asyncio.wait_for(run, 60)
    assert_each_group_ended_once(trainer, stage)
    assert not stage.journal.tombstones
    assert {lease.group for lease in slow.leases} <= {lease.group for lease in quick.leases}


async def test_status_says_why_nothing_is_admitted(stage_of: Callable[[ControllerSettings], Stage]) -> None:
    stage = stage_of(SETTINGS)
    assert (await stage.status()).idle_cause == rollout.IDLE_CAUSE_NO_WEIGHTS
    trainer = stage.trainer()
    run = asyncio.create_task(trainer.run())
    served = await stage.status_where(lambda s: bool(s.served_policy_id))
    assert idle_from_wire(served) == Idle(IdleCause.NO_SERVER, served.idle_reason)
    async with running(ScriptedAgent(stage.address, "server-0")):
        await stage.status_where(lambda s: s.idle_cause == rollout.IDLE_CAUSE_NO_WORKER)
        async with running(stage.worker()):
            await asyncio.wait_for(run, 60)
    assert (await stage.status()).idle_reason == "the run is over"


async def test_what_peers_call_themselves_moves_no_cursor_of_a_terminal(
    stage_of: Callable[[ControllerSettings], Stage],
) -> None:
    stage = stage_of(SETTINGS)
    name = "worker\x1b[2J\n0"
    log = stage.root / "controller.log"
    async with running(stage.worker(name)):
        await stage.status_where(lambda _: "opened a stream" in log.read_text())
    assert repr(name) in log.read_text()
    assert "\x1b" not in log.read_text()
