"""Attention by segments against the dense mask: the same layout, log-probabilities and gradients, and no mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine import attention
from areal_trainer.engine.attention import layout_of
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.self_check import check_packing
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trainer_parts import batch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "vocab_size": 24, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "pad_token_id": 0, "head_dim": 8,
}  # fmt: skip
FAMILIES = ["gemma", "glm4", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "starcoder2"]


def micro_batch(tokens, length):
    return rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=1 << 16,
        pack_length=length,
    )[0]  # fmt: skip


def interpreted(layout, tokens):
    """[tokens, tokens] bool: what each token sees, read from the layout alone."""
    seen = torch.zeros(tokens, tokens, dtype=torch.bool)
    index = torch.arange(tokens) if layout.key_index is None else layout.key_index
    for segment in range(len(layout.query_starts) - 1):
        queries = range(*layout.query_starts[segment : segment + 2].tolist())
        keys = index[slice(*layout.key_starts[segment : segment + 2].tolist())]
        for place, query in enumerate(queries):
            seen[query, keys[: len(keys) - len(queries) + place + 1]] = True
    return seen


@given(
    groups=st.integers(1, 5),
    size=st.integers(1, 4),
    seed=st.integers(0, 99),
    length=st.sampled_from([16, 24, 64]),
    shared=st.booleans(),
)
@settings(deadline=None, max_examples=30)
def test_a_layout_means_what_the_mask_says(groups, size, seed, length, shared):
    micro = micro_batch(batch(groups, size, seed=seed, shared=shared), length)
    rows, width = micro.input_ids.shape
    layout = layout_of(micro, torch.device("cpu"))
    seen = interpreted(layout, rows * width).view(rows, width, rows, width)
    expected = micro.attention_mask()[:, 0]
    for row in range(rows):
        assert torch.equal(seen[row, :, row], expected[row])
        assert int(seen[row].sum()) == int(expected[row].sum()), "no token sees another row"
    queries, keys = layout.query_starts.diff(), layout.key_starts.diff()
    assert (int(queries.max()), int(keys.max())) == (layout.longest_query, layout.longest_key)
    assert (layout.key_index is None) == bool((queries == keys).all())


def figures(path, ranks, micro, tokens, **options):
    """Log-probabilities of the batch, then the gradient of every parameter."""
    engine = PolicyEngine(path, ModelOptions(**options), ranks)
    logprobs = engine.logprobs([micro], tokens.tokens)
    engine.accumulate([micro], lambda values, entropy, micro: (-values.sum() + 0.1 * entropy.sum()) / 100)
    return logprobs, {name: parameter.grad.full_tensor() for name, parameter in engine._parameters.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_and_gradients_are_those_of_the_mask(tmp_path, ranks, family):
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # or attention would hardly matter
    model.save_pretrained(tmp_path)
    tokens = batch(4, 4, shared=True)
    micro = micro_batch(tokens, 64)
    expected, gradients = figures(tmp_path, ranks, micro, tokens)
    logprobs, found = figures(tmp_path, ranks, micro, tokens, attention="varlen")
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-5)
    for name, gradient in gradients.items():
        assert float((found[name] - gradient).norm()) <= 1e-4 * float(gradient.norm()) + 1e-6, name


class Largest(TorchDispatchMode):
    """The most elements that any operation's result has."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


@pytest.mark.parametrize(("attention", "fits"), [("dense", False), ("varlen", True)])
def test_no_tensor_grows_with_the_square_of_a_row(model_path, ranks, attention, fits):
    """A row of more than 1,024 tokens. The largest tensor is [tokens, intermediate]; a mask is 16 times it and more."""
    tokens = batch(30, 8)
    micro = micro_batch(tokens, 2048)
    rows, length = micro.input_ids.shape
    assert (rows, length > 1024) == (1, True)
    engine = PolicyEngine(model_path, ModelOptions(attention=attention), ranks)
    with Largest() as seen:
        engine.accumulate([micro], lambda values, entropy, micro: -values.sum())
    assert (seen.elements < length * length) == fits
    if fits:
        assert seen.elements <= length * 64


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_check_at_start_compares_segments_with_the_mask(model_path, ranks, precision):
    engine = PolicyEngine(model_path, ModelOptions(precision=precision, attention="varlen"), ranks)
    ids = np.random.default_rng(1).integers(0, 24, 96)
    check_packing(engine, ids, 0.002)
    assert len(engine.most_likely(ids[:8], 3)) == 3


@pytest.mark.parametrize("shares", [True, False])
def test_a_torch_without_grouped_heads_is_given_a_key_for_each_query(monkeypatch, shares):
    layout = layout_of(micro_batch(batch(2, 2, seed=1, shared=True), 64), torch.device("cpu"))
    noise = torch.Generator().manual_seed(0)
    tokens, keys = int(layout.query_starts[-1]), int(layout.key_starts[-1])
    query, key, value = (torch.randn(*size, 8, generator=noise) for size in ((tokens, 4), (keys, 2), (keys, 2)))
    expected = attention._one_by_one(query, key, value, layout, 0.5)

    def on_a_card(query, key, value, starts, key_starts, longest, longest_key, *, scale, window_size, **more):
        assert more == ({"enable_gqa": True} if shares else {})
        assert key.shape[1] == value.shape[1] == (2 if shares else 4)
        assert window_size == (-1, 0)
        return attention._one_by_one(query, key, value, layout, scale)

    monkeypatch.setattr(attention, "_SHARES_KEYS", shares)
    monkeypatch.setattr(attention, "varlen_attn", on_a_card)
    assert torch.equal(attention._on_cuda(query, key, value, layout, 0.5), expected)
