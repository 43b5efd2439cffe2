"""Context parallelism: how rows are cut, which positions are whose, and which heads can be exchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from areal.errors import DataError
from areal_trainer.data.micro_batches import MicroBatch, rank_micro_batches
from areal_trainer.engine.context import Context, refuse_heads
from support.trainer_parts import batch
from transformers import AutoConfig


@pytest.fixture(scope="module")
def micro() -> MicroBatch:
    tokens = batch(3, 4, seed=0, shared=True)
    made = rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64,
        pack_length=32,
    )  # fmt: skip
    return next(one for one in made if one.input_ids.shape[0] > 1)


@pytest.mark.parametrize("multiple", [1, 2, 5, 7])
def test_padded_rows_select_the_same_tokens_and_see_the_same(micro, multiple):
    padded = micro.padded(multiple)
    length, longer = micro.input_ids.shape[1], padded.input_ids.shape[1]
    assert longer % multiple == 0
    assert longer - length < multiple
    for name in ("input_ids", "position_ids", "bundle_ids"):
        selected = getattr(padded, name).flatten()[padded.select]
        assert torch.equal(selected, getattr(micro, name).flatten()[micro.select])
    seen = padded.attention_mask()
    assert torch.equal(seen[:, :, :length, :length], micro.attention_mask())
    assert not seen[:, :, :length, length:].any()
    assert seen.any(-1).all()


@pytest.mark.parametrize("size", [2, 4])
def test_every_selected_position_is_one_ranks_and_is_found_in_its_run(micro, size):
    padded = micro.padded(size)
    rows, length = padded.input_ids.shape
    flat = torch.arange(rows * length).reshape(rows, length)
    found = []
    for rank in range(size):
        context = Context(None, rank, size)
        mine, places = context.chosen(padded.select, length)
        assert torch.equal(context.run(flat).flatten()[places], padded.select[mine])
        found.append(mine)
    assert torch.equal(torch.cat(found).sort().values, torch.arange(len(padded.select)))


@pytest.mark.parametrize(
    ("heads", "shared", "parts", "tensor"), [(8, 8, 8, 1), (8, 2, 4, 1), (16, 4, 2, 2), (6, 3, 3, 1)]
)
def test_heads_that_split_or_are_shared_are_taken(heads, shared, parts, tensor):
    config = AutoConfig.for_model("llama", hidden_size=48, num_attention_heads=heads, num_key_value_heads=shared)
    assert refuse_heads(config, parts, tensor) is None


@pytest.mark.parametrize(("heads", "shared", "parts", "tensor"), [(6, 2, 4, 1), (12, 3, 2, 1), (8, 4, 8, 2)])
def test_other_heads_are_refused_with_the_arithmetic(heads, shared, parts, tensor):
    config = AutoConfig.for_model("llama", hidden_size=48, num_attention_heads=heads, num_key_value_heads=shared)
    words = f"{heads // tensor} heads and {shared // tensor} of keys and values of a rank don't split into {parts}"
    with pytest.raises(DataError, match=words):
        refuse_heads(config, parts, tensor)
