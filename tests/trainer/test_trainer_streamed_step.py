"""The gradient of a step taken in parts is the plain step's: by algorithm, on two ranks, with faults on the way."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from areal.errors import BugError
from areal.spec.resolved_algorithm import NAMES, whole_batches_for
from areal_trainer.algorithms.policy import divisor, token_weights
from support.forked_ranks import program
from support.streamed_steps import GROUPS, PARTS, actor_of, batch_of, difference, spec_of, trained

CLOSE = 1e-6  # of the largest entry of a gradient

EXACT: dict[str, dict[str, Any]] = {
    "GRPO": {"name": "GRPO"},
    "GRPO, kept zero variance": {"name": "GRPO", "zeroVariance": "keep"},
    "DrGRPO": {"name": "DrGRPO"},
    "GSPO": {"name": "GSPO"},
    "RLOO": {"name": "RLOO"},
    "SAPO": {"name": "SAPO"},
    "CISPO": {"name": "CISPO"},
    "DPPO": {"name": "DPPO"},
    "MaxRL": {"name": "MaxRL"},
    "DAPO": {"name": "DAPO", "zeroVariance": "mask"},
    "PPO's clip around a pass of its own": {"name": "GRPO", "advanced": {"proximal": "recompute"}},
    "estimated proximal": {"name": "GRPO", "advanced": {"proximal": "loglinear"}},
    "KL and entropy in the loss": {"name": "GRPO", "kl": {"coefficient": 0.1}, "entropyCoefficient": 0.01},
    "whitened within the group": {"name": "GRPO", "advanced": {"advantageNormalize": "group"}},
}


@pytest.mark.parametrize("name", EXACT)
def test_the_gradient_in_parts_is_that_of_the_whole_batch(tmp_path, model_path, ranks, name):
    spec = spec_of(EXACT[name])
    assert whole_batches_for(spec) == ""
    plain = trained(actor_of(spec, model_path, tmp_path, ranks), ())
    parts = trained(actor_of(spec, model_path, tmp_path, ranks), PARTS)
    assert difference(plain.gradients, parts.gradients) < CLOSE
    assert difference(plain.weights, parts.weights) < 1e-2, "Adam's first step is ± the rate where a gradient is near 0"
    assert (plain.figures.begun, parts.figures.begun) == (0, 5)
    assert parts.figures.applied == plain.figures.applied == 1
    for one, other in zip(vars(plain.figures.loss).values(), vars(parts.figures.loss).values(), strict=True):
        assert other == pytest.approx(one, rel=1e-5, abs=1e-7)
    assert np.array_equal(plain.tokens.flags, parts.tokens.flags)
    assert plain.tokens.flags.any()
    np.testing.assert_allclose(parts.tokens.logprobs, plain.tokens.logprobs, rtol=1e-5, atol=1e-6)


def test_an_adapters_gradient_in_parts_is_that_of_the_whole_batch(tmp_path, model_path, ranks):
    spec = spec_of({"name": "GRPO"})
    plain = trained(actor_of(spec, model_path, tmp_path, ranks, lora=True), ())
    parts = trained(actor_of(spec, model_path, tmp_path, ranks, lora=True), PARTS)
    assert difference(plain.gradients, parts.gradients) < CLOSE
    assert all("lora" in name for name in plain.gradients)


def test_two_ranks_accumulate_as_one(tmp_path, model_path):
    lines = [json.loads(line) for line in program("streamed_steps", tmp_path, model_path)]
    assert len(lines) == 2
    for case in (case for line in lines for case in line):
        assert case["gradient"] < CLOSE, case
        assert case["loss"] < 1e-6, case
        assert (case["tokens"], case["kept"], case["begun"]) == (True, True, 5), case


def test_every_group_may_be_begun_and_none_be_left(tmp_path, model_path, ranks):
    spec = spec_of({"name": "GRPO"})
    plain = trained(actor_of(spec, model_path, tmp_path, ranks), ())
    parts = trained(actor_of(spec, model_path, tmp_path, ranks), [(g,) for g in range(GROUPS)])
    assert difference(plain.gradients, parts.gradients) < CLOSE
    assert parts.figures.begun == GROUPS


@pytest.mark.parametrize("begun", [(), (0, 1, 4), (0, 1, 4, 7, 8, 2)])
def test_what_is_not_in_the_batch_as_it_was_begun_is_thrown_away(tmp_path, model_path, ranks, begun):
    """The ledger's word decides: a group was lost and made again, or ended."""
    spec = spec_of({"name": "GRPO"})
    plain = trained(actor_of(spec, model_path, tmp_path, ranks), ())
    parts = trained(actor_of(spec, model_path, tmp_path, ranks), PARTS, begun=begun)
    assert all(torch.equal(plain.gradients[name], parts.gradients[name]) for name in plain.gradients)
    assert parts.figures.begun == 0
    assert parts.figures.loss == plain.figures.loss, "nothing is counted twice"


def test_parts_of_a_step_that_never_came_are_forgotten(tmp_path, model_path, ranks):
    spec = spec_of({"name": "GRPO"})
    plain = trained(actor_of(spec, model_path, tmp_path, ranks), ())
    actor = actor_of(spec, model_path, tmp_path, ranks)
    left = replace(batch_of((2, 3), whole=False), step=2)
    actor.accumulate(left, actor.advantages(left.tokens))
    parts = trained(actor, PARTS)
    assert difference(plain.gradients, parts.gradients) < CLOSE


def test_a_loss_that_is_no_number_skips_the_one_update(tmp_path, model_path, ranks):
    actor = actor_of(spec_of({"name": "DrGRPO"}), model_path, tmp_path, ranks)
    before = {name: parameter.detach().clone() for name, parameter in actor.engine.trained().items()}
    part, whole = batch_of((1, 4), whole=False), batch_of(range(GROUPS), begun=(1, 4))
    for batch in (part, whole):
        huge = np.where(batch.tokens.group_ids == 4, batch.tokens.sample_indices * 1e39, batch.tokens.rewards)
        object.__setattr__(batch, "tokens", replace(batch.tokens, rewards=huge))
    actor.accumulate(part, actor.advantages(part.tokens))
    figures = actor.update(whole, actor.advantages(whole.tokens), begun=whole.begun)
    assert (figures.tried, figures.applied, figures.finite) == (1, 0, False)
    assert all(torch.equal(before[name], now.detach()) for name, now in actor.engine.trained().items())


def test_a_group_whose_advantages_changed_is_a_bug_and_changes_nothing(tmp_path, model_path, ranks):
    spec = spec_of({"name": "LitePPO"})  # its deviation is the batch's
    assert "over the batch" in whole_batches_for(spec)
    actor = actor_of(spec, model_path, tmp_path, ranks)
    assert not actor.accumulates
    with pytest.raises(BugError, match="depend on others"):
        trained(actor, PARTS)


def test_a_second_update_with_the_same_batch_is_of_all_of_it(tmp_path, model_path, ranks):
    spec = spec_of({"name": "GRPO"})
    plain, parts = (actor_of(spec, model_path, tmp_path, ranks) for _ in range(2))
    first, second = trained(plain, ()), trained(parts, PARTS)
    whole = batch_of(range(GROUPS), begun=(0, 1, 4, 7, 8))
    again = [actor.update(whole, actor.advantages(whole.tokens), begun=whole.begun) for actor in (plain, parts)]
    assert again[1].grad_norm == pytest.approx(again[0].grad_norm, rel=1e-3)
    assert first.figures.grad_norm == pytest.approx(second.figures.grad_norm, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_names_that_compare_over_a_batch_wait_for_it(name):
    more = {"teacher": {"path": "t"}} if name == "OnPolicyDistillation" else {}
    waits = whole_batches_for(spec_of({"name": name, **more}))
    assert bool(waits) == (
        name in ("PPO", "REINFORCE++", "REINFORCE++Baseline", "LitePPO", "M2PO", "OnPolicyDistillation")
    )


@pytest.mark.parametrize(
    ("algorithm", "word"),
    [
        ({"name": "GRPO", "miniBatches": 2}, "miniBatches"),
        ({"name": "DrGRPO", "entropyCoefficient": 0.01}, "lossAggregation constant"),
        ({"name": "GSPO", "kl": {"coefficient": 0.1}}, "lossAggregation sequence"),
        ({"name": "GRPO", "kl": {"coefficient": 0.1, "as": "reward"}}, "KL penalty in the reward"),
        ({"name": "GRPO", "advanced": {"advantageStd": "batch"}}, "over the batch"),
        ({"name": "GRPO", "critic": {}}, "critic"),
    ],
)
def test_fields_under_which_a_part_is_not_exact(algorithm, word):
    assert word in whole_batches_for(spec_of(algorithm))


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_summed_weights_over_the_divisor_are_the_weights(aggregation):
    sequence = np.repeat(np.arange(5), [3, 0, 4, 2, 6])
    mask = np.random.default_rng(0).random(len(sequence)) < 0.7
    mask[sequence == 3] = False
    plain = token_weights(mask, sequence, aggregation, 16)
    summed = token_weights(mask, sequence, aggregation, 16, summed=True)
    np.testing.assert_allclose(summed / divisor(mask, sequence, aggregation), plain, rtol=1e-15)
    assert math.isclose(plain.sum(), 1.0) or aggregation == "constant"


def test_own_advantages_and_own_stages_are_given_whole_batches(tmp_path, model_path, ranks):
    spec = spec_of({"name": "GRPO"})
    assert actor_of(spec, model_path, tmp_path, ranks).accumulates
    assert not actor_of(spec, model_path, tmp_path, ranks, compute_advantages=lambda batch: batch.rewards).accumulates
