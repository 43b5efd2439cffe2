"""Tiny random models of families that are served through their Hugging Face module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from support.engine_models import CONTEXT, EOS, VOCAB, _tokenizer
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": CONTEXT, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": EOS,
}  # fmt: skip
_WINDOW = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}

FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3_text": {**_WINDOW, "query_pre_attn_scalar": 12},
    "gpt_oss": {**_WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True},
    "qwen3_5_text": {
        "num_hidden_layers": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 12,
        "linear_value_head_dim": 12,
    },
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention", "moe"], "num_hidden_layers": 3, "mamba_num_heads": 8,
        "mamba_head_dim": 12, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 8, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 24, "n_group": 1,
        "topk_group": 1,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
}  # fmt: skip


def make_module_model(path: Path, family: str, seed: int) -> Path:
    """Write a random model with a character tokenizer, large enough in its weights that a wrong state shows."""
    torch.manual_seed(seed)
    lm = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**{**_BASE, **FAMILIES[family]})).float()
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if parameter.dim() < 2 or "bias" in name:  # norms, biases, sinks: constant at initialisation
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif "embed" not in name and "lm_head" not in name:
                parameter.mul_(3)
        for name, buffer in lm.named_buffers():
            if "correction_bias" in name:
                buffer.add_(torch.randn_like(buffer) * 0.02)
    lm.save_pretrained(path)
    _tokenizer().save_pretrained(path)
    return path
