"""What is published of each model family: Hugging Face loads it, and it scores as the trainer did."""

from __future__ import annotations

import numpy as np
import pytest
import torch
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
MORE = {
    "glm4_moe": {**MIXTURE, **GROUPED}, "mixtral": MIXTURE, "olmoe": MIXTURE, "qwen3_moe": MIXTURE,
    "qwen3_next": {**MIXTURE, **LINEAR},
    "qwen2_moe": {**MIXTURE, "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1},
    "lfm2": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 32},
    "nemotron_h": {**MIXTURE, **MAMBA}, "qwen3_5_moe_text": {**MIXTURE, **LINEAR}, "qwen3_5_text": LINEAR,
}  # fmt: skip


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
