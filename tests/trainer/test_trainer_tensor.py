"""Tensor parallelism by the model's own plan: which layers are split how, and which models are refused in words."""

from __future__ import annotations

import pytest
import torch
from areal.errors import DataError
from areal.weights.adapter import AdapterConfig
from areal_trainer.engine import context, lora
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 1, "pad_token_id": 0, "head_dim": 8,
}  # fmt: skip


class TwoRanks:
    """As much of a mesh as is asked before anything is split."""

    def size(self) -> int:
        return 2


def empty(family: str, **changes: object):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SIZES, **changes}))


@pytest.fixture
def styles(monkeypatch):
    """What would be split how, by name, in a model of one layer."""
    asked = {}
    monkeypatch.setattr(context, "parallelize_module", lambda module, mesh, found: asked.update(found))
    return asked


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_plan_of_rows_and_columns_is_taken_whole_for_the_layers(styles, family, tied):
    context.split(empty(family, tie_word_embeddings=tied), TwoRanks())
    kinds = {name.removeprefix("layers.0."): type(style) for name, style in styles.items()}
    assert kinds.pop("self_attn.o_proj") is kinds.pop("mlp.down_proj") is RowwiseParallel
    norms = {name for name, kind in kinds.items() if kind is SequenceParallel}
    assert norms == ({"self_attn.q_norm", "self_attn.k_norm"} if family == "qwen3" else set())
    columns = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"}
    assert {name for name, kind in kinds.items() if kind is ColwiseParallel} == columns


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("phi3", "split as rowwise_split_input, which this trainer can't"),
        ("olmo2", "split as colwise_gather_output, which this trainer can't"),
        ("gpt2", "models of type gpt2 have no plan for tensor parallelism"),
    ],
)
def test_other_plans_are_refused_in_words(styles, family, words):
    with pytest.raises(DataError, match=words):
        context.split(empty(family), TwoRanks())
    assert not styles


def test_heads_that_do_not_split_are_refused(styles):
    with pytest.raises(DataError, match="num_key_value_heads is 1, which doesn't split into 2 equal parts"):
        context.split(empty("llama", num_key_value_heads=1), TwoRanks())


def test_a_weight_that_computes_on_a_part_and_is_not_in_the_plan_is_refused(styles):
    lm = empty("qwen3")
    whole = lm.config.base_model_tp_plan
    lm.config.base_model_tp_plan = {name: how for name, how in whole.items() if not name.endswith("q_norm")}
    with pytest.raises(DataError, match=r"leaves out layers\.0\.self_attn\.q_norm\.weight"):
        context.split(lm, TwoRanks())


def test_adapted_layers_are_refused(styles):
    lm = empty("llama")
    lora.adapt(lm, AdapterConfig(4, 8.0, ("q_proj",)), torch.float32)
    with pytest.raises(DataError, match=r"self_attn\.q_proj is a AdaptedLinear"):
        context.split(lm, TwoRanks())
