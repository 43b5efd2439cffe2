"""The torch-free memory plan against what is there: what autograd keeps of tiny models, and what second models hold."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from areal.admit.memory.rank import bytes_a_token, mask_bytes, plan_trainer
from areal.admit.memory.shape import shape_of
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine import engine as sharding
from areal_trainer.engine.divergence import Divergence
from areal_trainer.engine.engine import ModelOptions, PolicyEngine, ValueEngine
from areal_trainer.engine.group import RankGroup
from support.trainer_parts import batch
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

TOKENS = 64
SIZES = {
    "vocab_size": 512, "hidden_size": 96, "intermediate_size": 224, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 3,
}  # fmt: skip
CONFIGS = {"qwen2": Qwen2Config(**SIZES), "llama": LlamaConfig(**SIZES), "qwen3": Qwen3Config(**SIZES, head_dim=40)}


def kept_bytes(model, attention: str) -> int:
    """Bytes of all storages that a forward pass saves, parameters aside."""
    ours = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in ours:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    tokens, mask = torch.arange(TOKENS)[None] % 512, torch.ones(1, TOKENS, dtype=torch.long)
    if attention == "dense":
        mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()[None, None]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model.get_decoder()(tokens, attention_mask=mask, position_ids=torch.arange(TOKENS)[None], use_cache=False)
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize(("precision", "element"), [(torch.bfloat16, 2), (torch.float32, 4)])
@pytest.mark.parametrize("attention", ["dense", "varlen"])
def test_kept_bytes_are_predicted_to_one_percent(family, precision, element, attention):
    model = AutoModelForCausalLM.from_config(CONFIGS[family], dtype=precision, attn_implementation="sdpa").train()
    shape = shape_of(CONFIGS[family].to_dict())
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    predicted = TOKENS * bytes_a_token(shape, element, attention, "none")
    predicted += mask_bytes(shape, element, TOKENS, attention, "none")
    assert kept_bytes(model, attention) == pytest.approx(predicted, rel=0.01)


UNTIED = LlamaConfig(**SIZES, tie_word_embeddings=False)


def held_bytes():
    """Bytes of all tensors' storages."""
    gc.collect()
    found = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter, DTensor)]
    local = [one.to_local() if isinstance(one, DTensor) else one for one in found]
    storages = [one.untyped_storage() for one in local if one.device.type == "cpu"]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def as_reference(path, options, ranks, micros, policy):
    engine = PolicyEngine(path, options, ranks)
    engine.logprobs(micros, 4096)
    return engine


def as_critic(path, options, ranks, micros, policy):
    engine = ValueEngine(path, options, ranks)
    engine.accumulate(micros, lambda values, micro: values.square().sum() + values.sum())
    engine.optimizer.step(1e-3)
    return engine


def as_teacher(path, options, ranks, micros, policy):
    engine = PolicyEngine(path, options, ranks)
    policy.infer(micros, 4096, lambda micro: policy.divergence(micro, engine, Divergence("forwardKL", 1.0, 0.5)))
    return engine


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("second", "beside", "lines"),
    [
        (as_reference, {"reference": True}, ["the KL reference's share"]),
        (as_critic, {"critic": True}, ["the critic's share with its optimizer"]),
        (
            as_teacher,
            {"teacher": shape_of(UNTIED.to_dict())},
            ["the teacher's share", "the teacher's embedding and head, whole"],
        ),
    ],
)
def test_a_second_model_holds_what_the_plan_says_of_it(tmp_path, second, beside, lines, precision, monkeypatch):
    monkeypatch.setattr(sharding, "drops_gathered", lambda ranks, mesh: True)  # as on a GPU, which the plan is of
    AutoModelForCausalLM.from_config(UNTIED).save_pretrained(tmp_path)
    tokens, options, ranks = batch(2, 2), ModelOptions(precision=precision), RankGroup()
    micros = rank_micro_batches(
        tokens, np.arange(4), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64, pack_length=64
    )
    policy = PolicyEngine(tmp_path, options, ranks)
    before = held_bytes()
    kept = second(tmp_path, options, ranks, micros, policy)
    measured = held_bytes() - before
    shape = shape_of(UNTIED.to_dict())
    plan = plan_trainer(
        shape, ranks=1, tokens=TOKENS, precision=precision, attention="dense", recompute="none", **beside
    )
    planned = {line.what: line.size for line in plan.lines}
    assert measured == pytest.approx(sum(planned[line] for line in lines), rel=0.01)
    del kept
    ranks.close()
