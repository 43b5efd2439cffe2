"""Naive and decoupled loss of a stale batch: values and gradients are those of the papers' formulas in float64.

The batch is one as asynchronous training makes it: a policy answered, then learned from other batches, then took the
first mini-batch of this one. So behaviour, proximal and current policy all differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from areal.spec.job import JobSpec, RLJob
from areal_trainer.actor import Actor, ActorOptions
from areal_trainer.algorithms.advantages import Advantages
from areal_trainer.algorithms.statistics import LossStatistics
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import MicroBatch, rank_micro_batches
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.optimizer import RateSchedule
from areal_trainer.objective import PolicyObjective
from areal_trainer.options import advantage_options, objective_options
from numpy.typing import NDArray
from support.trainer_parts import batch, tiny_model

GROUPS, SIZE, LAG, CLIP, CAP = 16, 4, 12, 0.1, 5.0
HEAD: dict[str, Any] = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "stale"}}


def job(*, decoupled: bool) -> JobSpec:
    """GRPO with four mini-batches, as the η table has it, with and without the correction."""
    algorithm = {
        "name": "GRPO", "groupSize": SIZE, "batchSize": GROUPS, "maxSteps": 100, "miniBatches": 4, "clipLow": CLIP,
        "advanced": {"decoupled": decoupled},
    }  # fmt: skip
    spec = {"model": {"path": "m"}, "dataset": {"train": {"jsonl": "t"}}, "algorithm": algorithm}
    made = RLJob.model_validate({**HEAD, "spec": spec}).spec
    assert isinstance(made, JobSpec)
    return made


@dataclass(frozen=True)
class Step:
    """As `Actor.update` takes a batch."""

    tokens: TokenBatch
    step: int
    max_steps: int = 100
    micro_batch_divisor: int = 1


@dataclass(frozen=True)
class Stale:
    """A batch with its three policies; `of` are log-probabilities of the trained tokens, float64."""

    tokens: TokenBatch
    advantages: Advantages
    micros: list[MicroBatch]
    proximal: torch.Tensor
    current: torch.Tensor
    trained: NDArray[np.bool_]

    def of(self, column: Any) -> NDArray[np.float64]:
        return np.asarray(column, np.float64)[self.trained]


@pytest.fixture(scope="module")
def stale(tmp_path_factory) -> Stale:
    home = tmp_path_factory.mktemp("stale")
    ranks, spec = RankGroup(), job(decoupled=True)
    engine = PolicyEngine(tiny_model(home / "model"), ModelOptions(), ranks)
    options = ActorOptions(
        objective_options(spec), advantage_options(spec), RateSchedule(2e-2, 0, "constant"), mini_batches=4
    )
    actor = Actor(engine, options, Checkpointer(home / "checkpoints", 1, engine))
    tokens = batch(GROUPS, SIZE)
    everyone = np.arange(tokens.sequences)
    micros = rank_micro_batches(
        tokens, everyone, tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=1 << 14, pack_length=None
    )

    def scores() -> torch.Tensor:
        return engine.logprobs(micros, tokens.tokens)

    behaviour = scores().numpy()
    tokens = replace(tokens, behaviour_logprobs=behaviour)
    for step in range(LAG):
        other = batch(GROUPS, SIZE, seed=step + 1)
        actor.update(Step(other, step), actor.advantages(other))
    proximal, advantages = scores(), actor.advantages(tokens)
    actor.update(Step(tokens, LAG), advantages)
    current = scores()
    trained = tokens.trainable() & advantages.trained[tokens.sequence_of]
    ranks.close()
    return Stale(tokens, advantages, micros, proximal, current, trained)


def advantages_of(tokens: TokenBatch) -> NDArray[np.float64]:
    """(r − mean) / (deviation + 1e-6) of the group, by token (arXiv 2402.03300, §4.1.2)."""
    rewards = tokens.rewards.reshape(GROUPS, SIZE)
    centred = rewards - rewards.mean(1, keepdims=True)
    return (centred / (rewards.std(1, keepdims=True) + 1e-6)).reshape(-1)[tokens.sequence_of]


def naive(theta: Any, behaviour: Any, advantage: Any) -> tuple[float, NDArray[np.float64]]:
    """−E[min(uA, clip(u, 1 ± ε)A)], u = π_θ/π_behav (arXiv 1707.06347, eq. 7), and its gradient by log π_θ."""
    return decoupled(theta, behaviour, behaviour, advantage)


def decoupled(theta: Any, proximal: Any, behaviour: Any, advantage: Any) -> tuple[float, NDArray[np.float64]]:
    """−E[π_prox/π_behav · min(uA, clip(u, 1 ± ε)A)], u = π_θ/π_prox (arXiv 2505.24298, eq. 5), weights over 5 left out.

    The mean is over all tokens, those left out too. d/dlog π_θ is −wuA/n where the first is the smaller, else 0.
    """
    weight, ratio = np.exp(proximal - behaviour), np.exp(theta - proximal)
    weight = np.where(weight > CAP, 0.0, weight)
    free, bounded = ratio * advantage, np.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage
    value = -(weight * np.minimum(free, bounded)).mean()
    return float(value), np.where(free <= bounded, -weight * free, 0.0) / len(theta)


def products(stale: Stale, spec: JobSpec) -> tuple[float, NDArray[np.float64], LossStatistics]:
    """The same of the product's objective, in its float32."""
    options, cpu = objective_options(spec), torch.device("cpu")
    centre = stale.proximal if options.proximal == "recompute" else None
    objective = PolicyObjective(stale.tokens, stale.advantages, options, step=LAG, device=cpu, proximal=centre)
    statistics = LossStatistics(cpu)
    loss = objective.of(stale.trained, statistics)
    total, gradient = 0.0, np.zeros(stale.tokens.tokens)
    for micro in rank_micro_batches(
        stale.tokens, np.flatnonzero(stale.advantages.trained), stale.trained, rank=0, world_size=1,
        micro_batch_tokens=128, pack_length=None,
    ):  # fmt: skip
        theta = stale.current[micro.token_index].clone().requires_grad_(True)
        part = loss(theta, torch.zeros_like(theta), micro)
        part.backward()
        total += float(part.detach())
        gradient[micro.token_index.numpy()] = theta.grad.numpy()
    return total, gradient[stale.trained], statistics


def test_the_batch_is_stale_enough_for_every_case(stale):
    behaviour, proximal, current = map(stale.of, (stale.tokens.behaviour_logprobs, stale.proximal, stale.current))
    lag, step = np.exp(proximal - behaviour), np.exp(current - proximal)
    assert (lag > CAP).any(), "some weight is over the cap"
    assert (np.abs(lag - 1) > CLIP).mean() > 0.3
    assert (step > 1 + CLIP).any()
    assert (step < 1 - CLIP).any()
    assert (np.abs(step - 1) < CLIP).any()


def test_advantages_are_those_of_the_paper(stale):
    found = stale.of(stale.advantages.tokens)
    np.testing.assert_allclose(found, stale.of(advantages_of(stale.tokens)), rtol=1e-9, atol=1e-12)
    assert {-1, 1} == set(np.sign(found))


def test_the_naive_loss_and_its_gradient(stale):
    value, gradient = naive(
        stale.of(stale.current), stale.of(stale.tokens.behaviour_logprobs), stale.of(advantages_of(stale.tokens))
    )
    found, by_token, statistics = products(stale, job(decoupled=False))
    assert found == pytest.approx(value, rel=2e-5)
    np.testing.assert_allclose(by_token, gradient, rtol=2e-5, atol=1e-9)
    assert statistics.figures().clip_ratio == pytest.approx(float((gradient == 0).mean()))
    assert 0 < (gradient == 0).mean() < 1


def test_the_decoupled_loss_and_its_gradient(stale):
    columns = (stale.current, stale.proximal, stale.tokens.behaviour_logprobs, advantages_of(stale.tokens))
    value, gradient = decoupled(*map(stale.of, columns))
    found, by_token, statistics = products(stale, job(decoupled=True))
    assert found == pytest.approx(value, rel=2e-5)
    np.testing.assert_allclose(by_token, gradient, rtol=2e-5, atol=1e-9)
    figures = statistics.figures()
    assert figures.rejected_ratio > 0
    assert figures.clip_ratio + figures.rejected_ratio == pytest.approx(float((gradient == 0).mean()))


def test_the_formulas_gradients_are_those_of_finite_differences(stale):
    columns = (stale.current, stale.proximal, stale.tokens.behaviour_logprobs, advantages_of(stale.tokens))
    theta, proximal, behaviour, advantage = map(stale.of, columns)
    for formula in (
        lambda at: naive(at, behaviour, advantage),
        lambda at: decoupled(at, proximal, behaviour, advantage),
    ):
        _, gradient = formula(theta)
        for place in range(0, len(theta), 7):
            moved = np.zeros_like(theta)
            moved[place] = 1e-6
            slope = (formula(theta + moved)[0] - formula(theta - moved)[0]) / 2e-6
            assert slope == pytest.approx(gradient[place], rel=1e-4, abs=1e-9)


def test_where_no_policy_is_stale_both_are_one_loss(stale):
    fresh = replace(stale, tokens=replace(stale.tokens, behaviour_logprobs=stale.proximal.numpy()))
    (one, by_token, _), (other, by_other, _) = (products(fresh, job(decoupled=way)) for way in (False, True))
    assert one == other
    np.testing.assert_array_equal(by_token, by_other)
