"""Loading by slices: the same model as Hugging Face loads, and no rank holds more than its share of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from areal.errors import DataError
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from safetensors.torch import load_file, save_file
from support.forked_ranks import program
from support.trainer_parts import whole_model
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

TESTS = Path(__file__).parents[1]
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "pad_token_id": 0, "head_dim": 8,
}  # fmt: skip
FAMILIES = [
    "gemma", "gemma3_text", "glm4", "granite", "llama", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3",
    "smollm3", "starcoder2",
]  # fmt: skip


def saved(path: Path, family: str, *, tied: bool, dtype=torch.float32, **changes) -> Path:
    torch.manual_seed(1)
    config = AutoConfig.for_model(family, **{**SIZES, **changes}, tie_word_embeddings=tied)
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(path, max_shard_size="20KB")
    return path


@pytest.mark.parametrize(("family", "tied"), [(name, place % 2 == 0) for place, name in enumerate(FAMILIES)])
def test_every_tensor_and_buffer_is_what_hugging_face_loads(tmp_path, ranks, family, tied):
    path = saved(tmp_path, family, tied=tied, dtype=torch.bfloat16)
    assert len(list(path.glob("*.safetensors"))) > 1
    ours, whole = PolicyEngine(path, ModelOptions(), ranks)._model.lm, whole_model(path)
    plain = dict(whole.named_parameters())
    assert {name: p.dtype for name, p in ours.named_parameters()} == dict.fromkeys(plain, torch.float32)
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter.full_tensor(), plain[name]), name
    buffers = dict(whole.named_buffers())
    assert dict(ours.named_buffers()).keys() == buffers.keys()
    for name, buffer in ours.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    assert (ours.get_output_embeddings().weight is ours.get_input_embeddings().weight) == tied


def test_rotary_frequencies_of_long_contexts_are_the_configurations(tmp_path, ranks):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 64, "rope_theta": 10000.0}
    path = saved(tmp_path, "llama", tied=True, rope_parameters=scaling)
    ours = PolicyEngine(path, ModelOptions(), ranks)._model.lm.model.rotary_emb
    assert torch.equal(ours.inv_freq, whole_model(path).model.rotary_emb.inv_freq)


def change(path: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Replace a tensor in the file that has it, or take it out."""
    for file in path.glob("*.safetensors"):
        tensors = load_file(file)
        if name in tensors:
            del tensors[name]
            save_file(tensors if tensor is None else {**tensors, name: tensor}, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("lm_head.weight", None, "lacks 1 tensors, such as lm_head.weight"),
        ("model.norm.weight", torch.ones(31), r"is F32 \[31\], its configuration says a float \[32\]"),
        ("model.norm.weight", torch.ones(32, dtype=torch.int8), r"is I8 \[32\]"),
    ],
)
def test_what_is_missing_or_of_another_shape_is_named(tmp_path, ranks, name, tensor, said):
    path = saved(tmp_path, "llama", tied=False)
    change(path, name, tensor)
    with pytest.raises(DataError, match=said):
        PolicyEngine(path, ModelOptions(), ranks)


def test_a_directory_without_safetensors_is_the_datas_fault(tmp_path, ranks):
    LlamaConfig(**SIZES).save_pretrained(tmp_path)
    with pytest.raises(DataError, match="safetensors"):
        PolicyEngine(tmp_path, ModelOptions(), ranks)


@pytest.mark.component
def test_two_ranks_hold_a_shard_each_while_they_load(tmp_path):
    """Whole loading held the model twice over: four shards."""
    sizes = {"vocab_size": 4096, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "head_dim": 128}
    path = saved(tmp_path / "model", "llama", tied=True, dtype=torch.bfloat16, **sizes)
    layer = 4 * (2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 2048)
    lines = program("loading_ranks", path, tmp_path / "store", timeout_s=120.0, MALLOC_MMAP_THRESHOLD_="65536")
    said = [json.loads(line) for line in lines]
    assert [one["same"] for one in said] == [True, True]
    for one in said:
        assert one["shard"] > 8 * layer / 6, one
        assert one["peak"] <= one["shard"] + layer, one
