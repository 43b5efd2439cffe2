"""Routing replay: the trainer's routers choose the experts that sampled a token, and its gradient is what it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from areal.errors import DataError
from areal.expert_routes import ids_of, route_shape, rows_of
from areal.spec.model_families import HYBRIDS, route_bytes, routing
from areal.values.generation import ROUTES
from areal.values.routes import MISSING, RouteShape
from areal_trainer.data.batch import TokenBatch, columns
from areal_trainer.data.micro_batches import MicroBatch, rank_micro_batches
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.optimizer import local
from support.routed_models import made, with_routes
from support.trainer_parts import VOCABULARY, sample
from torch import Tensor

from tools.pages.families import ROUTED

pytestmark = pytest.mark.component

ALL = sorted(ROUTED)

FIRST = (
    "deepseek_v3",
    "glm4_moe_lite",
    "gpt_oss",
    "lfm2_moe",
    "mixtral",
    "nemotron_h",
    "qwen3_5_moe_text",
    "qwen3_moe",
)


def micros_of(tokens: TokenBatch) -> list[MicroBatch]:
    return rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=128,
        pack_length=64,
    )  # fmt: skip


def passed(engine: PolicyEngine, tokens: TokenBatch) -> dict[str, Tensor]:
    """Log-probabilities, and the gradient by parameter."""
    micros = micros_of(tokens)
    told = engine.logprobs(micros, tokens.tokens)
    engine.accumulate(micros, lambda values, entropy, micro: (-values.sum() + 0.1 * entropy.sum()) / 100)
    return {"": told} | {name: each.grad.full_tensor() for name, each in engine.trained().items()}


@pytest.mark.parametrize(
    "family", [name if name in FIRST else pytest.param(name, marks=pytest.mark.nightly) for name in ALL]
)
def test_own_routes_change_no_bit_and_others_are_obeyed(tmp_path, ranks, family):
    lm = made(tmp_path, family)
    samples = [sample(group, index, shared=True) for group in range(3) for index in range(3)]
    tokens = with_routes(lm, samples)
    own = passed(PolicyEngine(tmp_path, ModelOptions(recompute="full"), ranks), tokens)
    replayed = passed(PolicyEngine(tmp_path, ModelOptions(recompute="full", replay=True), ranks), tokens)
    assert own.keys() == replayed.keys()
    assert all(torch.equal(own[name], replayed[name]) for name in own)
    shape = route_shape(lm)
    ids = ids_of(shape, torch.from_numpy(tokens.routes.copy()))
    others = torch.where(ids < 0, ids, (ids + 1) % shape.experts)
    elsewhere = replace(tokens, routes=rows_of(shape, [others[:, layer].long() for layer in shape.routed]))
    engine = PolicyEngine(tmp_path, ModelOptions(replay=True), ranks)
    assert float((engine.logprobs(micros_of(elsewhere), tokens.tokens) - own[""]).abs().max()) > 1e-3


@pytest.mark.parametrize(
    "family",
    [
        "qwen3_moe",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("qwen3_5_moe_text", "glm4_moe_lite", "gpt_oss", "mixtral")
        ),
    ],
)
def test_routes_hold_where_the_trainer_s_routers_differ_a_little(tmp_path, ranks, family):
    lm = made(tmp_path, family, **WIDE, num_hidden_layers=4 if family in HYBRIDS else 8)
    samples = [sample(group, index, shared=True) for group in range(64) for index in range(4)]
    tokens = with_routes(lm, samples)
    unknown = replace(tokens, routes=np.zeros((0, 0), np.uint8))
    engine = PolicyEngine(tmp_path, ModelOptions(replay=True), ranks)
    before = engine.logprobs(micros_of(unknown), tokens.tokens)
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in engine._parameters.items():
            if name.endswith(("mlp.gate.weight", "router.weight")):
                local(parameter.detach()).mul_(1 + 1e-3 * torch.randn(parameter.shape))
    with_them = (engine.logprobs(micros_of(tokens), tokens.tokens) - before).abs().max()
    without = (engine.logprobs(micros_of(unknown), tokens.tokens) - before).abs().max()
    assert float(with_them) <= (0.1 if family in HYBRIDS else 0.02)
    assert float(without) >= 0.3


WIDE = {
    "hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 64, "num_experts": 32,
    "num_local_experts": 32, "n_routed_experts": 32, "num_experts_per_tok": 2, "norm_topk_prob": True,
    "layer_types": None, "mlp_layer_types": None,
}  # fmt: skip


def test_what_is_not_known_is_missing_and_counted():
    samples = [sample(0, index) for index in range(3)]
    lengths = [len(one.sequences[0].token_ids) // 4 for one in samples]
    samples[1].sequences[0].attachments.add(kind=ROUTES, data=bytes(3 * lengths[1]))
    tokens = columns(samples, VOCABULARY)
    known = np.repeat([False, True, False], lengths)
    assert ((tokens.routes == 0).all(axis=1) == known).all()
    assert (tokens.routes[~known] == MISSING).all()
    assert tokens.unrouted() == pytest.approx(1 - (tokens.trainable() & known).sum() / tokens.trainable().sum())
    assert columns(samples[:1], VOCABULARY).unrouted() == 1
    samples[2].sequences[0].attachments.add(kind=ROUTES, data=bytes(2 * lengths[2]))
    with pytest.raises(DataError, match=r"\[2, 3\] bytes a token"):
        columns(samples, VOCABULARY)
    samples[2].sequences[0].attachments[0].data = bytes(2 * lengths[2] + 1)
    with pytest.raises(DataError, match="bytes of routes"):
        columns(samples, VOCABULARY)


def test_routes_of_another_model_are_refused():
    shape = RouteShape(layers=2, routed=(1,), experts=300, chosen=2)
    ids = torch.tensor([[299, 7], [0, 255]])
    rows = torch.from_numpy(rows_of(shape, [ids]))
    assert ids_of(shape, rows)[:, 1].tolist() == ids.tolist()
    assert ids_of(shape, rows)[:, 0].tolist() == [[-1, -1]] * 2
    with pytest.raises(DataError, match="not those of this model"):
        ids_of(shape, rows[:, :-2])
    with pytest.raises(DataError, match="went to expert 299 of 256"):
        ids_of(replace(shape, experts=256), rows)
    with pytest.raises(DataError, match="2 routers chose in a model that has 1"):
        rows_of(shape, [ids, ids])


@pytest.mark.parametrize("family", ALL)
def test_a_configuration_says_which_layers_of_the_model_have_routers(family: str, tmp_path: Path) -> None:
    shape = route_shape(made(tmp_path / family, family))
    assert shape is not None
    config = json.loads((tmp_path / family / "config.json").read_text())
    told = routing(config)
    assert told == (shape.layers, shape.routed, shape.experts, shape.chosen)
    assert route_bytes(config) == shape.row_bytes


@pytest.mark.parametrize(
    ("more", "routed"),
    [({"mlp_only_layers": [1]}, (0, 2, 3)), ({"decoder_sparse_step": 2}, (1, 3)), ({}, (0, 1, 2, 3))],
)
def test_layers_that_a_configuration_leaves_dense_have_no_router(
    more: dict[str, Any], routed: tuple[int, ...], tmp_path: Path
) -> None:
    shape = route_shape(made(tmp_path / "model", "qwen3_moe", num_hidden_layers=4, **more))
    assert shape is not None
    told = routing(json.loads((tmp_path / "model" / "config.json").read_text()))
    assert told is not None
    assert told[1] == shape.routed == routed
