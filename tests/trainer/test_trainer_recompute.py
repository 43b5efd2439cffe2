"""Recomputation: the same gradients in every mode, and as many bytes kept as the memory plan says."""

from __future__ import annotations

import pytest
import torch
from areal.admit.memory.rank import bytes_a_token, kept_by_a_block
from areal.admit.memory.shape import shape_of
from areal_trainer.engine.load import recompute
from support.trainer_parts import gradients
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

MODES = ["selective", "full", "offload"]
TOKENS = 256
SIZES = {
    "vocab_size": 64, "hidden_size": 96, "intermediate_size": 224, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 8,
}  # fmt: skip
CONFIGS = {"llama": LlamaConfig(**SIZES), "qwen3": Qwen3Config(**SIZES, head_dim=40)}


@pytest.mark.parametrize("attention", ["dense", "varlen"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_mode_makes_the_same_gradients(model_path, ranks, precision, attention):
    kept = gradients(model_path, ranks, precision=precision, attention=attention)
    for mode in MODES:
        again = gradients(model_path, ranks, precision=precision, attention=attention, recompute=mode)
        assert all(torch.equal(again[name], tensor) for name, tensor in kept.items()), mode


class Made(TorchDispatchMode):
    """Storages that operations made, weakly."""

    def __init__(self, besides):
        super().__init__()
        self.storages = {}
        self.besides = {tensor.untyped_storage()._cdata for tensor in besides}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self.besides:
                    self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return result

    def alive(self):
        return sum(size for reference, size in self.storages.values() if not reference.expired())


def kept_bytes(config, mode, dtype):
    """Bytes that a forward pass leaves behind for its backward pass."""
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").train().get_decoder()
    for block in model.layers:
        recompute(block, mode)
    inputs = {"input_ids": torch.arange(TOKENS)[None] % 64, "position_ids": torch.arange(TOKENS)[None]}
    with Made(list(model.parameters())) as made:
        hidden = model(**inputs, use_cache=False).last_hidden_state
        return made.alive() - hidden.untyped_storage().nbytes()


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize(("dtype", "element"), [(torch.bfloat16, 2), (torch.float32, 4)])
def test_kept_bytes_are_those_of_the_plan(family, dtype, element):
    shape = shape_of(CONFIGS[family].to_dict())
    for mode in ("none", "selective", "full"):
        predicted = bytes_a_token(shape, element, "varlen", mode)
        if mode != "none":  # one layer made again is not there before the backward pass
            predicted -= kept_by_a_block(shape, element, "varlen")
        assert kept_bytes(CONFIGS[family], mode, dtype) == pytest.approx(TOKENS * predicted, rel=0.01), mode
