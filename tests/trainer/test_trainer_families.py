"""What is published of each model family: Hugging Face loads it, and it scores as the trainer did."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from areal.admit.models import read_model, refuse_weights
from areal.spec.model_families import COMPARED, EXPERTS, HYBRIDS
from areal.values.policy import PolicyId
from areal.weights.publish import publish
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.self_check import check_packing
from areal_trainer.publish.files import side_files, sources
from support.publishing_ranks import CANARY
from support.trainer_parts import VOCABULARY, batch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "pad_token_id": 0, "head_dim": 8,
}  # fmt: skip


MIXTURE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
BARE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}  # of the MLP's width
GROUPED = {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
LINEAR = {
    "num_hidden_layers": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "shared_expert_intermediate_size": 16,
}  # fmt: skip
MAMBA = {
    "num_hidden_layers": 4, "layers_block_type": ["mamba", "attention", "moe", "mamba"], "mamba_num_heads": 8,
    "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 16,
    "moe_shared_expert_intermediate_size": 16,
    "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 4, "qk_head_dim": 16, "head_dim": 8,
}  # fmt: skip
WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
SPARSE = {"mlp_layer_types": ["dense", "sparse"]}
SCAN = {
    "num_hidden_layers": 3, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
    "mamba_chunk_size": 16, "mamba_expand": 2,
}  # fmt: skip
SHORT = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 32}
KIMI = {
    "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_token": 2, "moe_intermediate_size": 16,
    "num_shared_experts": 1, "first_k_dense_replace": 1, "linear_attn_config": {
        "kda_layers": [1, 2, 3], "full_attn_layers": [4], "head_dim": 8, "num_heads": 4, "short_conv_kernel_size": 4,
    },
}  # fmt: skip
MORE = {
    "afmoe": {**MIXTURE, **WINDOW, "num_shared_experts": 1, "num_dense_layers": 1},
    "deepseek_v2": {**MIXTURE, **GROUPED, **LATENT, "topk_method": "greedy", "n_group": 1, "topk_group": 1},
    "deepseek_v3": {**MIXTURE, **GROUPED, **LATENT}, "dots1": {**MIXTURE, **GROUPED},
    "ernie4_5_moe": {
        "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_num_shared_experts": 1,
        "moe_layer_start_index": 0, "moe_layer_end_index": 1, "moe_layer_interval": 1,
    },
    "exaone_moe": {**MIXTURE, **GROUPED, **WINDOW, **SPARSE, "num_shared_experts": 1, "n_group": 1, "topk_group": 1},
    "flex_olmo": BARE, "glm4_moe": {**MIXTURE, **GROUPED},
    "glm4_moe_lite": {**MIXTURE, **GROUPED, **LATENT, **SPARSE, "n_group": 1, "topk_group": 1},
    "gpt_oss": {**BARE, **WINDOW},
    "laguna": {
        **MIXTURE, **WINDOW, **SPARSE, "shared_expert_intermediate_size": 16, "num_attention_heads_per_layer": [4, 4],
    },
    "mellum": {**MIXTURE, **WINDOW}, "minimax_m2": {**BARE, "rotary_dim": 4}, "mixtral": BARE, "olmoe": BARE,
    "qwen2_moe": {**MIXTURE, "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1}, "qwen3_moe": MIXTURE,
    "solar_open": {**MIXTURE, **GROUPED, "n_group": 1, "topk_group": 1},
    "bamba": {**SCAN, "attn_layer_indices": [1]}, "kimi_linear": {**LATENT, **KIMI, "q_lora_rank": None},
    "granitemoehybrid": {
        **SCAN, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 16,
        "layer_types": ["mamba", "attention", "mamba"],
    },
    "lfm2": SHORT, "lfm2_moe": {**MIXTURE, **SHORT, "num_dense_layers": 1}, "nemotron_h": {**MIXTURE, **MAMBA},
    "olmo_hybrid": {**LINEAR, "linear_num_key_heads": 4}, "qwen3_5_moe_text": {**MIXTURE, **LINEAR},
    "qwen3_5_text": LINEAR, "qwen3_next": {**MIXTURE, **LINEAR},
}  # fmt: skip


@pytest.mark.parametrize("attention", ["dense", "varlen"])
@pytest.mark.parametrize("family", [*EXPERTS, *HYBRIDS])
def test_rows_are_packed_as_alone_in_both_ways(tmp_path, ranks, family, attention):
    torch.manual_seed(4)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SIZES, **MORE[family]}))
    with torch.no_grad():
        for tensor in model.parameters():  # plain initialisation hides a state that leaks
            tensor.copy_(torch.randn_like(tensor) * 0.1 if tensor.abs().max() == 0 else tensor * 3)
    model.save_pretrained(tmp_path / "start")
    assert refuse_weights(read_model(tmp_path / "start", weights=True)) == "", "as `areal check` looks at them"
    engine = PolicyEngine(tmp_path / "start", ModelOptions(attention=attention), ranks)
    assert check_packing(engine, np.arange(40) % 20 + 1, None) is None, "or it raises"


@pytest.mark.parametrize(
    ("family", "tied"), [(name, place % 2 == 0) for place, name in enumerate((*COMPARED, *EXPERTS, *HYBRIDS))]
)
def test_a_published_version_loads_and_scores_as_the_trainer_does(tmp_path, ranks, family, tied):
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **{**SIZES, **MORE.get(family, {})}, tie_word_embeddings=tied)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "start")
    engine = PolicyEngine(tmp_path / "start", ModelOptions(), ranks)
    check_packing(engine, np.arange(1, 13), None)
    with torch.no_grad():
        for parameter in engine._parameters.values():
            parameter.mul_(3)  # as if trained: the start model's files would score otherwise
    tokens = batch(4, 4)
    micros = rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=512,
        pack_length=64,
    )  # fmt: skip
    scored = engine.logprobs(micros, tokens.tokens).numpy()
    files = side_files(tmp_path / "start", tmp_path / "start")
    version = publish(tmp_path / "weights", PolicyId(1, 1), sources(engine.export()), CANARY, files)
    model, told = AutoModelForCausalLM.from_pretrained(
        version.path, dtype=torch.float64, experts_implementation="eager", output_loading_info=True
    )
    assert not {name: names for name, names in told.items() if names}, "every tensor has its name and shape"
    for start, end in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True):
        ids = torch.from_numpy(tokens.token_ids[start:end])[None]
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        alone = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None]).squeeze(1).numpy()
        wanted = tokens.trainable()[start:end]
        np.testing.assert_allclose(scored[start:end][wanted], alone[wanted[1:]], atol=1e-4)
