"""What a recipe's advantages are given, what enters the figures, which parameters decay, which models are refused."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from areal.errors import DataError
from areal_trainer.algorithms.advantages import AdvantageOptions, estimate_advantages
from areal_trainer.data.batch import AdvantageBatch, TokenBatch, columns
from areal_trainer.engine.adam_states import AdamWOptions
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.model import ModelRows, PolicyModel
from areal_trainer.engine.optimizer import ShardedAdamW
from support.trainer_parts import VOCABULARY, batch, sample


def with_a_partial_sample() -> TokenBatch:
    """Two groups of four; the first sequence was cut at a deadline: none of its tokens is trained."""
    tokens = batch(2)
    mask = tokens.loss_mask.copy()
    mask[: tokens.offsets[1]] = False
    return replace(tokens, loss_mask=mask)


def test_a_recipe_sees_which_sequences_count_and_can_change_nothing():
    tokens = with_a_partial_sample()
    given = AdvantageBatch.of(tokens, tokens.has_signal(), np.zeros(tokens.tokens))
    assert given.counted.tolist() == [False] + [True] * 7
    for field in fields(given)[:-2]:  # but the stages' columns, and the figures that it may write
        assert not getattr(given, field.name).flags.writeable, field.name
    assert tokens.rewards.flags.writeable


def test_each_turn_of_an_episode_has_its_reward_and_the_episode_s_verdict():
    first, second = sample(0, 0, reward=0.25), sample(0, 1, reward=1.0)
    first.sequences.append(sample(0, 0, seed=1, reward=0.75).sequences[0])
    first.verdict.status = "WRONG_ANSWER"
    tokens = columns([first, second], VOCABULARY)
    given = AdvantageBatch.of(tokens, tokens.has_signal())
    assert given.rewards.tolist() == [0.25, 0.75, 1.0]
    assert given.sample_indices.tolist() == [0, 0, 1]
    assert given.verdicts.tolist() == ["WRONG_ANSWER", "WRONG_ANSWER", ""]


def test_a_partial_sample_enters_no_mean():
    tokens = with_a_partial_sample()
    result = estimate_advantages(tokens, AdvantageOptions())
    assert result.counted.tolist() == [False] + [True] * 7
    assert not result.trained[0]


def test_weight_decay_leaves_norms_biases_and_embeddings_alone():
    names = {"block.weight": (2, 2), "block.bias": (2,), "norm.weight": (2,), "embed_tokens.weight": (3, 2)}
    parameters = {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in names.items()}
    optimizer = ShardedAdamW(parameters, AdamWOptions(weight_decay=0.5), RankGroup())
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0.1)
    changed = {name for name, parameter in parameters.items() if not torch.equal(parameter, torch.ones_like(parameter))}
    assert changed == {"block.weight"}


def test_a_model_whose_blocks_have_another_name_is_refused_in_words():
    from transformers import AutoModelForCausalLM, GPT2Config

    lm = AutoModelForCausalLM.from_config(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16))
    with pytest.raises(DataError, match="gpt2 name their transformer blocks"):
        PolicyModel(lm)


def test_dropout_of_a_configuration_is_switched_off():
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen3Config(vocab_size=16, head_dim=8, intermediate_size=16, attention_dropout=0.5, **shape)
    model = PolicyModel(AutoModelForCausalLM.from_config(config)).train()
    ids = torch.arange(6)[None]
    rows = ModelRows(ids, ids, torch.ones(1, 1, 6, 6, dtype=torch.bool).tril(), torch.arange(5))
    first, second = (model(rows, torch.arange(1, 6), 1.0)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert np.isfinite(first.detach().numpy()).all()
