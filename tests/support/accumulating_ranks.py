"""Two forked gloo ranks that accumulate micro-batches as large models do: told that more follow, and as it is.

A program: a JSON line a rank.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers.models.qwen3.modeling_qwen3  # noqa: F401
from areal_trainer.data.micro_batches import MicroBatch, rank_micro_batches
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.optimizer import local
from support.forked_ranks import ended, forked, joined, words
from support.trainer_parts import batch
from torch import Tensor


def gradients(engine: PolicyEngine, micros: list[MicroBatch]) -> tuple[dict[str, Tensor], bool]:
    """By parameter; and whether a reduced gradient was still held before the second micro-batch."""
    waiting, context = [], engine._model._get_fsdp_state()._comm_ctx

    def loss(logprobs: Tensor, entropy: Tensor, micro: MicroBatch) -> Tensor:
        waiting.append(len(context.reduce_scatter_states) > 0)
        return (-logprobs.sum() + 0.1 * entropy.sum()) / 100

    engine.accumulate(micros, loss)
    found = {name: local(p.grad).clone() for name, p in engine._parameters.items() if p.grad is not None}
    for parameter in engine._parameters.values():
        parameter.grad = None
    return found, waiting[1]


def rank_of(rank: int, home: Path, model: Path) -> None:
    ranks = joined(rank, home / "store", 2)
    tokens = batch(6, 4, shared=True)
    micros = rank_micro_batches(
        tokens, np.arange(24), tokens.trainable(), rank=rank, world_size=2, micro_batch_tokens=32, pack_length=32
    )
    engine = PolicyEngine(model, ModelOptions(precision="bfloat16"), ranks)
    engine._always_reduce = True
    as_it_is, calls = engine._model.set_is_last_backward, iter(range(1, len(micros) + 1))
    engine._model.set_is_last_backward = lambda last: as_it_is(next(calls) == len(micros))
    before, held = gradients(engine, micros)
    engine._model.set_is_last_backward = as_it_is
    now, holds = gradients(engine, micros)
    equal = before.keys() == now.keys() and all(torch.equal(before[name], now[name]) for name in now)
    told = {"micros": len(micros), "gradients": len(now), "equal": equal, "waiting": [held, holds]}
    (home / f"{rank}.json").write_text(json.dumps(told))
    ranks.close()


def main() -> None:
    home, model = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    codes = ended([forked(rank_of, rank, home / "error", home, model) for rank in range(2)])
    assert codes == [0, 0], words(home / "error", 2)
    for rank in range(2):
        print((home / f"{rank}.json").read_text())


if __name__ == "__main__":
    main()
