"""Router losses: transformers' own value and gradient, whatever the packing, the micro-batches and what is kept."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from areal.errors import DataError
from areal.expert_routes import ids_of, route_shape, rows_of
from areal.spec.job import JobSpec, RLJob
from areal.spec.model_families import EXPERTS, HYBRIDS, VISION
from areal.spec.resolved_algorithm import whole_batches_for
from areal.yaml_file.table import read_table
from areal_trainer.actor import Actor, ActorOptions
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.optimizer import RateSchedule
from areal_trainer.options import advantage_options, objective_options
from areal_trainer.rollout import TrainBatch
from areal_trainer.settings import TrainerSettings
from areal_trainer.trainings.kinds import Learner
from support.routed_models import made, with_routes
from support.trainer_parts import batch, sample, tiny_model
from torch import Tensor

pytestmark = pytest.mark.component

AUX, Z = 0.3, 0.02
ROUTER_LOSSES = read_table("areal.spec", "model_families.yaml")["router_losses"]
BOTH, OFF = (AUX, Z), (0.0, 0.0)
PLACES = ("qwen3_moe", "mixtral")


def unbiased(path: Path, family: str, **more: int) -> torch.nn.Module:
    """A model whose routers choose by their probabilities alone, which transformers' loss takes for granted."""
    lm = made(path, family, **more)
    with torch.no_grad():
        for name, each in lm.named_parameters():
            if name.endswith("e_score_correction_bias"):
                each.zero_()
    lm.save_pretrained(path)
    return lm


def shared_tokens(lm: torch.nn.Module) -> TokenBatch:
    """Groups whose sequences share their prompt, with the experts that the model chooses."""
    return with_routes(lm, [sample(group, index, shared=True) for group in range(4) for index in range(4)])


def padded(tokens: TokenBatch) -> tuple[Tensor, Tensor]:
    """Each sequence without its last token as a row of its own, and which of these are tokens."""
    inputs = [tokens.token_ids[begin : end - 1] for begin, end in zip(tokens.offsets, tokens.offsets[1:], strict=False)]
    mask = np.zeros((len(inputs), max(map(len, inputs))), np.int64)
    ids = np.zeros_like(mask)
    for row, each in enumerate(inputs):
        ids[row, : len(each)], mask[row, : len(each)] = each, 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


def by_transformers(lm: torch.nn.Module, tokens: TokenBatch) -> dict[str, Tensor]:
    """Both losses and their weighted gradient by parameter."""
    ids, mask = padded(tokens)
    lm.zero_grad()
    told = lm(input_ids=ids, attention_mask=mask, output_router_logits=True, use_cache=False)
    logits = torch.stack([each.reshape(-1, each.shape[-1]) for each in told.router_logits])
    squares = logits.logsumexp(-1).square() * mask.flatten()
    z = squares.sum() / (mask.sum() * len(logits))
    (AUX * told.aux_loss + Z * z).backward()
    grads = {f"lm.{name}": each.grad for name, each in lm.named_parameters() if each.grad is not None}
    return {"aux": told.aux_loss.detach(), "z": z.detach(), **grads}


def here(
    path: Path, tokens: TokenBatch, ranks: RankGroup, *, budget: int = 64, main: float = 0.0, **options: object
) -> dict[str, Tensor]:
    """The same of the trainer, with `main` times log-probabilities beside it."""
    engine = PolicyEngine(path, ModelOptions(**{"router": BOTH, **options}), ranks)
    micros = rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=budget,
        pack_length=16,
    )  # fmt: skip
    loss = engine.accumulate(micros, lambda values, entropy, micro: main * (values.sum() + entropy.sum()))
    figures = {name: torch.tensor(value) for name, value in engine.routers.figures().items()}
    grads = {name: each.grad.full_tensor() for name, each in engine.trained().items() if each.grad is not None}
    return {"loss": loss, "micros": torch.tensor(len(micros)), **figures, **grads}


def gap(one: dict[str, Tensor], other: dict[str, Tensor], names: list[str]) -> float:
    """The largest difference of their tensors, by the largest entry of a tensor."""
    return max(float((one[name] - other[name]).abs().max() / other[name].abs().max().clamp(min=1e-3)) for name in names)


@pytest.mark.parametrize(
    "family", [name if name in PLACES else pytest.param(name, marks=pytest.mark.nightly) for name in ROUTER_LOSSES]
)
def test_value_and_gradient_are_those_of_transformers(tmp_path, ranks, family):
    lm = unbiased(tmp_path, family)
    tokens = shared_tokens(lm)
    expected = by_transformers(lm, tokens)
    names = [name for name in expected if name.startswith("lm.") and expected[name].abs().max() > 0]
    assert any("gate" in name or "router" in name for name in names)
    for options in ({"replay": True}, {"replay": False}, {"replay": True, "recompute": "full", "budget": 256}):
        found = here(tmp_path, tokens, ranks, **options)
        assert abs(float(found["router_aux_loss"] - expected["aux"])) < 1e-5
        assert abs(float(found["router_z_loss"] / expected["z"]) - 1) < 1e-5
        assert gap(found, expected, names) < 1e-5


def test_packing_and_micro_batches_change_nothing(tmp_path, ranks):
    tokens = shared_tokens(made(tmp_path, "qwen3_moe"))
    alone = replace(tokens, group_ids=np.arange(tokens.sequences))  # a sequence each: no prompt is shared
    for options in ({"replay": True}, {}):
        one = here(tmp_path, alone, ranks, budget=4096, **options)
        many, packed = (here(tmp_path, tokens, ranks, budget=budget, **options) for budget in (16, 4096))
        assert (one.pop("micros"), packed.pop("micros")) == (1, 1)
        assert many.pop("micros") >= 4
        for other in (many, packed):
            assert gap(other, one, [name for name in one if name.startswith("router_")]) < 1e-6
            assert gap(other, one, list(one)) < 3e-6  # float32, added up in another order


@pytest.mark.parametrize("recompute", ["full", "selective", "offload"])
def test_layers_that_are_computed_again_count_once(tmp_path, ranks, recompute):
    tokens = shared_tokens(made(tmp_path, "qwen3_moe"))
    kept, again = (here(tmp_path, tokens, ranks, main=0.01, recompute=mode) for mode in ("none", recompute))
    assert kept["router_aux_loss"] > 1
    assert all(torch.equal(kept[name], again[name]) for name in kept)


def test_it_is_added_to_the_training_s_own_loss_and_off_it_is_not_there(tmp_path, ranks):
    tokens = shared_tokens(made(tmp_path, "qwen3_moe"))
    both, alone = (here(tmp_path, tokens, ranks, main=main) for main in (0.01, 0.0))
    off = here(tmp_path, tokens, ranks, main=0.01, router=OFF)
    assert torch.equal(both["loss"], off["loss"])
    assert not [name for name in off if name.startswith("router_")]
    names = [name for name in off if name.startswith("lm.")]
    assert gap({name: off[name] + alone[name] for name in names}, both, names) < 1e-5
    assert (
        float((both["lm.model.layers.0.mlp.gate.weight"] - off["lm.model.layers.0.mlp.gate.weight"]).abs().max()) > 1e-3
    )


def test_replayed_routes_are_the_load_and_probabilities_are_the_router_s(tmp_path, ranks):
    lm = made(tmp_path, "qwen3_moe", num_hidden_layers=1)
    tokens, shape = shared_tokens(lm), route_shape(lm)
    assert shape is not None
    own = ids_of(shape, torch.from_numpy(tokens.routes.copy()))[:, 0].long()
    others = torch.where(own < 0, own, (own + 1) % shape.experts)
    ids, mask = padded(tokens)
    logits = lm(input_ids=ids, attention_mask=mask, output_router_logits=True).router_logits[0][mask.flatten() > 0]
    used = others[others[:, 0] >= 0]
    share = torch.bincount(used.flatten(), minlength=shape.experts) / len(used)
    value = shape.experts * share @ logits.softmax(-1).mean(0)
    (0.3 * value).backward()
    expected = float(value.detach())
    elsewhere = replace(tokens, routes=rows_of(shape, [others]))
    found = here(tmp_path, elsewhere, ranks, replay=True, router=(0.3, 0.0))
    assert float(found["router_aux_loss"]) == pytest.approx(expected, abs=1e-5)
    assert float(found["router_load_max"]) == pytest.approx(float(share.max() / share.mean()), abs=1e-5)
    gate = "model.layers.0.mlp.gate.weight"
    torch.testing.assert_close(found[f"lm.{gate}"], lm.get_parameter(gate).grad, rtol=1e-5, atol=1e-6)
    chosen = here(tmp_path, elsewhere, ranks, router=(0.3, 0.0))
    assert abs(float(chosen["router_aux_loss"] - expected)) > 1e-3


def trained(path: Path, ranks: RankGroup, coefficient: float) -> list[float]:
    """The busiest expert's load over the mean in each step of a training."""
    engine = PolicyEngine(path, ModelOptions(router=(coefficient, 0.0)), ranks)
    learner = Learner(engine, lambda micro: engine.forward(micro)[0], 128, 64)
    loads = []
    for step in range(40):
        tokens = batch(4, 4, seed=step)
        mask = tokens.trainable().astype(np.float64)
        assert learner.update(tokens, -mask / mask.sum(), 1e-2).applied
        loads.append(engine.routers.figures()["router_load_max"])
    return loads


def test_a_skewed_router_is_balanced_by_the_loss_and_not_without_it(tmp_path, ranks):
    lm = made(tmp_path, "qwen3_moe", num_experts=8, num_local_experts=8)
    with torch.no_grad():  # all tokens have a direction in common, and two experts like it
        lm.model.embed_tokens.weight[:, 0] += 1.0
        for block in lm.model.layers:
            block.mlp.gate.weight[:2, 0] += 4.0
    lm.save_pretrained(tmp_path)
    without, balanced = (trained(tmp_path, ranks, coefficient) for coefficient in (1e-12, 0.1))
    assert without[0] == balanced[0] > 3  # of 4: each token goes to two of eight
    assert np.mean(without[-10:]) > 3.5
    assert np.mean(balanced[-10:]) < 2.3


def test_models_without_such_routers_are_refused(tmp_path, ranks):
    made(tmp_path / "sigmoid", "glm4_moe")
    with pytest.raises(DataError, match="the family glm4_moe, which has routers"):
        PolicyEngine(tmp_path / "sigmoid", ModelOptions(router=BOTH), ranks)
    with pytest.raises(DataError, match="the family qwen3, which has no experts"):
        PolicyEngine(tiny_model(tmp_path / "dense"), ModelOptions(router=BOTH), ranks)


def test_the_families_are_those_that_transformers_has_a_loss_for():
    """But for laguna, which caps its routers' logits after the layer that is read here; images weren't compared."""
    has = set()
    for family in (*EXPERTS, *HYBRIDS, *VISION.values()):
        name = family.removesuffix("_text")
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        has |= {family} if hasattr(module, "load_balancing_loss_func") else set()
    assert has - set(ROUTER_LOSSES) == {"laguna", "qwen3_vl_moe_text"}
    assert set(ROUTER_LOSSES) <= has


def job(**trainer: float) -> JobSpec:
    """A job of RL with these fields of its trainer."""
    algorithm = {"name": "GRPO", "groupSize": 4, "batchSize": 4, "maxSteps": 4, "miniBatches": 2}
    spec = {"model": {"path": "m"}, "dataset": {"train": {"jsonl": "t.jsonl"}}, "algorithm": algorithm}
    head = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "a"}}
    return RLJob.model_validate({**head, "spec": {**spec, "trainer": trainer}}).spec


def test_a_job_s_fields_reach_the_policy_alone_and_its_batches_are_whole():
    spec = job(routerAuxCoefficient=0.3, routerZCoefficient=0.02)
    settings, usual = (
        TrainerSettings("a", "u", one, SimpleNamespace(), "c", "r", None, "t")  # type: ignore[arg-type]
        for one in (spec, job())
    )
    assert settings.engine.router == BOTH
    assert settings.teacher_engine.router == OFF
    assert settings.critic_engine.router == OFF
    assert "a router loss" in whole_batches_for(spec)
    assert usual.engine.router == OFF
    assert "a router loss" not in whole_batches_for(job())


def test_an_update_of_rl_tells_the_mean_over_its_mini_batches(tmp_path, ranks):
    tokens, spec = shared_tokens(made(tmp_path, "qwen3_moe")), job()
    told = {}
    for router in (BOTH, OFF):
        engine = PolicyEngine(tmp_path, ModelOptions(router=router, replay=True), ranks)
        options = ActorOptions(
            objective_options(spec), advantage_options(spec), RateSchedule(1e-9, 0, "constant"), mini_batches=2
        )
        actor = Actor(engine, options, Checkpointer(tmp_path / "checkpoints", 1, engine))
        batch = TrainBatch(0, 4, tokens)
        told[router == BOTH] = actor.update(batch, actor.advantages(tokens))
    assert told[True].tried == told[False].tried == 2
    assert told[False].router == {}
    assert told[True].loss.loss == pytest.approx(told[False].loss.loss, abs=1e-6)
    assert 1.5 < told[True].router["router_aux_loss"] < 3
    assert set(told[True].router) == {"router_aux_loss", "router_z_loss", "router_load_max"}
