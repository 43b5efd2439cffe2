"""The processes of `bench/rollout.py`: real controller, workers and agents, each with probes that tell what it costs.

`python rollout_roles.py ROLE given.json`. Each second the process writes its figures to the file that it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from areal.clients.generation import GenerationClient
from areal.gateway.session import SessionLimits
from areal.generation import agent as agent_module
from areal.generation.agent import AgentSettings, GenerationAgent
from areal.generation.engine_command import EngineStart, Launch
from areal.ledger.async_client import AsyncLedger
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.processes.role import collect_rarely
from areal.record.writer import RecordWriter
from areal.rollout.contract import wire as contract_wire
from areal.rollout.controller import service as controller_wire
from areal.rollout.controller.assemble import ControllerPaths, Parts, serve
from areal.rollout.controller.rows import PreparedRows
from areal.rollout.controller.settings import ControllerSettings
from areal.rollout.worker.episode_run import EpisodeSettings
from areal.rollout.worker.recording import EpisodeRecording, RecordLimits
from areal.rollout.worker.sessions import Sessions
from areal.rollout.worker.worker import Identity, Worker, WorkerTools
from areal.spec.serving import EmbeddedEngineBlock
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as rollout
from areal.values.generation import GenerationRequest, Sampling
from areal.workflow.base import Engine, RolloutWorkflow
from areal.workflow.episode import Episode, Sequence
from areal.workflow.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
PROBE_S = 0.02
log = logging.getLogger("bench")


@dataclass
class Figures:
    """What one process tells."""

    role: str
    pid: int = field(default_factory=os.getpid)
    lag_ms: list[float] = field(default_factory=list)
    busy_ms: list[float] = field(default_factory=list)  # CPU between two looks: bounds the lag of an own machine
    beats_ms: list[float] = field(default_factory=list)  # controller: age of a message without samples at its arrival
    data_ms: list[float] = field(default_factory=list)  # controller: of one with samples
    logs_ms: list[float] = field(default_factory=list)
    weights_at: dict[str, float] = field(default_factory=dict)  # agent: when a policy was first wanted
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)  # worker: by server and reason of their end
    open_requests: int = 0
    resubmitted: int = 0
    cpu_s: float = 0.0
    memory_mb: list[float] = field(default_factory=list)
    samples: int = 0

    def told(self) -> dict[str, Any]:
        """What is written: of times in milliseconds the median and the 99th percentile."""
        held = {name: half_and_p99(value) if name.endswith("_ms") else value for name, value in self.__dict__.items()}
        names = generation.EndReason.Name
        ends = {
            f"{server} {names(reason).removeprefix('END_REASON_')}": count
            for (server, reason), count in held.pop("attempts").items()
        }
        return {**held, "ends": ends}

    def clear(self) -> None:
        """Measure from now on."""
        self.lag_ms, self.busy_ms, self.beats_ms, self.data_ms, self.logs_ms = [], [], [], [], []


def half_and_p99(values: list[float]) -> list[float]:
    """The median and the 99th percentile."""
    return [float(found) for found in np.percentile(values, (50, 99))] if values else [float("nan")] * 2


async def probe(figures: Figures, path: Path) -> None:
    """Watch the loop's lag; write the figures each second. SIGUSR1 begins the measured time."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, figures.clear)
    process, wrote = psutil.Process(), time.monotonic()
    imports = sum(process.cpu_times()[:2])
    while True:
        due, used = time.monotonic() + PROBE_S, time.thread_time()
        await asyncio.sleep(PROBE_S)
        now = time.monotonic()
        figures.lag_ms.append(1000 * (now - due))
        figures.busy_ms.append(1000 * (time.thread_time() - used))
        if now - wrote >= 1.0:
            wrote = now
            log.info("measuring")
            figures.logs_ms.append(1000 * (time.monotonic() - now))
            figures.cpu_s = sum(process.cpu_times()[:2]) - imports
            figures.memory_mb.append(process.memory_info().rss / 1e6)
            fresh = path.with_suffix(".tmp")
            fresh.write_text(json.dumps(figures.told()))
            fresh.replace(path)


async def controller(given: dict[str, Any], figures: Figures, stop: asyncio.Event) -> None:
    """The real controller; arrivals of messages are timed."""
    worker_report, server_report = contract_wire.worker_report, controller_wire.server_report

    def timed_worker(message: rollout.WorkerMessage, *, first: bool) -> Any:
        age = 1000 * (time.monotonic() - message.beat.monotonic_s)
        (figures.data_ms if message.done else figures.beats_ms).append(age)
        figures.samples += len(message.done)
        return worker_report(message, first=first)

    def timed_server(message: rollout.ServerMessage) -> Any:
        figures.beats_ms.append(1000 * (time.monotonic() - message.beat.monotonic_s))
        return server_report(message)

    contract_wire.worker_report, controller_wire.server_report = timed_worker, timed_server
    root = Path(given["root"])
    paths = ControllerPaths(root / "fences", root / "journal.jsonl", root / "kept.json", root / "evaluations.jsonl")
    async with AsyncLedger(given["redis"], "bench", retry_for_s=1.0) as ledger:
        parts = Parts(
            job="bench",
            access=given["token"],
            settings=ControllerSettings(**given["settings"]),
            paths=paths,
            rows=PreparedRows(root / "train", None, seed=1),
            ledger=ledger,
            metrics=RoleMetrics("controller", "bench"),
            waits=WaitRegistry("controller"),
            progress=ProgressCounter(),
        )
        await serve(parts, given["port"], stop)


class NullWorkflow(RolloutWorkflow):
    """One answer, scored by nobody."""

    name = "null"

    async def arun_episode(self, engine: Engine, row: dict[str, Any]) -> Episode | None:
        """A prompt and its answer."""
        prompt = engine.prompt(row)
        result = await engine.agenerate(GenerationRequest(prompt.ids))
        return Episode([Sequence.of(prompt.ids, result, float(len(result.output_ids) % 2))])


class CountingClient(GenerationClient):
    """Tallies how attempts end, by server."""

    figures: Figures

    def open(self, *arguments: Any) -> Any:
        self.figures.open_requests += 1
        return super().open(*arguments)

    def _ended(self, generation_: Any, end: generation.GenerateEnd) -> None:
        how = (generation_.server_id, end.reason)
        super()._ended(generation_, end)
        self.figures.attempts[how] = self.figures.attempts.get(how, 0) + 1
        self.figures.open_requests -= generation_.outcome is not None
        self.figures.resubmitted = self.resubmissions_total


async def worker(given: dict[str, Any], figures: Figures, stop: asyncio.Event) -> None:
    """The real worker with a workflow that only generates."""
    tokenizer = Tokenizer.from_dir(given["model"])
    waits, progress = WaitRegistry(given["name"]), ProgressCounter()
    client = CountingClient(
        given["token"],
        owner=given["name"],
        vocab_size=tokenizer.vocab_size,
        eos_ids=tokenizer.eos_ids,
        waits=waits,
        decode=tokenizer.decode,
        on_tokens=progress.advance,
    )
    client.figures = figures
    async with AsyncLedger(given["redis"], "bench") as ledger:
        metrics = RoleMetrics("worker", "bench")
        writer = RecordWriter(Path(given["root"]), given["name"], metrics, keep_bytes=1 << 30)
        tools = WorkerTools(
            client=client,
            reward=None,
            ledger=ledger,
            tokenizer=tokenizer,
            recording=EpisodeRecording(writer, tokenizer, RecordLimits(1.0, 64 << 20, 64), given["name"]),
            waits=waits,
            progress=progress,
            metrics=metrics,
            sessions=Sessions(tokenizer, SessionLimits(256, 256, 16)),
        )
        tokens = given["tokens"]
        made = Worker(
            Identity(given["name"], f"{given['name']}.1", given["groups"], common.Digests()),
            tools,
            EpisodeSettings(1, Sampling(max_new_tokens=tokens), 1024, None, ""),
            NullWorkflow,
            given["controller"],
            given["token"],
            deadline_s=600.0,
            stall_s=30.0,
        )
        await made.run(stop)
        await client.close()


async def agent(given: dict[str, Any], figures: Figures, stop: asyncio.Event) -> None:
    """The real agent over a null engine."""

    def launch(engine: EmbeddedEngineBlock, start: EngineStart) -> Launch:
        argv = [sys.executable, str(HERE / "null_engine.py"), "--port", str(start.port)]
        argv += ["--weight-version", start.weight_version, "--max-running", str(engine.max_running_requests)]
        return Launch([*argv, "--step", str(given["step_s"]), "--interval", str(start.stream_interval)], {})

    agent_module.engine_command.launch = launch
    made = GenerationAgent(
        AgentSettings(
            server_id=given["name"],
            job="bench",
            run=given["controller"],
            token=given["token"],
            access=given["token"],
            incarnation=f"{given['name']}.{os.getpid()}",
            controller=given["controller"],
            model_path=Path(given["model"]),
            tokenizer_path=Path(given["model"]),
            engine=EmbeddedEngineBlock(max_running_requests=given["max_running"]),
            engine_port=given["engine_port"],
            stream_interval=8,
        )
    )
    want = made.core.want

    def timed_want(wanted: Any) -> None:
        figures.weights_at.setdefault(str(wanted.policy), time.monotonic())
        want(wanted)

    made.core.want = timed_want
    await made.start()
    await made.run(stop)


async def idle(given: dict[str, Any], figures: Figures, stop: asyncio.Event) -> None:
    """Nothing: its loop lags by what the machine's other load costs."""
    await stop.wait()


ROLES = {"controller": controller, "worker": worker, "agent": agent, "idle": idle}


async def main(role: str, given: dict[str, Any]) -> None:
    collect_rarely()
    figures = Figures(role)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    probing = asyncio.create_task(probe(figures, Path(given["figures"])))
    with contextlib.suppress(asyncio.CancelledError):
        await ROLES[role](given, figures, stop)
    probing.cancel()
    if os.environ.get("AREAL_BENCH_TYPES"):
        log.info("%s", Counter(type(item).__name__ for item in gc.get_objects()).most_common(12))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text())))
