"""Nothing in the loop over micro-batches asks for a number on the device: on a GPU the host would wait for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from areal_trainer.algorithms.advantages import AdvantageOptions, estimate_advantages
from areal_trainer.algorithms.statistics import LossStatistics
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine import attention as segments
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.objective import ObjectiveOptions, PolicyObjective
from areal_trainer.recording import TrainedTokensBuffer
from support.trainer_parts import batch
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.is_nonzero.default}


class NoWaits(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in WAITS:
            raise AssertionError(f"{func} makes the host wait")
        return func(*args, **(kwargs or {}))


def test_the_mode_finds_a_wait():
    with NoWaits(), pytest.raises(AssertionError, match="makes the host wait"):
        torch.ones(2).sum().item()


@pytest.mark.parametrize("attention", ["dense", "varlen"])
@pytest.mark.parametrize("shared", [False, True])
def test_no_micro_batch_makes_the_host_wait(monkeypatch, model_path, ranks, attention, shared):
    # the CPU's stand-in for the kernel reads where segments begin
    monkeypatch.setattr(segments, "_one_by_one", lambda query, key, value, *_: query + 0 * value.sum())
    tokens = batch(4, 4, shared=shared)
    micros = rank_micro_batches(
        tokens, np.arange(16), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64, pack_length=64
    )
    assert len(micros) > 1
    engine = PolicyEngine(model_path, ModelOptions(attention=attention, recompute="selective"), ranks)
    engine.accumulate(micros, lambda logprobs, entropy, micro: -logprobs.sum())
    with NoWaits():
        engine.accumulate(micros, lambda logprobs, entropy, micro: -logprobs.sum())
        engine.logprobs(micros, tokens.tokens)


def test_no_loss_makes_the_host_wait(model_path, ranks):
    tokens = batch(4, 4)
    advantages = estimate_advantages(tokens, AdvantageOptions())
    micros = rank_micro_batches(
        tokens, np.arange(16), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64, pack_length=64
    )
    assert len(micros) > 1
    engine, device = PolicyEngine(model_path, ModelOptions(), ranks), torch.device("cpu")
    objective = PolicyObjective(tokens, advantages, ObjectiveOptions(), step=0, device=device)
    loss = objective.of(tokens.trainable(), LossStatistics(device), TrainedTokensBuffer(tokens.tokens, device))
    engine.accumulate(micros, loss)
    with NoWaits():
        engine.accumulate(micros, loss)
