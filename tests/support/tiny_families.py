"""Tiny configurations of the families that the trainer's table names: what each needs beside common sizes."""

from support.trainer_parts import VOCABULARY

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
