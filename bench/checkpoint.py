"""Benchmark of a checkpoint: how long it stops the trainer, and how long it is written for, AdamW's moments included.

Beside limits of the same run: a copy in memory for the stop, a plain durable write of as many bytes for writing. One
process, nothing computes beside it. The first checkpoint waits until its buffers in host memory are made.

    python examples/smollm2_model.py models/smollm2-135m
    python bench/checkpoint.py [--model models/smollm2-135m] [--checkpoints 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.checkpoint.saving import RunPosition
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.optimizer import local

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Figure, report


def plain_write(path: Path, tensors: list[torch.Tensor]) -> float:
    """Seconds for a durable write of the same bytes without anything else."""
    began = time.perf_counter()
    with path.open("wb") as file:
        for tensor in tensors:
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
    taken = time.perf_counter() - began
    path.unlink()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("models/smollm2-135m"))
    parser.add_argument("--checkpoints", type=int, default=3, help="how many; the first one is not counted")
    arguments = parser.parse_args()
    ranks = RankGroup()
    engine = PolicyEngine(arguments.model, ModelOptions(precision="bfloat16"), ranks)
    held = [local(tensor) for tensor in engine.state().values()]
    size = sum(tensor.nbytes for tensor in held)
    stops, writes = [], []
    with tempfile.TemporaryDirectory() as home:
        checkpointer = Checkpointer(Path(home, "checkpoints"), 1, engine)
        for step in range(1, arguments.checkpoints + 1):
            began = time.perf_counter()
            saving = checkpointer.save(RunPosition(step, 1), lambda: None)
            stops.append(time.perf_counter() - began)
            writes.append(saving.wait().wall_s)
        checkpointer.close()
        room = [torch.empty_like(tensor) for tensor in held]
        for _ in range(2):  # the first touches the pages
            began = time.perf_counter()
            for into, tensor in zip(room, held, strict=True):
                into.copy_(tensor)
            copy = time.perf_counter() - began
        disk = plain_write(Path(home, "raw"), held)
    ranks.close()
    stop, write = statistics.median(stops[1:]), statistics.median(writes[1:])
    megabytes = size / 1e6
    figures = [
        Figure("stop of training (the copy)", "MB/s", megabytes / stop, megabytes / copy, "copy"),
        Figure("write, hash and seal", "MB/s", megabytes / write, megabytes / disk, "plain write"),
    ]
    report("checkpoint", figures, megabytes=megabytes, stops_s=stops, writes_s=writes)
    print(f"  {megabytes:,.0f} MB stop training for {stop:.2f} s, {stop / write:.1%} of the {write:.1f} s until sealed")
    print(f"  the first, right after the start, waited for its buffers: {stops[0]:.2f} s, {stops[0] / writes[0]:.1%}")


if __name__ == "__main__":
    main()
