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
from areal_trainer.publish.exporter import side_files, sources
from support.publishing_ranks import CANARY
from support.tiny_families import MORE, SIZES
from support.trainer_parts import batch
from transformers import AutoConfig, AutoModelForCausalLM


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
