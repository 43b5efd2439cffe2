"""What the trainer's benchmark on a GPU computes without one: useful operations, its cells, and that it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from areal.admit.memory.shape import ModelShape, shape_of
from areal_trainer.engine.group import RankGroup

BENCH = Path(__file__).resolve().parents[2] / "bench"
with pytest.MonkeyPatch.context() as patch:  # no longer: other modules there have names of rooms here
    patch.syspath_prepend(BENCH)
    import gpu_trainer
    import model_flops

TINY = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "tie_word_embeddings": False,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
}  # fmt: skip


def shape(config: dict[str, object]) -> ModelShape:
    found = shape_of(config)
    assert found is not None
    return found


@pytest.mark.component
def test_operations_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    length = 32
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY), attn_implementation="eager")
    with FlopCounterMode(display=False) as counted:
        model(torch.zeros(1, length, dtype=torch.long)).logits.sum().backward()
    tiny = shape(TINY)
    square = model_flops.step_flops(tiny, [length], length) - model_flops.step_flops(tiny, [1] * length, length)
    masked = 6 * tiny.layers * tiny.queries * length  # what the formula gives to documents of one token
    assert counted.get_total_flops() == pytest.approx(
        model_flops.step_flops(tiny, [length], length) + square + masked, rel=0.01
    ), "eager attention computes the whole square, twice what is causal"


def test_a_model_of_8b_needs_what_its_parameters_say():
    whole = shape({**gpu_trainer.QWEN3_8B_THIRD, "num_hidden_layers": 36})
    assert whole.parameters == pytest.approx(8.19e9, rel=0.001)
    assert model_flops.step_flops(whole, [1], 0) == pytest.approx(6 * 36 * whole.block_parameters, rel=0.001)
    assert model_flops.peak_of("NVIDIA H200", 1.0) == 989e12
    assert model_flops.peak_of("another", 7e14) == 7e14


def test_what_is_judged_is_measured():
    for quick in (True, False):
        measured = gpu_trainer.cells(quick=quick)
        assert gpu_trainer.JUDGED in measured
        assert len(set(measured)) == len(measured)


@pytest.mark.component
def test_a_cell_trains_a_step_and_counts_it(tmp_path):
    ranks = RankGroup()
    made = gpu_trainer.make_model(TINY, tmp_path / "model", ranks.device)
    cell = gpu_trainer.Cell("tiny", 64, "dense", "selective")
    found = gpu_trainer.measure(cell, tmp_path / "model", made, ranks, peak=1e12)
    limits = gpu_trainer.ceilings(ranks.device, size=64, copied=1 << 12)
    ranks.close()
    assert found.failure == ""
    assert found.tokens_per_s * found.step_s == pytest.approx(2 * 64)
    assert found.share == pytest.approx(model_flops.step_flops(made, [64, 64], 126) / found.step_s / 1e12)
    assert all(rate > 0 for rate in limits.values())


@pytest.mark.component
def test_without_a_gpu_it_says_so():
    done = subprocess.run(
        [sys.executable, str(BENCH / "gpu_trainer.py")],
        capture_output=True, text=True, timeout=120, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 64
    assert "needs a GPU" in done.stderr
