"""Sliding windows: what a layer doesn't look at is left out in each way of attention, within a sequence and behind a
shared prompt; what a family asks of attention beyond that is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from areal.errors import DataError
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine import self_check
from areal_trainer.engine.attention import PACKED, register
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.model import max_positions, sliding_window
from support.trainer_parts import VOCABULARY, batch
from transformers import AutoConfig, AutoModelForCausalLM

WINDOW = 5
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "pad_token_id": 0, "head_dim": 8, "sliding_window": WINDOW,
}  # fmt: skip
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
FAMILIES = {
    "mistral": {},  # all layers, and no layer_types
    "phi3": {},
    "starcoder2": {},
    "gemma3_text": MIXED,
    "olmo3": MIXED,
    "cwm": MIXED,
    "exaone4": MIXED,
    "ministral": MIXED,
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 1},
}


def start(path, family, **more):
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **SIZES, **FAMILIES.get(family, {}), **more)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # else a token scores nearly the same whatever it looks at
    model.save_pretrained(path)
    return model


def scored(engine, tokens):
    micros = rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=512,
        pack_length=96,
    )  # fmt: skip
    return engine.logprobs(micros, tokens.tokens).numpy()


@pytest.mark.parametrize("attention", ["dense", "varlen"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_sequence_longer_than_the_window_scores_as_alone_by_the_family_s_own_code(
    tmp_path, ranks, family, attention
):
    model = start(tmp_path, family).double().eval()
    tokens = batch(3, 2, shared=True)
    assert min(tokens.lengths) > WINDOW + 2
    found = scored(PolicyEngine(tmp_path, ModelOptions(attention=attention), ranks), tokens)
    for begin, end in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True):
        ids = torch.from_numpy(tokens.token_ids[begin:end])[None]
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        alone = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None]).squeeze(1).numpy()
        wanted = tokens.trainable()[begin:end]
        np.testing.assert_allclose(found[begin:end][wanted], alone[wanted[1:]], atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "dense"},
        {"attention": "varlen"},
        {"precision": "bfloat16"},
        {"precision": "bfloat16", "fp32_head": True},
    ],
    ids=str,
)
def test_the_start_s_check_sees_a_window_that_is_left_out(tmp_path, ranks, monkeypatch, options):
    start(tmp_path, "mistral")
    engine = PolicyEngine(tmp_path, ModelOptions(**options), ranks)
    ids = np.arange(1, 13)
    self_check.check_packing(engine, ids, None)
    mine = engine._model.config._attn_implementation
    assert mine == PACKED, "the comparison put it back"
    for layer in engine._model.blocks:
        monkeypatch.setattr(layer.self_attn.config, "sliding_window", None)
    monkeypatch.setattr(engine._model, "own_logits", own_with_window(engine, engine._model.own_logits))
    with pytest.raises(DataError, match="transformers' own code"):
        self_check.check_packing(engine, ids, None)


def own_with_window(engine, own):
    def computed(ids, count):
        engine._model.config.sliding_window = WINDOW
        try:
            return own(ids, count)
        finally:
            engine._model.config.sliding_window = None

    return computed


def test_the_check_s_sequence_is_longer_than_the_window(tmp_path, ranks):
    start(tmp_path, "gemma3_text", max_position_embeddings=256)
    engine = PolicyEngine(tmp_path, ModelOptions(), ranks)
    assert engine.window == WINDOW
    long = self_check._beyond_window(engine, np.arange(7))
    assert len(long) == WINDOW + self_check.OWN_TOKENS + 1
    np.testing.assert_array_equal(long[:14], np.tile(np.arange(7), 2))
    engine._model.config.sliding_window = 262_144  # wider than all positions, as Phi-3 mini 128k has it
    assert len(self_check._beyond_window(engine, np.arange(7))) == 7


def test_logits_that_the_family_scales_are_seen_whatever_its_name(tmp_path, ranks, monkeypatch):
    start(tmp_path, "qwen2")
    engine = PolicyEngine(tmp_path, ModelOptions(), ranks)
    head = engine._model.lm.lm_head
    monkeypatch.setattr(head, "forward", lambda states: torch.nn.functional.linear(states, head.weight) * 1.1)
    with pytest.raises(DataError, match="transformers' own code"):
        self_check.check_packing(engine, np.arange(1, 13), None)


def test_only_blocks_have_no_window():
    config = AutoConfig.for_model("mistral", sliding_window=64)
    full = AutoConfig.for_model("gemma3_text", layer_types=["full_attention"] * 26, sliding_window=64)
    assert (sliding_window(config), sliding_window(full)) == (64, None)
    assert max_positions(config, "flex") == 64
    assert max_positions(config, "varlen") == config.max_position_embeddings


@pytest.mark.parametrize(
    ("told", "named"),
    [({"sinks": torch.zeros(2)}, "sinks"), ({"softcap": 50.0}, "softcap"), ({"is_causal": False}, "is_causal: false")],
)
def test_what_attention_does_not_compute_is_refused_by_name(told, named):
    from transformers import AttentionInterface

    register()
    states = torch.randn(1, 2, 4, 8)
    module = torch.nn.Module()
    module.num_key_value_groups = 1
    attend = AttentionInterface()[PACKED]
    assert attend(module, states, states, states, None, dropout=0.0, softcap=None)[0].shape == (1, 4, 2, 8)
    with pytest.raises(DataError, match=named):
        attend(module, states, states, states, None, **told)
