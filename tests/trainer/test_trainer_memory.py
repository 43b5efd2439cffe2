"""The torch-free memory plan against what autograd keeps: saved-tensor hooks on tiny models, to one percent."""

from __future__ import annotations

import pytest
import torch
from areal.plan.memory import shape_of
from areal.plan.memory.activations import bytes_a_token, mask_bytes
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

TOKENS = 64
SIZES = {
    "vocab_size": 512, "hidden_size": 96, "intermediate_size": 224, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 3,
}  # fmt: skip
CONFIGS = {"qwen2": Qwen2Config(**SIZES), "llama": LlamaConfig(**SIZES), "qwen3": Qwen3Config(**SIZES, head_dim=40)}


def kept_bytes(model, attention: str) -> int:
    """Bytes of all storages that a forward pass saves, parameters aside."""
    ours = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in ours:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    tokens, mask = torch.arange(TOKENS)[None] % 512, torch.ones(1, TOKENS, dtype=torch.long)
    if attention == "dense":
        mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()[None, None]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model.get_decoder()(tokens, attention_mask=mask, position_ids=torch.arange(TOKENS)[None], use_cache=False)
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize(("precision", "element"), [(torch.bfloat16, 2), (torch.float32, 4)])
@pytest.mark.parametrize("attention", ["dense", "varlen"])
def test_kept_bytes_are_predicted_to_one_percent(family, precision, element, attention):
    model = AutoModelForCausalLM.from_config(CONFIGS[family], dtype=precision, attn_implementation="sdpa").train()
    shape = shape_of(CONFIGS[family].to_dict())
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    predicted = TOKENS * bytes_a_token(shape, element, attention, "none")
    predicted += mask_bytes(shape, element, TOKENS, attention, "none")
    assert kept_bytes(model, attention) == pytest.approx(predicted, rel=0.01)
