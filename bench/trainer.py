"""Benchmark of the trainer: trained tokens a second of one GRPO step beside TRL's GRPOTrainer.

Both train the same rows (prompts, answers, advantages of the same kind) with the same start model, precision and number
of threads, turn by turn in one run; nothing is sampled. A step is everything from the rows to the new weights. TRL has
an environment of its own, `.cache/trl`, which is made here; UV_TORCH_BACKEND=cpu takes PyTorch's build for CPUs where
its index can be reached. CPU seconds are the trainers' own.

    python bench/trainer.py [--threads 1] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from areal.spec.job import RLJob
from areal_trainer.actor import Actor, ActorOptions
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.data.batch import TokenBatch
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.optimizer import RateSchedule
from areal_trainer.init_model import init_model
from areal_trainer.options import advantage_options, objective_options
from report import Figure, report

ROOT = Path(__file__).resolve().parents[1]
TRL = "trl==1.16.0"
GOAL = 1.5


@dataclass(frozen=True)
class Case:
    """A model and the shape of one step's rows."""

    name: str
    model: Path
    precision: Literal["float32", "bfloat16"]
    groups: int
    size: int  # answers to a prompt
    prompt: int  # tokens
    answer: int  # tokens, at most; half of it at least
    micro: int = 8192  # tokens of a micro-batch


@dataclass(frozen=True)
class Rows:
    """One step's rows. Arrays are [rows, tokens] or [rows]."""

    prompts: np.ndarray
    answers: np.ndarray
    lengths: np.ndarray
    rewards: np.ndarray

    @property
    def tokens(self) -> int:
        """Tokens that are trained."""
        return int(self.lengths.sum())


@dataclass(frozen=True)
class Turn:
    """What one step took."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Batch:
    """As `Actor.update` takes it."""

    tokens: TokenBatch
    step: int = 0
    max_steps: int = 1_000
    micro_batch_divisor: int = 1


def rows_of(case: Case) -> Rows:
    """Random tokens, as many as the case says; each group has both rewards."""
    random = np.random.default_rng(0)
    count = case.groups * case.size
    prompts = np.repeat(random.integers(3, 100, (case.groups, case.prompt)), case.size, axis=0)
    lengths = random.integers(max(1, case.answer // 2), case.answer + 1, count)
    return Rows(prompts, random.integers(3, 100, (count, case.answer)), lengths, np.arange(count) % 2 * 1.0)


def batch_of(rows: Rows, size: int) -> TokenBatch:
    """The rows as the trainer gets them from the ledger."""
    count, prompt = len(rows.prompts), rows.prompts.shape[1]
    pieces = [np.concatenate([rows.prompts[row], rows.answers[row, : rows.lengths[row]]]) for row in range(count)]
    mask = np.concatenate([np.arange(len(piece)) >= prompt for piece in pieces])
    return TokenBatch(
        token_ids=np.concatenate(pieces).astype(np.int64),
        behaviour_logprobs=np.where(mask, -3.0, 0.0).astype(np.float32),
        loss_mask=mask,
        versions=np.where(mask, 0, -1).astype(np.int64),
        offsets=np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64),
        group_ids=np.repeat(np.arange(count // size), size).astype(np.int64),
        sample_indices=np.tile(np.arange(size), count // size).astype(np.int64),
        rewards=rows.rewards,
        truncated=np.zeros(count, np.bool_),
    )


class Ours:
    """This project's trainer, one rank, in this process."""

    def __init__(self, case: Case, rows: Rows, home: Path) -> None:
        algorithm = {"name": "GRPO", "groupSize": case.size, "batchSize": case.groups, "maxSteps": 1_000}
        spec: dict[str, Any] = {"model": {"path": "m"}, "dataset": {"train": {"jsonl": "t"}}, "algorithm": algorithm}
        spec["rollout"] = {"sampling": {"maxNewTokens": case.answer}}
        head = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "bench"}}
        job = RLJob.model_validate({**head, "spec": spec}).spec
        self._ranks = RankGroup()
        engine = PolicyEngine(case.model, ModelOptions(precision=case.precision), self._ranks)
        options = ActorOptions(
            objective_options(job), advantage_options(job), RateSchedule(1e-6, 0, "constant"),
            micro_batch_tokens=case.micro,
        )  # fmt: skip
        self._actor = Actor(engine, options, Checkpointer(home / "checkpoints", 1, engine))
        self._tokens = batch_of(rows, case.size)

    def step(self) -> Turn:
        began, cpu = time.perf_counter(), time.process_time()
        advantages = self._actor.advantages(self._tokens)
        figures = self._actor.update(Batch(self._tokens), advantages)
        taken = Turn(time.perf_counter() - began, time.process_time() - cpu)
        if not figures.finite or figures.loss.tokens != int(self._tokens.loss_mask.sum()):
            raise RuntimeError("not every token was trained")
        return taken

    def close(self) -> None:
        self._ranks.close()


class Peer:
    """TRL's trainer, a process of its own."""

    def __init__(self, case: Case, rows: Rows, home: Path, threads: int, steps: int) -> None:
        given = home / "rows.npz"
        answered = np.arange(rows.answers.shape[1]) < rows.lengths[:, None]
        sign = np.where(rows.rewards > 0, 1.0, -1.0).astype(np.float32)
        np.savez(
            given, prompt_ids=rows.prompts, prompt_mask=np.ones_like(rows.prompts), completion_ids=rows.answers,
            completion_mask=answered.astype(np.int64), advantages=sign,
        )  # fmt: skip
        told = {
            "rows": str(given), "model": str(case.model), "precision": case.precision, "size": case.size,
            "threads": threads, "steps": steps, "home": str(home / "trl"),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [str(environment()), str(ROOT / "bench/trainer_trl.py"), json.dumps(told)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)},
        )  # fmt: skip

    def step(self) -> Turn:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"TRL's trainer ended with {self._process.wait()}")
        return Turn(**json.loads(line))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def environment() -> Path:
    """The Python that has TRL, beside the torch and transformers of this project's versions; made once."""
    home = ROOT / ".cache/trl"
    python, ready = home / "bin/python", home / ".ready"
    if not ready.is_file() or ready.read_text() != TRL:
        uv = shutil.which("uv") or str(ROOT / ".cache/uv/bin/uv")
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([uv, "venv", "-q", str(home)], check=True)
        subprocess.run(
            [uv, "pip", "install", "-q", "-p", str(python), "-c", "constraints.txt", TRL], cwd=ROOT, check=True
        )
        ready.write_text(TRL)
    return python


def measure(case: Case, threads: int, rounds: int) -> tuple[Rows, dict[str, list[Turn]]]:
    """Turns by trainer; a first one of each is not counted."""
    rows = rows_of(case)
    turns: dict[str, list[Turn]] = {"areal": [], "TRL": []}
    with tempfile.TemporaryDirectory() as home:
        peer = Peer(case, rows, Path(home), threads, rounds + 1)
        try:
            ours = Ours(case, rows, Path(home))
            for number in range(rounds + 1):
                for name, trainer in (("areal", ours), ("TRL", peer)):
                    turn = trainer.step()
                    if number:
                        turns[name].append(turn)
            ours.close()
        finally:
            peer.close()
    return rows, turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--real-model", type=Path, default=ROOT / "models/smollm2-135m")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    figures: list[Figure] = []
    misses: list[str] = []
    more: dict[str, object] = {"threads": arguments.threads, "trl": TRL, "goal": GOAL}
    with tempfile.TemporaryDirectory() as home:
        tiny, real = init_model(Path(home, "new-1m")).path, arguments.real_model
        cases = [
            Case("quickstart, 64 x 8 answers of 4-8", tiny, "float32", 64, 8, prompt=7, answer=8),
            Case("135M, 4 x 4 answers of 12-24 after 48", real, "bfloat16", 4, 4, prompt=48, answer=24, micro=1024),
            Case("135M, 4 x 4 answers of 48-96 after 16", real, "bfloat16", 4, 4, prompt=16, answer=96, micro=1024),
        ]
        for case in cases:
            rows, turns = measure(case, arguments.threads, arguments.rounds)
            wall = {name: rows.tokens / statistics.median(one.wall_s for one in taken) for name, taken in turns.items()}
            cpu = {name: rows.tokens / statistics.median(one.cpu_s for one in taken) for name, taken in turns.items()}
            more[case.name] = {"tokens": rows.tokens, "precision": case.precision, "turns": turns}
            figures.append(Figure(case.name, "tokens/s", wall["areal"], wall["TRL"], "TRL"))
            figures.append(Figure("  a CPU second", "tokens", cpu["areal"], cpu["TRL"], "TRL"))
            if wall["areal"] < GOAL * wall["TRL"]:
                misses.append(f"{case.name}: {wall['areal'] / wall['TRL']:.2f} times TRL, the goal is {GOAL:g}")
    report("trainer", figures, misses=misses, **more)
    for miss in misses:
        print(f"  missed: {miss}")


if __name__ == "__main__":
    main()
