"""Attention by blocks against the dense mask: the same blocks, log-probabilities and gradients, packed and shared.

PyTorch refuses FlexAttention's gradient on CPUs; its reference implementation has one, which the tests let through.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from areal_trainer.data.micro_batches import MicroBatch, rank_micro_batches
from areal_trainer.engine import attention
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trainer_parts import batch


def micro_batch(tokens, length: int) -> MicroBatch:
    return rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=1 << 16,
        pack_length=length,
    )[0]  # fmt: skip


@given(
    groups=st.integers(1, 5),
    size=st.integers(1, 4),
    seed=st.integers(0, 99),
    length=st.sampled_from([16, 24, 64]),
    shared=st.booleans(),
    block=st.sampled_from([1, 4, 7]),
)
@settings(deadline=None, max_examples=30)
def test_blocks_mean_what_the_mask_says(groups, size, seed, length, shared, block):
    micro = micro_batch(batch(groups, size, seed=seed, shared=shared), length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "BLOCK", block)
        some, whole = attention.occupied_blocks(micro)
    mask = micro.attention_mask()[:, 0].numpy()
    rows, width = mask.shape[:2]
    blocks = -(-width // block)
    padded = np.zeros((rows, blocks * block, blocks * block), np.bool_)
    padded[:, :width, :width] = mask
    tiles = padded.reshape(rows, blocks, block, blocks, block)
    assert np.array_equal(some, tiles.any(axis=(2, 4)))
    expected = tiles.all(axis=(2, 4)) & ~np.eye(blocks, dtype=np.bool_)
    assert np.array_equal(whole, expected)


def figures(path, ranks, micro, tokens, attention):
    """Log-probabilities of the batch, then the gradient of every parameter."""
    engine = PolicyEngine(path, ModelOptions(attention=attention), ranks)
    logprobs = engine.logprobs([micro], tokens.tokens)
    engine.accumulate([micro], lambda values, entropy, micro: (-values.sum() + 0.1 * entropy.sum()) / 100)
    return logprobs, {name: parameter.grad.full_tensor() for name, parameter in engine._parameters.items()}


@pytest.mark.parametrize("shared", [False, True])
def test_log_probabilities_and_gradients_are_those_of_the_mask(model_path, ranks, monkeypatch, shared):
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)
    tokens = batch(8, 4, shared=shared)
    micro = micro_batch(tokens, 192)
    assert micro.input_ids.shape[1] > attention.BLOCK, "several blocks"
    expected, gradients = figures(model_path, ranks, micro, tokens, "dense")
    logprobs, found = figures(model_path, ranks, micro, tokens, "flex")
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-5, msg=lambda said, name=name: name + said)


def test_without_a_gpu_pytorch_has_no_gradient_of_it(model_path, ranks):
    """What the rule flex-on-cpu says; when this fails, the rule can go."""
    micro = micro_batch(batch(2, 2), 64)
    engine = PolicyEngine(model_path, ModelOptions(attention="flex"), ranks)
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        engine.forward(micro)
