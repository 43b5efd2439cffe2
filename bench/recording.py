"""Recording benchmark: its share of the CPU time of one training step, for the quickstart's model and one of 135M.

Both sides of one step are run for real: workers hand over its samples, the trainer trains on them and hands over its
arrays. Counted is CPU time, which other load changes little: on the callers' threads, which hold a role up, and on the
writers' threads. The step's is that of the update alone: in a run waiting and publishing come to it.

    python bench/recording.py --model runs/digits-sft/model
    python bench/recording.py --model models/smollm2-135m --groups 4 --size 4 --answer 120 --micro 1024 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import report
from areal.observe.metrics import RoleMetrics
from areal.record.writer import RecordWriter
from areal.rollout.worker import recording
from areal.rollout.worker.recording import EpisodeRecording, RecordLimits
from areal.rollout.worker.runner import EpisodeResult, Key
from areal.spec.job import RLJob
from areal.v1 import common_pb2 as common
from areal.v1 import record_pb2 as record
from areal.values.generation import TokenSpan
from areal.workflow.episode import Episode, Sequence
from areal.workflow.tokenizer import Tokenizer
from areal_trainer.actor import Actor, ActorOptions
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.data.batch import TokenBatch, columns
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.optimizer import RateSchedule
from areal_trainer.options import advantage_options, objective_options
from areal_trainer.recording import StepRecorder, TrainedStep, TrainedTokensBuffer

GOAL = 0.005
BUDGET = 64 << 20


class TimedWriter(RecordWriter):
    """Knows its thread's CPU seconds at its end."""

    cpu_s = 0.0

    def _run(self) -> None:
        super()._run()
        self.cpu_s = time.thread_time()


class Clock:
    """CPU seconds spent in calls that are wrapped."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds += time.thread_time() - began

        return timed


@dataclass(frozen=True)
class Step:
    """One batch, as `Actor.update` takes it."""

    step: int
    tokens: TokenBatch
    max_steps: int = 1_000
    micro_batch_divisor: int = 1


@dataclass(frozen=True)
class Seconds:
    """CPU seconds of one step."""

    update: float
    trainer: float  # on the training thread
    worker: float  # on the worker's loop
    threads: float  # CPU of the writers


def episodes(options: argparse.Namespace, vocabulary: int, step: int) -> dict[tuple[int, int], Episode]:
    """The samples of a step: answers of half to the whole of `options.answer` tokens."""
    random = np.random.default_rng(step)
    made = {}
    for group in range(step * options.groups, (step + 1) * options.groups):
        for index in range(options.size):
            answer = int(random.integers(max(1, options.answer // 2), options.answer + 1))
            length = options.prompt + answer
            mask = (np.arange(length) >= options.prompt).astype("u1")
            sequence = Sequence(
                random.integers(0, vocabulary, length).astype("<i4"),
                np.where(mask, random.normal(-3, 0.3, length), 0).astype("<f4"),
                mask,
                (TokenSpan(options.prompt, length, f"{step}.f1", "generation-0"),),
                float(random.integers(0, 2)),
            )
            made[group, index] = Episode([sequence])
    return made


def actor(options: argparse.Namespace, work: Path) -> Actor:
    """The quickstart's algorithm on this model."""
    algorithm = {"name": "GRPO", "groupSize": options.size, "batchSize": options.groups, "maxSteps": 1_000}
    spec: dict[str, Any] = {"model": {"path": "m"}, "dataset": {"train": {"jsonl": "t"}}, "algorithm": algorithm}
    spec["rollout"] = {"sampling": {"maxNewTokens": options.answer}}
    head = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "bench"}}
    job = RLJob.model_validate({**head, "spec": spec}).spec
    engine = PolicyEngine(options.model, ModelOptions(), RankGroup())
    settings = ActorOptions(
        objective_options(job),
        advantage_options(job),
        RateSchedule(1e-5, 0, "constant"),
        micro_batch_tokens=options.micro,
        keep_tokens=True,
    )
    return Actor(engine, settings, Checkpointer(work / "checkpoints", 1, engine))


def measure(options: argparse.Namespace, work: Path) -> list[Seconds]:
    """`options.rounds` steps, after one that nobody counts."""
    tokenizer = Tokenizer.from_dir(options.model)
    trained = actor(options, work)
    clock = Clock()
    for name in ("__init__", "add", "reduced"):
        setattr(TrainedTokensBuffer, name, clock.around(getattr(TrainedTokensBuffer, name)))
    found = []
    for step in range(options.rounds + 1):
        metrics = RoleMetrics("bench", "bench")
        writers = [TimedWriter(work / name, name, metrics, keep_bytes=1 << 30) for name in ("worker", "trainer")]
        worker_s, stored = _work(options, tokenizer, writers[0], step, trained.engine.vocabulary)
        writers[0].close()
        messages = [(key, samples_of(raw)) for key, raw in stored.items()]
        batch = Step(step, columns([one for _, one in messages], trained.engine.vocabulary))
        clock.seconds = 0.0
        began = time.process_time()
        advantages = trained.advantages(batch.tokens)
        update = trained.update(batch, advantages)
        update_s = time.process_time() - began
        recorder = StepRecorder(
            writers[1], share=1.0, budget_bytes=BUDGET, worker_budget_bytes=BUDGET, pieces=lambda: tokenizer.piece
        )
        digests: dict[int, list[tuple[int, int]]] = {}
        for (group, index), raw in stored.items():
            digests.setdefault(group, []).append((index, recording.payload.digest(raw)))
        assert update.tokens is not None
        done = TrainedStep(step, 1, batch.tokens, advantages, update.tokens, digests, stored, {"train": 1.0})
        clock.around(recorder.step)(done)
        writers[1].close()
        found.append(Seconds(update_s, clock.seconds, worker_s, sum(writer.cpu_s for writer in writers)))
    return found[1:]


def samples_of(raw: bytes) -> common.Sample:
    """The message of a payload."""
    return recording.payload.decode(raw)


def _work(
    options: argparse.Namespace, tokenizer: Tokenizer, writer: RecordWriter, step: int, vocabulary: int
) -> tuple[float, dict[tuple[int, int], bytes]]:
    """Hand a worker's recording the samples of a step; seconds on its loop, and the payloads."""
    recording = EpisodeRecording(writer, tokenizer, RecordLimits(1.0, BUDGET, options.groups), "worker-0")
    clock, stored = Clock(), {}
    take = clock.around(recording.sampled)
    moments = [record.Moment(what=what, began=1.0, ended=2.0) for what in ("generate", "score")]
    for (group, index), episode in episodes(options, vocabulary, step).items():
        verdict = common.Verdict(score=episode.reward, status="right", method="exact")
        origin = recording.Origin(group, index, 1, 2, "worker-0", common.Digests(), verdict)
        raw = stored[group, index] = recording.build(episode, origin).payload
        take(Key(group, index), EpisodeResult(episode, verdict, moments=moments), raw)
    return clock.seconds, stored


def main() -> None:
    """Measure, print, write `bench/results/recording-<model>.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("runs/digits-sft/model"))
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=7)
    parser.add_argument("--answer", type=int, default=8)
    parser.add_argument("--micro", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = measure(options, Path(work))
    middle = {name: statistics.median(getattr(one, name) for one in found) for name in vars(Seconds)["__match_args__"]}
    held = (middle["trainer"] + middle["worker"]) / middle["update"]
    cpu = middle["threads"] / middle["update"]
    tokens = options.groups * options.size * (options.prompt + 0.75 * options.answer)
    print(f"\nrecording, {options.model.name}, about {tokens:,.0f} tokens a step  (load {os.getloadavg()[0]:.1f})")
    for name, seconds in middle.items():
        print(f"  {name:<10} {1000 * seconds:>10.2f} ms of CPU")
    print(f"  callers are held up for {held:.3%} of the update (goal {GOAL:.1%})")
    print(f"  writers' threads use CPU of {cpu:.3%} of the update, beside it")
    shown = {"model": options.model.name, "tokens": tokens, "load": os.getloadavg()[0], "seconds": middle}
    report.write(f"recording-{options.model.name}", {**shown, "held": held, "cpu": cpu, "goal": GOAL})


if __name__ == "__main__":
    main()
