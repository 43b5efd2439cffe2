"""Two forked gloo ranks that train and save, one of which may die at a labelled point. A program: a JSON line a case.

Forked after torch is imported, so that a case takes a fraction of a second.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

import numpy as np
import transformers.models.qwen3.modeling_qwen3  # noqa: F401
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.checkpoint.saving import RunPosition
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from support.forked_ranks import ended, forked, joined, words
from support.trainer_parts import batch

LIMIT = 20_000  # bytes: less than a rank's part of the tiny model


def train(engine: PolicyEngine, step: int) -> float:
    """One update; the gradient norm, equal on all ranks."""
    tokens = batch(3, 4, seed=step)
    ranks = engine.ranks
    micros = rank_micro_batches(
        tokens, np.arange(12), tokens.trainable(), rank=ranks.rank, world_size=ranks.world_size,
        micro_batch_tokens=64, pack_length=None,
    )  # fmt: skip
    engine.accumulate(micros, lambda logprobs, entropy, micro: -logprobs.sum() / 50)
    return engine.optimizer.step(1e-2)


def save(rank: int, store: Path, model: Path, directory: Path, victim: int, point: str) -> None:
    """A checkpoint of step 1, whole, then one of step 2 during which the victim may die while both train step 3."""
    engine = PolicyEngine(model, ModelOptions(), joined(rank, store, 2))
    armed = False

    def at(here: str) -> None:
        if armed and rank == victim and here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpointer = Checkpointer(directory, 9, engine, at=at)
    train(engine, 0)
    checkpointer.save(RunPosition(1, 1), lambda: None).wait()
    train(engine, 1)
    armed = True
    if rank == victim and point in ("disk full", "mid-write"):
        if point == "mid-write":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel ends the process in the middle of a write
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
    saving = checkpointer.save(RunPosition(2, 1), lambda: None)
    train(engine, 2)
    saving.wait()


def resume(rank: int, store: Path, model: Path, directory: Path, world_size: int) -> None:
    """Go on from the newest checkpoint; rank 0 prints its step and the gradient norm of the next one."""
    engine = PolicyEngine(model, ModelOptions(), joined(rank, store, world_size))
    checkpointer = Checkpointer(directory, 9, engine)
    found = checkpointer.newest([])
    assert found is not None
    checkpointer.load(found)
    norm = train(engine, found.record.step)
    if rank == 0:
        (directory / "resumed.json").write_text(json.dumps([found.record.step, norm]))


def case(home: Path, model: Path, victim: int, point: str) -> dict[str, object]:
    """What is left after both ranks have ended, and where as many, or one, go on from it."""
    directory = home / "checkpoints"
    home.mkdir(parents=True)
    errors = home / "error"
    codes = ended([forked(save, rank, errors, home / "store", model, directory, victim, point) for rank in range(2)])
    said = words(errors, 2)
    resumed = []
    for world_size in (1, 2) if point in ("sealed", "nowhere") else (1,):
        store = home / f"store{world_size}"
        again = ended([forked(resume, rank, errors, store, model, directory, world_size) for rank in range(world_size)])
        assert not any(again), again
        resumed.append(json.loads((directory / "resumed.json").read_text()))
    return {"codes": codes, "errors": said, "resumed": resumed, "left": sorted(os.listdir(directory))}


def main() -> None:
    home, model = Path(sys.argv[1]), Path(sys.argv[2])
    for number, (victim, point) in enumerate(json.loads(sys.argv[3])):
        print(json.dumps(case(home / f"{number}", model, victim, point)), flush=True)


if __name__ == "__main__":
    main()
