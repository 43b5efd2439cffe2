"""Boxes that die the likelier the longer their episodes are change neither lengths nor rewards of what is trained.

Controller, worker, ledger and service of boxes are real, and boxes are ended in the middle of a command. The policy is
none: it draws the length of every answer anew at each request, as an engine does that keeps no seeds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from areal.ledger.async_client import AsyncLedger
from areal.ledger.consumer import Batch, Consumer, ConsumerPolicy
from areal.ledger.journal import read_journal
from areal.ledger.payload import decode
from areal.ledger.sync_client import SyncLedger
from areal.net.channel import connect
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.record.episode_ends import infra_share, read_ends
from areal.rollout.controller.assemble import ControllerPaths, Parts, serve
from areal.rollout.controller.rows import PreparedRows
from areal.rollout.controller.settings import ControllerSettings
from areal.rollout.worker.episode_engine import EpisodeBoxes
from areal.v1 import boxes_pb2, boxes_pb2_grpc, common_pb2, generation_pb2, rollout_pb2, rollout_pb2_grpc
from areal.workflow import Engine, Episode, GenerationRequest, RolloutWorkflow, Sequence
from areal.workflow.tokenizer import Tokenizer
from boxes.conftest import TOKEN as BOX_TOKEN
from boxes.conftest import Served
from rollout.controller import controller_peers
from scipy.stats import ks_2samp
from support.char_tokenizer import write_tokenizer
from support.redis_server import RedisServer, free_port
from support.scripted_agent import TOKEN, VOCABULARY, ScriptedAgent, answer
from support.worker_parts import LIMIT, Bench

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

B, N, STEPS = 16, 4, 4  # 256 samples
RISES_FROM = 11  # tokens: three answers in five are shorter
SETTINGS = ControllerSettings(
    group_size=N, batch_groups=B, max_steps=STEPS, max_staleness=STEPS, max_concurrent=5, group_deadline_s=600.0
)


def risk(tokens: int) -> float:
    """How probably a box of an episode so long dies: 15 % on average, half for the longest."""
    return 0.0 if tokens < RISES_FROM else 0.25 + 0.25 * (tokens - RISES_FROM) / (LIMIT - RISES_FROM)


def drawn(name: str) -> int:
    """63 bits that depend on a name only."""
    return int(xxhash.xxh3_64_intdigest(name.encode())) >> 1


@dataclass(eq=False)
class Unseeded(ScriptedAgent):
    """A server that draws each request anew, whatever its seed; it is told weights by the controller."""

    policy_id: str = ""
    asked: Counter[tuple[int, int]] = field(default_factory=Counter)

    def _begin(self, start: generation_pb2.GenerateStart, out: asyncio.Queue[Any]) -> None:
        sample = (start.key.group, start.key.index)
        self.asked[sample] += 1
        start.sampling.seed = drawn(f"request {self.asked[sample]} of {sample}")
        super()._begin(start, out)

    async def serve_weights(self, controller: str) -> None:
        async with connect(controller, TOKEN) as channel:
            while True:
                with contextlib.suppress(Exception):
                    async for orders in rollout_pb2_grpc.RolloutStub(channel).Serve(self._beats()):
                        self.policy_id = orders.wanted.policy_id or self.policy_id
                await asyncio.sleep(0.05)

    async def _beats(self) -> AsyncIterator[rollout_pb2.ServerMessage]:
        tokens = 0
        while True:
            tokens += 1
            state = self.state(ready=bool(self.policy_id), tokens_total=tokens)
            yield rollout_pb2.ServerMessage(beat=common_pb2.Beat(incarnation="a", progress=tokens), state=state)
            await asyncio.sleep(0.05)


class Boxed(RolloutWorkflow):
    """One answer, one command in a box, whose output is the reward. Boxes of long answers are ended under it."""

    def __init__(self, address: str, killed: list[int]) -> None:
        super().__init__()
        self._address = address
        self._killed = killed
        self._tries: Counter[bytes] = Counter()

    async def arun_episode(self, engine: Engine, row: dict[str, Any]) -> Episode | None:
        prompt = engine.prompt(row)
        result = await engine.agenerate(GenerationRequest(prompt.ids))
        said, tokens = result.output_ids.tobytes(), len(result.output_ids)
        self._tries[said] += 1
        dies = drawn(f"{said.hex()} {self._tries[said]}") / 2**63 < risk(tokens)
        async with engine.box(work_s=600) as box:
            running = asyncio.create_task(box.bash(f"echo {tokens}" + "; sleep 1000" * dies, timeout_s=2000))
            if dies:
                self._killed.append(tokens)
                await self._end(box.name)
            reward = int((await running).output) / LIMIT
        return Episode([Sequence.of(prompt.ids, result, reward)])

    async def _end(self, box: str) -> None:
        """Its lease is over now: the service kills what runs in it."""
        async with connect(self._address, BOX_TOKEN) as channel:
            await boxes_pb2_grpc.BoxesStub(channel).RenewBox(boxes_pb2.RenewBoxRequest(id=box, lease_ms=1))


class Trainer(controller_peers.ScriptedTrainer):
    """Remembers the samples of its batches."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.samples: list[common_pb2.Sample] = []

    async def _advance(self, consumer: Consumer, batch: Batch) -> bool:
        if not await super()._advance(consumer, batch):
            return False
        self.samples += [decode(payload) for group in batch.groups for payload in group.payloads]
        return True


@dataclass
class Told:
    """The controller as a bench of a worker sees it: it is somewhere else."""

    address: str

    async def start(self) -> None: ...

    async def die(self) -> None: ...

    def send(self, **_: object) -> None: ...


@contextlib.asynccontextmanager
async def controller(root: Path, redis: str, port: int) -> AsyncIterator[None]:
    controller_peers.write_snapshot(root / "train", 2 * B)
    stop = asyncio.Event()
    paths = ControllerPaths(root / "fences", root / "journal.jsonl", root, root / "evaluations.jsonl")
    async with AsyncLedger(redis, controller_peers.JOB) as ledger:
        metrics = RoleMetrics("controller", controller_peers.JOB)
        waits, rows = WaitRegistry("controller"), PreparedRows(root / "train", None, seed=7)
        parts = Parts(
            controller_peers.JOB, TOKEN, SETTINGS, paths, rows, ledger, metrics, waits, progress=ProgressCounter()
        )
        serving = asyncio.create_task(serve(parts, port, stop))
        yield
        stop.set()
        await serving


async def test_boxes_that_die_under_long_episodes_shift_nothing_that_is_trained(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(controller_peers, "TOKEN", TOKEN)
    monkeypatch.setattr("areal.rollout.controller.settings.RETRY_LAST_S", 0.5)  # boxes don't heal by waiting
    tokenizer = Tokenizer.from_dir(write_tokenizer(tmp_path / "tokenizer", vocab_size=VOCABULARY))
    redis = RedisServer.start(tmp_path / "redis")
    port, killed, agent = free_port(), [], Unseeded()
    address = f"127.0.0.1:{port}"
    bench = Bench(tmp_path / "recorded", tokenizer, redis, lambda: Boxed(served.address, killed))
    bench.boxes = EpisodeBoxes(served.address, BOX_TOKEN, bench.waits)
    bench.controller = Told(address)  # type: ignore[assignment]
    policy = ConsumerPolicy(batch_groups=B, group_size=N, max_steps=STEPS, checkpoint_interval=STEPS)
    trainer = Trainer(address, SyncLedger(redis.address, controller_peers.JOB), tmp_path / "fences", policy)
    try:
        async with controller(tmp_path, redis.address, port):
            training = asyncio.create_task(trainer.run())
            beats = asyncio.create_task(agent.serve_weights(address))
            await bench.start(agent)
            await training
            beats.cancel()
            await bench.end()
    finally:
        redis.stop()

    ids = [np.frombuffer(sample.sequences[0].loss_mask, "u1") for sample in trainer.samples]
    lengths = [int(mask.sum()) for mask in ids]
    rewards = [sample.sequences[0].reward for sample in trainer.samples]
    policys = [len(answer(drawn(f"any {number}"), 0, LIMIT)[0]) for number in range(20_000)]
    of_lengths, of_rewards = ks_2samp(lengths, policys), ks_2samp(rewards, [tokens / LIMIT for tokens in policys])
    ends = read_ends(tmp_path)
    print(
        f"{len(lengths)} trained samples, {len(killed)} boxes ended under {np.mean(killed):.1f} tokens on average; "
        f"KS of lengths D={of_lengths.statistic:.3f} p={of_lengths.pvalue:.3f}, "
        f"of rewards D={of_rewards.statistic:.3f} p={of_rewards.pvalue:.3f}; {ends}"
    )
    assert len(lengths) == B * N * STEPS
    assert not read_journal(tmp_path / "journal.jsonl").tombstones
    assert of_lengths.pvalue > 0.05
    assert of_rewards.pvalue > 0.05
    assert [tokens / LIMIT for tokens in lengths] == pytest.approx(rewards), "a reward that no box gave"
    assert ends == {"complete": len(lengths), "infra": len(killed)}
    assert infra_share(ends) == pytest.approx(len(killed) / (len(killed) + len(lengths)))
    assert "Unexpected" not in caplog.text, "a box ended in mid-command is a typed end"
    assert len(killed) > 0.1 * len(lengths)
