"""CPU offload of frozen models: nothing of them on the device between uses, and the same bits when they are asked."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from areal.errors import ExitCode
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.offload import OffloadedParameters
from areal_trainer.engine.optimizer import local
from areal_trainer.frozen import placed
from support.trainer_parts import batch


def micros(tokens):
    return rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64,
        pack_length=32,
    )  # fmt: skip


def device_bytes(engine: PolicyEngine) -> int:
    storages = [local(parameter.detach()).untyped_storage() for parameter in engine.parameters()]
    return sum({storage._cdata: storage.size() for storage in storages}.values())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_offloaded_model_says_the_same_bits_and_holds_nothing_between(model_path, ranks, precision):
    tokens = batch(3, 4)
    engine = PolicyEngine(model_path, ModelOptions(precision=precision), ranks)
    there, before = device_bytes(engine), placed(engine, "same")(micros(tokens), tokens.tokens)
    ask = placed(engine, "offloaded")
    for _ in range(3):
        assert device_bytes(engine) == 0 < there
        assert torch.equal(ask(micros(tokens), tokens.tokens), before)
    assert device_bytes(engine) == 0


def test_the_weights_are_there_only_inside_and_leave_after_an_error(model_path, ranks):
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    there = device_bytes(engine)
    values = [local(parameter.detach()).clone() for parameter in engine.parameters()]
    weights = OffloadedParameters(engine.parameters())
    with weights.on_device():
        assert device_bytes(engine) == there
        for parameter, value in zip(engine.parameters(), values, strict=True):
            assert torch.equal(local(parameter.detach()), value)
    with pytest.raises(ValueError, match="a pass fails"), weights.on_device():
        raise ValueError("a pass fails")
    assert device_bytes(engine) == 0


@pytest.mark.component
@pytest.mark.timeout(300)
def test_a_run_with_an_offloaded_reference_has_the_losses_of_one_beside_the_policy_to_the_bit(make_world):
    rows = {}
    for placement in ("same", "offloaded"):
        kl = {"coefficient": 0.1, "placement": placement}
        world = make_world(placement, algorithm={"maxSteps": 3, "kl": kl}, optimizer={"learningRate": 3e-3})
        world.fill(range(9), staleness=9)
        assert world.train() == ExitCode.DONE
        world.redis.flush()
        lines = (world.root / "metrics.jsonl").read_text().splitlines()
        rows[placement] = [[json.loads(line)[name] for name in ("loss", "grad_norm", "reference_kl")] for line in lines]
    assert rows["offloaded"] == rows["same"]
    assert rows["same"][2][2] > 1e-6, "the policy has left the reference"
