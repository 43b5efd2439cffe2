"""Adapters of families whose files name or hold layers otherwise: peft computes the same, and a merged export does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from areal.spec.model_families import VISION
from areal.weights.adapter import AdapterConfig
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.model import empty_model
from areal_trainer.publish.exporter import merge
from peft import PeftModel
from safetensors.torch import load_file
from support.family_cells import ALL_LINEAR, made
from support.lora_parts import exported, micros_of, scores, train
from support.trainer_parts import batch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

pytestmark = pytest.mark.component

FIRST = ("qwen2_5_vl", "qwen3_moe")  # in each landing
MORE = ("deepseek_v3", "glm4_moe", "lfm2_moe", "mixtral", "nemotron_h", "qwen2_vl", "qwen3_next", "qwen3_vl")


def layers(path: Path) -> tuple[str, ...]:
    """The default's linear layers that a model has."""
    named = empty_model(path).lm.named_modules()
    found = {name.rpartition(".")[2] for name, layer in named if isinstance(layer, nn.Linear)}
    experts = {name.split(".")[-2] for name in load_file(path / "model.safetensors") if ".experts." in name}
    return tuple(name for name in ALL_LINEAR if name in found - experts)


@pytest.mark.parametrize(
    "family", [*FIRST, *(pytest.param(name, marks=pytest.mark.nightly) for name in MORE)]
)  # fmt: skip
def test_peft_and_a_merged_export_score_as_the_trainer(tmp_path, ranks, family):
    base = made(tmp_path / "base", family)
    config = AdapterConfig(rank=3, alpha=12.0, targets=layers(base))
    engine, tokens = PolicyEngine(base, ModelOptions(adapter=config), ranks), batch(2, 4)
    fresh = engine.logprobs(micros_of(tokens), tokens.tokens).clone()
    for seed in range(2):
        assert train(engine, seed, rate=3e-2) > 0
    ours = engine.logprobs(micros_of(tokens), tokens.tokens)
    assert float((ours - fresh).abs().max()) > 1e-2, "it has learned something"

    adapter = exported(engine, tmp_path / "adapter")
    merge(base, base, adapter, tmp_path / "merged")
    assert load_file(tmp_path / "merged/model.safetensors").keys() == load_file(base / "model.safetensors").keys()
    merged = PolicyEngine(tmp_path / "merged", ModelOptions(), ranks).logprobs(micros_of(tokens), tokens.tokens)
    torch.testing.assert_close(merged, ours, atol=1e-4, rtol=1e-4)

    kind = AutoModelForImageTextToText if family in VISION else AutoModelForCausalLM
    theirs = PeftModel.from_pretrained(kind.from_pretrained(base, dtype=torch.float32).eval(), adapter)
    taken = [name for name, tensor in theirs.named_parameters() if ".lora_B." in name and tensor.abs().max() > 0]
    assert len(taken) == sum(".lora_B." in name for name in load_file(adapter / "adapter_model.safetensors"))
    wanted = torch.from_numpy(tokens.trainable())
    for (begin, end), score in zip(
        zip(tokens.offsets[:-1].tolist(), tokens.offsets[1:].tolist(), strict=True), scores(theirs, tokens), strict=True
    ):
        chosen = wanted[begin + 1 : end]
        torch.testing.assert_close(ours[begin + 1 : end][chosen], score[chosen], atol=1e-4, rtol=1e-4)
