"""Benchmark of engines: tokens a second of the embedded one, Hugging Face `generate` and stock SGLang on CPU.

All three sample the same number of tokens after the same prompts, with each token's log-probability, in one run, turn
by turn; one thread computes a model in each. The engines are servers of their own and are asked by HTTP, Hugging Face
is called here. CPU seconds are those of all processes of a server.

    python bench/engine.py [--rows 32] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import psutil
import torch
from areal_trainer.init_model import init_model
from report import Figure, report
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.engine_server import EngineServer  # noqa: E402

PROMPT = 16  # tokens
GOALS = {  # how many times the others' rate the embedded engine should have
    "quickstart": {"Hugging Face": 2.0, "SGLang": 4.0},
    "135M": {"Hugging Face": 0.9, "SGLang": 0.9},
}


@dataclass(frozen=True)
class Case:
    """A model and how much of it is sampled."""

    name: str
    path: Path
    dtype: str
    new: int  # tokens a row


@dataclass(frozen=True)
class Turn:
    """What one engine took for all rows of a case."""

    wall_s: float
    cpu_s: float


Sampler = Callable[[list[list[int]]], Turn]


def of_server(server: EngineServer, new: int) -> Sampler:
    """A batched call. The server's own command counts, and what it has started."""
    family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]

    def cpu() -> float:
        times = [process.cpu_times() for process in family]
        return sum(one.user + one.system for one in times)

    def sample(prompts: list[list[int]]) -> Turn:
        before, began = cpu(), time.perf_counter()
        answers = server.generate(prompts, {"max_new_tokens": new, "temperature": 1.0, "ignore_eos": True})
        taken = Turn(time.perf_counter() - began, cpu() - before)
        check([answer["output_ids"] for answer in answers], new)
        return taken

    return sample


def of_hugging_face(case: Case) -> Sampler:
    """`generate` on one padded batch, and the log-probabilities of what it sampled."""
    model = AutoModelForCausalLM.from_pretrained(case.path, dtype=getattr(torch, case.dtype)).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def sample(prompts: list[list[int]]) -> Turn:
        before, began = time.process_time(), time.perf_counter()
        with torch.inference_mode():
            made = model.generate(
                torch.tensor(prompts), attention_mask=torch.ones(len(prompts), PROMPT, dtype=torch.long),
                do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=case.new,
                output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
            ids = made.sequences[:, PROMPT:]
            steps = [logits.float().log_softmax(-1) for logits in made.logits]
            scores = [table.gather(-1, ids[:, at, None]) for at, table in enumerate(steps)]
        taken = Turn(time.perf_counter() - began, time.process_time() - before)
        check(ids.tolist(), len(scores))
        return taken

    return sample


def check(made: list[list[int]], new: int) -> None:
    """Raises when an engine made fewer tokens than the others."""
    if {len(ids) for ids in made} != {new}:
        raise RuntimeError(f"{sorted({len(ids) for ids in made})} tokens instead of {new}")


def measure(case: Case, rows: int, rounds: int) -> dict[str, list[Turn]]:
    """Turns by engine; a first one of each is not counted."""
    random = np.random.default_rng(0)
    prompts = random.integers(3, 100, (rounds + 1, rows, PROMPT)).tolist()
    flags = ("--dtype", case.dtype, "--max-running-requests", str(rows))
    servers = {kind: EngineServer(kind, case.path, *flags) for kind in ("embedded", "sglang")}
    try:
        samplers = {"Hugging Face": of_hugging_face(case)}
        for kind, server in servers.items():
            samplers["SGLang" if kind == "sglang" else kind] = of_server(server.start(), case.new)
        turns: dict[str, list[Turn]] = {name: [] for name in samplers}
        for number, some in enumerate(prompts):
            for name, sample in samplers.items():
                turn = sample(some)
                if number:
                    turns[name].append(turn)
    finally:
        for server in servers.values():
            server.stop()
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=32, help="sequences decoded at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--real-model", type=Path, default=HERE.parent / "models/smollm2-135m")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures: list[Figure] = []
    more: dict[str, object] = {"rows": arguments.rows, "goals": GOALS}
    misses: list[str] = []
    with tempfile.TemporaryDirectory() as home:
        cases = [
            Case("quickstart", init_model(Path(home, "new-1m")).path, "float32", 64),
            Case("135M", arguments.real_model, "bfloat16", 24),
        ]
        for case in cases:
            turns = measure(case, arguments.rows, arguments.rounds)
            made = arguments.rows * case.new
            wall = {name: made / statistics.median(turn.wall_s for turn in taken) for name, taken in turns.items()}
            cpu = {name: made / statistics.median(turn.cpu_s for turn in taken) for name, taken in turns.items()}
            more[case.name] = {"tokens_a_second": wall, "tokens_a_cpu_second": cpu, "turns": turns}
            for other, goal in GOALS[case.name].items():
                figures.append(Figure(f"{case.name}, {case.dtype}", "tokens/s", wall["embedded"], wall[other], other))
                figures.append(Figure("  a CPU second", "tokens", cpu["embedded"], cpu[other], other))
                if wall["embedded"] < goal * wall[other]:
                    misses.append(
                        f"{case.name}: {wall['embedded'] / wall[other]:.2f} times {other}, the goal is {goal:g}"
                    )
    report("engine", figures, misses=misses, **more)
    for miss in misses:
        print(f"  missed: {miss}")


if __name__ == "__main__":
    main()
