"""Tiny random models of many families, as transformers saves them: config.json and the names and shapes of the weights.

`python -m support.family_models FILE` writes them all to one packed file, which tests read without transformers.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

_BASE: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_WINDOWS = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_ROUTED = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_LATENT = {
    "q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "num_key_value_heads": 4, "qk_head_dim": 16, "head_dim": 8,
}  # fmt: skip
_LINEAR = {
    "num_hidden_layers": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 12,
    "linear_value_head_dim": 12,
}  # fmt: skip
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 12, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
_FOUR = {"num_hidden_layers": 4, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2}

FAMILIES: dict[str, dict[str, Any]] = {
    # dense, all layers alike
    **{name: {} for name in (
        "llama", "mistral", "ministral3", "qwen2", "qwen3", "smollm3", "gemma", "phi3", "olmo2", "glm4", "seed_oss",
        "apertus", "arcee", "hunyuan_v1_dense", "ernie4_5", "nanochat", "helium", "stablelm", "phi", "granite", "glm",
        "starcoder2",
    )},
    # windows
    **dict.fromkeys(("ministral", "gemma2", "gemma3_text", "olmo3", "cohere2", "exaone4", "cwm"), _WINDOWS),
    "gemma3n_text": {
        **_FOUR, "vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 12, "num_kv_shared_layers": 2,
        "laurel_rank": 8, "intermediate_size": [80] * 4, "activation_sparsity_pattern": [0.0] * 4,
        "altup_num_inputs": 2,
    },
    "gemma4_text": {
        **_FOUR, "global_head_dim": 24, "vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 12,
        "num_kv_shared_layers": 2,
    },
    # mixtures
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 24},
    "qwen3_moe": _EXPERTS,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {**_WINDOWS, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v2": {**_LATENT, **_ROUTED, "topk_method": "greedy"},
    "deepseek_v3": {**_LATENT, **_ROUTED},
    "glm4_moe": _ROUTED,
    "minimax_m2": {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 4},
    "minicpm3": _LATENT,
    # hybrids
    "qwen3_next": {**_LINEAR, **_EXPERTS, "shared_expert_intermediate_size": 24},
    "qwen3_5_text": _LINEAR,
    "lfm2": {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2, "block_multiple_of": 16},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 96},
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "nemotron_h": {
        "num_hidden_layers": 4, "layers_block_type": ["mamba", "attention", "moe", "mamba"], "mamba_num_heads": 8,
        "mamba_head_dim": 12, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 8,
        "moe_shared_expert_intermediate_size": 24,
        **{key: value for key, value in _ROUTED.items() if key not in ("n_shared_experts", "first_k_dense_replace")},
    },
}  # fmt: skip


def made(family: str, folder: Path) -> Path:
    """A random model of a family in `folder`."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**{**_BASE, **FAMILIES[family]})
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def facts(folder: Path) -> dict[str, Any]:
    """The configuration of a model directory, and the shape of each tensor by name."""
    raw = (folder / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    header.pop("__metadata__", None)
    return {
        "config": json.loads((folder / "config.json").read_text()),
        "shapes": {name: each["shape"] for name, each in header.items()},
    }


def main() -> None:
    """Write the facts of every family."""
    found = {}
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found[family] = facts(made(family, Path(folder)))
    Path(sys.argv[1]).write_bytes(gzip.compress(json.dumps(found, sort_keys=True).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
