"""PPO's critic: packed values are each sequence's own, it learns a return, it goes on bitwise from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from areal_trainer.actor import Actor, ActorOptions
from areal_trainer.algorithms.advantages import AdvantageOptions
from areal_trainer.algorithms.baseline import BaselineOptions
from areal_trainer.algorithms.policy import ValueOptions
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.checkpoint.saving import RunPosition
from areal_trainer.critic import CriticOptions, ValueCritic, explained_variance, with_next_token
from areal_trainer.data.batch import TokenBatch
from areal_trainer.engine.engine import ModelOptions, PolicyEngine, ValueEngine
from areal_trainer.engine.optimizer import RateSchedule
from areal_trainer.objective import ObjectiveOptions
from support.trainer_parts import batch

pytestmark = pytest.mark.component

NO_BASELINE = AdvantageOptions(
    baseline=BaselineOptions(mean="none", std="none", mask_zero_variance=False), normalise="batch"
)


@dataclass(frozen=True)
class Step:
    step: int
    tokens: TokenBatch
    max_steps: int = 40
    micro_batch_divisor: int = 1


def actor(model_path, ranks, directory, *, budget: int = 4096, clip: float | None = None, **critic: Any) -> Actor:
    """A policy with a critic."""
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    values = ValueEngine(model_path, ModelOptions(), ranks)
    with torch.no_grad():  # a head that says something, so that values differ
        weight = values._parameters["head.weight"].to_local()
        weight.copy_(torch.linspace(-0.3, 0.3, weight.numel()).reshape(weight.shape))
    return Actor(
        engine,
        ActorOptions(
            ObjectiveOptions(),
            NO_BASELINE,
            RateSchedule(1e-3, 0, "constant"),
            mini_batches=2,
            micro_batch_tokens=budget,
        ),
        Checkpointer(directory, 2, engine, {"critic": values}),
        critic=ValueCritic(values, CriticOptions(RateSchedule(1e-2, 0, "constant"), ValueOptions(clip), **critic)),
    )


def learn(one: Actor, steps: range) -> list[Any]:
    found = []
    for step in steps:
        tokens = batch(4, 4, seed=step)
        advantages = one.advantages(tokens)
        found.append(one.update(Step(step, tokens), advantages, one.proximal(tokens, advantages)))
    return found


def cut_by_length(tokens: TokenBatch) -> TokenBatch:
    truncated = np.zeros(tokens.sequences, np.bool_)
    truncated[[0, 5]] = True
    return replace(tokens, truncated=truncated)


@pytest.mark.parametrize("shared", [False, True])
def test_packed_values_advantages_and_returns_are_each_sequences_own(shared, model_path, ranks, tmp_path):
    tokens = cut_by_length(batch(4, 4, shared=shared))
    packed = actor(model_path, ranks, tmp_path).advantages(tokens)
    few = actor(model_path, ranks, tmp_path, budget=1).advantages(tokens)
    for name in ("tokens", "returns"):
        np.testing.assert_allclose(getattr(packed, name), getattr(few, name), rtol=1e-4, atol=1e-5)
    assert packed.columns.values is not None
    assert len(np.unique(packed.columns.values[tokens.trainable()].round(6))) > 10
    assert not packed.columns.values[~tokens.trainable()].any()


def test_the_value_after_a_cut_answer_is_of_its_last_token_and_an_ended_one_has_none(model_path, ranks, tmp_path):
    tokens = cut_by_length(batch(4, 4))
    one = actor(model_path, ranks, tmp_path)
    after = one.advantages(tokens).columns.bootstrap
    assert np.flatnonzero(after).tolist() == [0, 5]
    longer, added = with_next_token(tokens, tokens.truncated)
    assert longer.token_ids[np.delete(np.arange(longer.tokens), added)].tolist() == tokens.token_ids.tolist()
    trained = replace(longer, loss_mask=np.isin(np.arange(longer.tokens), added) | longer.loss_mask)
    values = one.advantages(replace(trained, truncated=np.zeros(16, np.bool_))).columns.values
    np.testing.assert_allclose(after[[0, 5]], values[added], rtol=1e-4, atol=1e-6)
    without = actor(model_path, ranks, tmp_path, bootstrap=False).advantages(tokens)
    assert not without.columns.bootstrap.any()


def test_a_critic_learns_what_answers_are_worth(model_path, ranks, tmp_path):
    one = actor(model_path, ranks, tmp_path, warmup_steps=99)  # the policy stays as it is
    tokens = batch(8, 4)
    last = tokens.token_ids[tokens.offsets[1:] - 2]
    tokens = replace(tokens, rewards=(last % 2).astype(np.float64))  # known before the last token is chosen
    begun = one.logprobs(tokens)
    found = []
    for step in range(40):
        advantages = one.advantages(tokens)
        found.append(one.update(Step(step, tokens), advantages).critic)
    assert found[0].explained_variance < 0.2
    assert found[-1].explained_variance > 0.6
    assert found[-1].loss < 0.5 * found[0].loss
    assert found[-1].value_mean == pytest.approx(found[-1].return_mean, abs=0.15)
    assert torch.equal(one.logprobs(tokens), begun)


def test_the_policys_warm_up_begins_when_it_does(model_path, ranks, tmp_path):
    one = actor(model_path, ranks, tmp_path, warmup_steps=2)
    one.options = replace(one.options, schedule=RateSchedule(1e-3, 2, "constant"))
    rates = [(figures.learning_rate, figures.applied) for figures in learn(one, range(5))]
    assert rates == [(5e-4, 0), (5e-4, 0), (5e-4, 2), (1e-3, 2), (1e-3, 2)]


def test_values_are_clipped_around_those_before_the_step(model_path, ranks, tmp_path):
    free, near = (learn(actor(model_path, ranks, tmp_path, clip=clip), range(3))[-1].critic for clip in (None, 1e-4))
    assert free.clip_ratio == 0.0
    assert near.clip_ratio > 0.0


def test_a_run_with_a_critic_goes_on_bitwise_from_its_checkpoint(model_path, ranks, tmp_path):
    one = actor(model_path, ranks, tmp_path)
    learn(one, range(2))
    one.save(RunPosition(2, 1)).wait()
    uninterrupted = learn(one, range(2, 4))

    again = actor(model_path, ranks, tmp_path)
    found = again._checkpointer.newest([])
    assert found is not None
    assert found.record.critic_updates == found.record.optimizer_updates == 4
    again._checkpointer.load(found)
    assert learn(again, range(2, 4)) == uninterrupted
    assert uninterrupted[0].learned


def test_explained_variance_of_returns_that_do_not_vary_is_unknown():
    assert explained_variance(np.zeros(3), np.ones(3)) is None
    assert explained_variance(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 1.0
    assert explained_variance(np.zeros(2), np.array([1.0, 2.0])) == 0.0
