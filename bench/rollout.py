"""The rollout path under load: a controller, two workers, two agents over null engines, ten thousand samples in flight.

Weights are swapped each second; halfway an agent is killed and started again. Printed: requests that were abandoned,
seconds until a step's worth of groups was trained again, lag of every event loop, CPU a sample, memory, and the p99 of
each class of messages beside its goal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
sys.path.insert(0, str(HERE.parent / "tests" / "rollout" / "controller"))

import report  # noqa: E402
from areal.data.prepare import prepare  # noqa: E402
from areal.data.source import JsonlSource  # noqa: E402
from areal.ledger.consumer import Consumer, ConsumerPolicy  # noqa: E402
from areal.ledger.sync_client import SyncLedger  # noqa: E402
from areal.v1 import rollout_pb2 as rollout  # noqa: E402
from areal.values.policy import PolicyId  # noqa: E402
from areal.weights.manifest import Canary  # noqa: E402
from areal.weights.publish import publish  # noqa: E402
from controller_peers import TOKEN, ScriptedTrainer  # noqa: E402
from rollout_roles import half_and_p99  # noqa: E402
from support.char_tokenizer import write_tokenizer  # noqa: E402
from support.redis_server import RedisServer, free_port  # noqa: E402

GROUP, BATCH = 8, 64
TOKENS = 16  # of an answer
MAX_RUNNING = 128  # of an engine
SWAP_S = 1.0
GOALS_MS = {"heartbeat": 1.0, "weights": 10.0, "data": 50.0, "logs": 100.0}
LIMITS = {"lag_p99_ms": 100.0, "cpu_ms_a_sample": 1.0, "again_s": 5.0, "abandoned": 0.0, "dispatch_per_core_s": 2_000.0}


class Trainer(ScriptedTrainer):
    """Trains nothing and publishes a version each second. Remembers when it trained, and when it published what."""

    def __init__(self, address: str, ledger: SyncLedger, root: Path) -> None:
        policy = ConsumerPolicy(BATCH, GROUP, max_steps=1_000_000, publish_interval=1, checkpoint_interval=8)
        super().__init__(address, ledger, root / "fences", policy)
        self.times: list[float] = []
        self.published_at: dict[str, float] = {}
        self._volume = root / "weights"
        self._next = 0.0

    async def _publish(self, consumer: Consumer) -> None:
        self.times += [time.monotonic()] * (len(self.trained) - len(self.times))
        now = time.monotonic()
        if now < self._next or not consumer.publish_due():
            return
        self._next = now + SWAP_S
        policy = PolicyId.parse(f"{consumer.version}.f{self._fence}")
        tensor = ("w", "F32", (16,), np.zeros(16, dtype="<f4"))
        canary = Canary(token_ids=(7, 7, 7), logprobs=(0.0, -1.0, -1.0), tolerance=1e-3)
        ref = await asyncio.to_thread(publish, self._volume, policy, [tensor], canary, {})
        self.published_at[str(policy)] = time.monotonic()
        request = rollout.PublishWeightsRequest(fence=self._fence, weights=ref.message(), final=False)
        await self._call(lambda: self._stub.PublishWeights(request, timeout=5))
        consumer.published()


@dataclass
class Process:
    """One role, and where it writes its figures."""

    role: str
    name: str
    given: Path
    figures: Path
    log: Path
    child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [sys.executable, str(HERE / "rollout_roles.py"), self.role, str(self.given)]
        with self.log.open("ab") as out:
            self.child = subprocess.Popen(argv, stdout=out, stderr=out, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def read(self) -> dict[str, Any]:
        return dict(json.loads(self.figures.read_text())) if self.figures.exists() else {}

    def end(self) -> None:
        if self.child is None:
            return
        self.child.terminate()
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


@dataclass
class Scene:
    """All processes of a run."""

    root: Path
    arguments: argparse.Namespace
    redis: RedisServer
    port: int = field(default_factory=free_port)
    processes: list[Process] = field(default_factory=list)

    def add(self, role: str, name: str, **given: Any) -> Process:
        common = {"root": str(self.root), "token": TOKEN, "redis": self.redis.address, "name": name}
        common |= {"controller": f"127.0.0.1:{self.port}", "model": str(self.root / "model")}
        figures = self.root / f"{name}.figures.json"
        path = self.root / f"{name}.json"
        path.write_text(json.dumps({**common, "figures": str(figures), **given}))
        made = Process(role, name, path, figures, self.root / f"{name}.log")
        self.processes.append(made)
        made.start()
        return made

    def prepare_data(self) -> None:
        """Model directory and dataset."""
        write_tokenizer(self.root / "model")
        config = {"vocab_size": 32, "eos_token_id": 1, "max_position_embeddings": 1024}
        (self.root / "model" / "config.json").write_text(json.dumps(config))
        lines = self.root / "train.jsonl"
        lines.write_text("".join(json.dumps({"prompt": f"{number}="}) + "\n" for number in range(2_000)))
        prepare(JsonlSource(lines), self.root / "train")

    def prepare(self) -> None:
        """What is read, and the processes."""
        self.prepare_data()
        groups = self.arguments.samples // GROUP
        self.add_controller(groups)
        for number in range(2):
            self.add("worker", f"worker-{number}", groups=groups, tokens=TOKENS)
        step_s = self.arguments.step
        for number in range(2):
            port = free_port()
            self.add("agent", f"generation-{number}", engine_port=port, max_running=MAX_RUNNING, step_s=step_s)

    def add_controller(self, groups: int) -> None:
        """The controller, and a process that does nothing. `groups`: in flight."""
        settings = {"group_size": GROUP, "batch_groups": BATCH, "max_steps": 1_000_000}
        settings |= {"max_staleness": 2 * (groups // BATCH) + 4, "max_concurrent": groups, "group_deadline_s": 600.0}
        self.add("controller", "controller", port=self.port, settings=settings)
        self.add("idle", "idle")

    def look(self) -> None:
        """Raise when a process has ended by itself."""
        for process in self.processes:
            assert process.child is not None
            if process.child.poll() is not None:
                raise RuntimeError(f"{process.name} ended:\n{process.log.read_text()[-2000:]}")

    def named(self, name: str) -> Process:
        return next(process for process in self.processes if process.name == name)


async def until(what: str, scene: Scene, ready: Any, limit_s: float = 300.0) -> None:
    async with asyncio.timeout(limit_s):
        while not ready():
            scene.look()
            await asyncio.sleep(0.1)
    print(f"  {what}", flush=True)


async def measure(scene: Scene) -> dict[str, Any]:
    """One run; returns its figures."""
    arguments = scene.arguments
    scene.prepare()
    ledger = await asyncio.to_thread(SyncLedger, scene.redis.address, "bench", retry_for_s=5.0)
    trainer = Trainer(f"127.0.0.1:{scene.port}", ledger, scene.root)
    training = asyncio.create_task(trainer.run())
    workers = [scene.named(f"worker-{number}") for number in range(2)]
    share = 0.9 * arguments.samples

    def flying() -> int:
        return sum(process.read().get("open_requests", 0) for process in workers)

    await until(f"{arguments.samples} samples in flight", scene, lambda: training.done() or flying() >= share)
    before = {process.name: process.read() for process in scene.processes}
    for process in scene.processes:
        assert process.child is not None
        process.child.send_signal(signal.SIGUSR1)
    began = time.monotonic()
    await asyncio.sleep(arguments.seconds / 2)
    killed, victim = time.monotonic(), scene.named("generation-1")
    assert victim.child is not None
    last = victim.read()
    victim.child.kill()
    victim.child.wait()
    await asyncio.sleep(1.0)  # as a launcher would
    victim.start()
    await asyncio.sleep(arguments.seconds / 2)
    if training.done():
        training.result()
    after = {process.name: process.read() for process in scene.processes}
    training.cancel()
    await asyncio.gather(training, return_exceptions=True)
    return summary(trainer, before, after, last, began, killed)


def summary(
    trainer: Trainer, before: dict[str, Any], after: dict[str, Any], victim: dict[str, Any], began: float, killed: float
) -> dict[str, Any]:
    """The figures of a run from what its processes told."""
    samples = after["controller"]["samples"] - before["controller"]["samples"]
    again = [at for at in trainer.times if at > killed]
    ends: dict[str, int] = {}
    for name in ("worker-0", "worker-1"):
        for how, count in after[name]["ends"].items():
            ends[how] = ends.get(how, 0) + count - before[name]["ends"].get(how, 0)
    lost = {how: count for how, count in ends.items() if how.partition(" ")[2] not in ("STOP", "LENGTH")}
    roles = [name for name in after if name != "idle"]
    cpu = {name: after[name]["cpu_s"] - before[name]["cpu_s"] for name in roles if name != "generation-1"}
    cpu["generation-1"] = victim["cpu_s"] - before["generation-1"]["cpu_s"] + after["generation-1"]["cpu_s"]
    agents = cpu["generation-0"] + cpu["generation-1"]
    told = [after[name]["weights_at"] for name in ("generation-0", "generation-1")]
    weights = [1000 * (seen[p] - at) for p, at in trainer.published_at.items() for seen in told if p in seen]
    weights = [ms for ms in weights if ms < 1_000]  # a later start is told what was published before
    classes = {
        "heartbeat": after["controller"]["beats_ms"],
        "weights": half_and_p99(
            [ms for ms in weights if ms < 1_000]
        ),  # a later start is told what was published before
        "data": after["controller"]["data_ms"],
        "logs": after["worker-0"]["logs_ms"],
    }
    return {
        "samples": samples,
        "samples_per_s": samples / (time.monotonic() - began),
        "swaps": sum(at > began for at in trainer.published_at.values()),
        "ends": ends,
        "resubmitted": sum(
            after[name]["resubmitted"] - before[name]["resubmitted"] for name in ("worker-0", "worker-1")
        ),
        "abandoned": sum(count for how, count in lost.items() if not how.startswith("generation-1")),
        "abandoned_of_the_killed": sum(count for how, count in lost.items() if how.startswith("generation-1")),
        "again_s": again[1] - killed if len(again) > 1 else float("inf"),
        "lag_p99_ms": {name: after[name]["lag_ms"][1] for name in roles},
        "busy_p99_ms": {name: after[name]["busy_ms"][1] for name in roles},
        "idle_lag_p99_ms": after["idle"]["lag_ms"][1],
        "cpu_s": cpu,
        "cpu_ms_a_sample": 1000 * sum(cpu.values()) / max(1, samples),
        "dispatch_per_core_s": samples / agents if agents else 0.0,
        "memory_mb": {name: memory(before[name]["memory_mb"], after[name]["memory_mb"]) for name in roles},
        "message_ms": classes,
    }


def memory(before: list[float], after: list[float]) -> list[float]:
    """At the beginning, ten seconds before the end, at the end. One entry a second."""
    return [before[-1], after[-min(10, len(after))], after[-1]]


def show(result: dict[str, Any]) -> None:
    """The table."""
    rate = f"{result['samples_per_s']:,.0f} samples/s, {result['swaps']} swaps"
    print(f"\nrollout  (load {os.getloadavg()[0]:.1f})  {rate}")
    print(f"  a process that does nothing lags by {result['idle_lag_p99_ms']:.1f} ms (p99): the machine's other load")
    worst, busiest = max(result["lag_p99_ms"].values()), max(result["busy_p99_ms"].values())
    rows = [
        ("requests abandoned, the killed agent's apart", result["abandoned"], LIMITS["abandoned"], "≤"),
        ("seconds to a step's worth of groups after the kill", result["again_s"], LIMITS["again_s"], "≤"),
        ("event loops: worst lag p99, ms", worst, LIMITS["lag_p99_ms"], "≤"),
        ("event loops: most CPU between two looks, p99 ms", busiest, LIMITS["lag_p99_ms"], "≤"),
        ("CPU of controller, workers and agents, ms a sample", result["cpu_ms_a_sample"], 1.0, "≤"),
        ("dispatch, samples a CPU second of the agents", result["dispatch_per_core_s"], 2_000.0, "≥"),
    ]
    for name, goal in GOALS_MS.items():
        half, most = result["message_ms"][name]
        rows.append((f"{name} messages, p99 ms (median {half:.2f})", most, goal, "≤"))
    for name, value, limit, sign in rows:
        print(f"  {name:<54} {value:>10,.2f}   {sign} {limit:,.0f}")
    for name, lag in result["lag_p99_ms"].items():
        held = " → ".join(f"{megabytes:.0f}" for megabytes in result["memory_mb"][name])
        own = f"lag p99 {lag:>7.1f} ms, own {result['busy_p99_ms'][name]:>6.1f} ms"
        print(f"    {name:<14} {own}   CPU {result['cpu_s'][name]:>6.1f} s   memory {held} MB")
    lost = {how: count for how, count in result["ends"].items() if not how.endswith((" LENGTH", " STOP"))}
    print(f"    ends of attempts beside whole answers: {lost or 'none'}; sent again: {result['resubmitted']}")


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--samples", type=int, default=10_000, help="in flight")
    made.add_argument("--seconds", type=float, default=60.0, help="measured, once all are in flight")
    made.add_argument("--step", type=float, default=0.02, help="seconds a token of the null engine")
    made.add_argument("--keep", type=Path, help="a folder for logs and figures, kept")
    arguments = made.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.keep or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        redis = RedisServer.start(root / "redis")
        scene = Scene(root, arguments, redis)
        try:
            result = asyncio.run(measure(scene))
        finally:
            for process in reversed(scene.processes):
                process.end()
            redis.kill()
    show(result)
    report.write("rollout", {"load": os.getloadavg()[0], "limits": LIMITS, "goals_ms": GOALS_MS, **result})


if __name__ == "__main__":
    main()
