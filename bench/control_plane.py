"""The controller at the size of 1,024 GPUs: so many generation servers, ten thousand groups in flight, batches of 512.

    python bench/control_plane.py [--servers 1024] [--groups 10000] [--seconds 60]
    python bench/control_plane.py --passes now [--groups 10000]      processor time of a pass, by itself

Controller and ledger are real; servers, workers and the trainer are scripted peers that speak the real protocol: each
server beats twice a second and takes every version, workers hold all groups and end them as fast as a thousand GPUs
would. Printed: loop lag of the controller beside that of a process that does nothing, its CPU and memory, the age of
beats at their arrival, and steps a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import rollout
from areal.ledger.async_client import AsyncLedger
from areal.ledger.sync_client import SyncLedger
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as messages
from controller_bench import SETTINGS, Bench
from controller_peers import ScriptedAgent, ScriptedWorker
from rollout import Scene, Trainer, until
from support.redis_server import RedisServer

BEAT_S = 0.5  # as `areal.net.heartbeat` has it
WORKERS = 16


class PacedAgent(ScriptedAgent):
    """A server that beats as often as a real one."""

    async def _beats(self) -> Any:
        await asyncio.sleep(random.random() * BEAT_S)
        while True:
            self.tokens += 1000
            state = generation.ServerState(
                server_id=self.name, address="127.0.0.1:1", policy_id=self.policy_id, version=self.version,
                live=True, ready=self.version >= 0, tokens_total=self.tokens,
            )  # fmt: skip
            beat = common.Beat(incarnation=self.name, progress=self.tokens, monotonic_s=time.monotonic())
            yield messages.ServerMessage(beat=beat, state=state)
            await asyncio.sleep(BEAT_S)


class PacedWorker(ScriptedWorker):
    """A worker whose groups take `lasts` seconds, a tenth more or less; the first `begun` are under way already."""

    lasts = 0.0
    begun = 1

    def _stamped(self, message: messages.WorkerMessage) -> messages.WorkerMessage:
        message.beat.monotonic_s = time.monotonic()
        return super()._stamped(message)

    async def _episode(self, lease: Any, index: int) -> None:
        left = lease.group / self.begun if lease.group < self.begun else 0.9 + 0.2 * random.random()
        await asyncio.sleep(left * self.lasts)
        await super()._episode(lease, index)


async def agents(address: str, count: int) -> None:
    """So many servers, for ever."""
    await asyncio.gather(*(PacedAgent(address, f"generation-{number}").run() for number in range(count)))


async def workers(address: str, redis: str, groups: int, lasts: float, held: Any) -> None:
    """Workers that hold `groups` among them, for ever; `held` is told how many they do."""
    async with AsyncLedger(redis, "bench") as ledger:
        crew = [
            PacedWorker(address, ledger, f"worker-{number}", capacity=groups // WORKERS, delay_s=0.0)
            for number in range(WORKERS)
        ]
        for worker in crew:
            worker.lasts, worker.begun = lasts, groups
        tasks = [asyncio.create_task(worker.run()) for worker in crew]
        while not any(task.done() for task in tasks):
            held.value = sum(len(worker._in_work) for worker in crew)
            await asyncio.sleep(0.5)


def apart(what: Any, *given: Any) -> None:
    """Run a coroutine; in a process of its own."""
    asyncio.run(what(*given))


async def measure(scene: Scene, given: argparse.Namespace, held: Any) -> dict[str, Any]:
    """One run; returns its figures. The peers are under way."""
    ledger = await asyncio.to_thread(SyncLedger, scene.redis.address, "bench", retry_for_s=5.0)
    trainer = Trainer(f"127.0.0.1:{scene.port}", ledger, scene.root)
    training = asyncio.create_task(trainer.run())
    try:
        full = 0.9 * given.groups
        await until(f"{given.groups} groups in flight", scene, lambda: training.done() or held.value > full)
        at = time.monotonic()
        await until("the first batches", scene, lambda: training.done() or len(trainer.times) > 1)
        print(f"  trained after {time.monotonic() - at:.0f} s", flush=True)
        before = {process.name: process.read() for process in scene.processes}
        for process in scene.processes:
            assert process.child is not None
            process.child.send_signal(signal.SIGUSR1)
        began, steps = time.monotonic(), len(trainer.times)
        await asyncio.sleep(given.seconds)
        if training.done():
            training.result()
        after = {process.name: process.read() for process in scene.processes}
        took = time.monotonic() - began
        return {
            "servers": given.servers, "groups": held.value, "batch": given.batch, "seconds": took,
            "steps": len(trainer.times) - steps, "load": os.getloadavg()[0],
            "controller_cpu": (after["controller"]["cpu_s"] - before["controller"]["cpu_s"]) / took,
            "controller_mb": after["controller"]["memory_mb"][-1],
            "lag_ms": after["controller"]["lag_ms"], "own_ms": after["controller"]["busy_ms"],
            "idle_lag_ms": after["idle"]["lag_ms"], "beats_ms": after["controller"]["beats_ms"],
        }  # fmt: skip
    finally:
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)


def passes(groups: int) -> dict[str, Any]:
    """Processor milliseconds, median and highest, of what the controller does in a row with so many groups in work:
    a pass of leasing, and a look at the clock. A machine's load hardly moves them."""
    settings = replace(
        SETTINGS, group_size=4, batch_groups=512, max_steps=10**6, max_staleness=160, ahead=40, max_concurrent=groups,
        group_deadline_s=1e6,
    )  # fmt: skip
    core = (bench := Bench(settings)).core
    bench.server(0)
    for number in range(WORKERS):
        bench.worker(f"worker-{number}", capacity=1 + groups // WORKERS)
    told: dict[str, Any] = {"groups": len(core.book.open)}
    for name, what in (("pass_ms", core.decide), ("clock_ms", core.tick)):
        spent = []
        for _ in range(60):
            began = time.thread_time()
            what(bench.now)
            spent.append(1e3 * (time.thread_time() - began))
        told[name] = [sorted(spent)[len(spent) // 2], max(spent)]
    return told


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--servers", type=int, default=1024)
    made.add_argument("--groups", type=int, default=10_000, help="in flight")
    made.add_argument("--batch", type=int, default=512, help="groups a step")
    made.add_argument("--group-size", type=int, default=4, help="samples a group")
    made.add_argument("--rate", type=float, default=16.0, help="groups that end a second; 512 in 32 s, the model's")
    made.add_argument("--seconds", type=float, default=120.0)
    made.add_argument("--out", type=Path, help="add the figures to this JSON as `control_plane`")
    made.add_argument("--passes", metavar="NAME", help="measure a pass only; kept under this name")
    given = made.parse_args()
    if given.passes:
        told = passes(given.groups)
        print(json.dumps(told))
        if given.out is not None:
            kept = json.loads(given.out.read_text())
            kept.setdefault("passes", {})[given.passes] = told
            given.out.write_text(json.dumps(kept, ensure_ascii=False) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        redis = RedisServer.start(Path(folder) / "redis")
        rollout.GROUP, rollout.BATCH = given.group_size, given.batch
        scene = Scene(Path(folder), argparse.Namespace(samples=given.groups), redis)
        scene.prepare_data()
        scene.add_controller(given.groups)
        address, fresh = f"127.0.0.1:{scene.port}", multiprocessing.get_context("spawn")
        held, lasts = fresh.Value("i", 0), given.groups / given.rate  # seconds of a group: so many are in flight
        peers = [
            fresh.Process(target=apart, args=(agents, address, given.servers)),
            fresh.Process(target=apart, args=(workers, address, redis.address, given.groups, lasts, held)),
        ]
        try:
            for peer in peers:
                peer.start()
            result = asyncio.run(measure(scene, given, held))
        finally:
            for peer in peers:
                peer.kill()
            for process in reversed(scene.processes):
                process.end()
            redis.kill()
    for name, value in result.items():
        told = " / ".join(f"{one:,.2f}" for one in value) if isinstance(value, list) else f"{value:,.4g}"
        print(f"  {name:<16}{told}" + ("   median / p99" if isinstance(value, list) else ""))
    if given.out is not None:
        kept = json.loads(given.out.read_text()) if given.out.exists() else {}
        given.out.write_text(json.dumps({**kept, "control_plane": result}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
