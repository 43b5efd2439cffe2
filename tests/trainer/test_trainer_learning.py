"""Every named algorithm end to end in one process: it learns, and how its batch is cut changes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from areal.dataflow.running import StepRun
from areal.spec.job import RLJob
from areal.spec.resolved_algorithm import NAMES, resolve
from areal_trainer.actor import Actor, ActorOptions
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.critic import ValueCritic
from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import MicroBatch
from areal_trainer.engine.engine import ModelOptions, PolicyEngine, ValueEngine
from areal_trainer.engine.optimizer import RateSchedule
from areal_trainer.frozen_model import OnSameRanks
from areal_trainer.options import advantage_options, critic_options, objective_options
from support.trainer_parts import VOCABULARY, batch

pytestmark = pytest.mark.component

GROUPS, SIZE, STEPS = 8, 8, 12
WANTED = np.isin(np.arange(VOCABULARY), range(4, 10))  # answers of one token: these six of 24 are right


@dataclass(frozen=True)
class Step:
    step: int
    tokens: TokenBatch
    max_steps: int = STEPS
    micro_batch_divisor: int = 1


def actor(model_path, ranks, tmp_path, micro_batch_tokens: int = 4096, rate: float = 1e-2, **algorithm: Any) -> Actor:
    given = {"name": "GRPO", "groupSize": SIZE, "batchSize": GROUPS, "maxSteps": STEPS, **algorithm}
    if given["name"] == "OnPolicyDistillation":
        given["teacher"] = {"path": "t"}
    spec: dict[str, Any] = {"model": {"path": "m"}, "dataset": {"train": {"jsonl": "t.jsonl"}}, "algorithm": given}
    spec["rollout"] = {"sampling": {"maxNewTokens": 8}}
    head = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "a"}}
    job = RLJob.model_validate({**head, "spec": spec}).spec
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    values = critic_options(job)
    return Actor(
        engine,
        ActorOptions(
            objective_options(job),
            advantage_options(job),
            RateSchedule(rate, 0, "constant"),
            mini_batches=job.algorithm.mini_batches,
            micro_batch_tokens=micro_batch_tokens,
        ),
        Checkpointer(tmp_path, 1, engine),
        reference=OnSameRanks(PolicyEngine(model_path, ModelOptions(), ranks).logprobs) if resolve(job).kl else None,
        teacher=OnSameRanks(says_what_is_wanted) if job.algorithm.teacher is not None else None,
        critic=None if values is None else ValueCritic(ValueEngine(model_path, ModelOptions(), ranks), values),
    )


def says_what_is_wanted(micros: Sequence[MicroBatch], tokens: int) -> torch.Tensor:
    """A teacher that gives each wanted token 1/7 and each other one its part of the rest."""
    found = torch.zeros(tokens)
    for micro in micros:
        wanted = torch.from_numpy(WANTED)[micro.targets]
        likely, rest = math.log(1 / 7), math.log(1 / 7 / (VOCABULARY - WANTED.sum()))
        found[micro.token_index] = torch.where(wanted, likely, rest)
    return found


def answers(choices: np.ndarray[Any, Any], logprobs: np.ndarray[Any, Any], step: int) -> TokenBatch:
    """A prompt of two tokens and an answer of one for each choice."""
    count = len(choices)
    ids = np.stack([np.full(count, 1), np.full(count, 2), choices], axis=1)
    behaviour = np.zeros((count, 3), np.float32)
    behaviour[:, 2] = logprobs[choices]
    mask = np.tile(np.array([False, False, True]), (count, 1))
    return TokenBatch(
        token_ids=ids.reshape(-1).astype(np.int64),
        behaviour_logprobs=behaviour.reshape(-1),
        loss_mask=mask.reshape(-1),
        versions=np.where(mask, step, -1).reshape(-1),
        offsets=np.arange(count + 1) * 3,
        group_ids=np.arange(count) // SIZE,
        sample_indices=np.arange(count) % SIZE,
        rewards=WANTED[choices].astype(np.float64),
        truncated=np.zeros(count, np.bool_),
    )


def policy(trained: Actor) -> np.ndarray[Any, Any]:
    """Log-probabilities of all answers."""
    everything = answers(np.arange(VOCABULARY), np.zeros(VOCABULARY, np.float32), 0)
    return trained.logprobs(everything).numpy().reshape(-1, 3)[:, 2]


@pytest.mark.parametrize("name", NAMES)
def test_the_right_answers_become_likely(name, model_path, ranks, tmp_path):
    trained = actor(model_path, ranks, tmp_path, name=name)
    random = np.random.default_rng(0)
    begun = float(np.exp(policy(trained))[WANTED].sum())
    for step in range(STEPS):
        logprobs = policy(trained)
        chances = np.exp(logprobs.astype(np.float64))
        tokens = answers(random.choice(VOCABULARY, GROUPS * SIZE, p=chances / chances.sum()), logprobs, step)
        advantages = trained.advantages(tokens)
        figures = trained.update(Step(step, tokens), advantages, trained.proximal(tokens, advantages))
        assert figures.finite
    ended = float(np.exp(policy(trained))[WANTED].sum())
    assert begun < 0.4
    assert ended > 2 * begun, f"{begun:.2f} → {ended:.2f}"


@pytest.mark.parametrize("name", ["GSPO", "M2PO", "REINFORCE++", "OnPolicyDistillation"])
@pytest.mark.parametrize("shared", [False, True])
def test_micro_batches_and_packing_change_neither_loss_nor_gradient(name, shared, model_path, ranks, tmp_path):
    more = {"miniBatches": 2, "entropyCoefficient": 0.01, "advanced": {"weight": "sequenceMean"}}
    more["kl"] = {"coefficient": 0.05}
    tokens = batch(8, 4, shared=shared)
    found = []
    for budget in (4096, 40):
        one = actor(model_path, ranks, tmp_path, budget, name=name, **more)
        advantages = one.advantages(tokens)
        figures = one.update(Step(0, tokens), advantages, one.proximal(tokens, advantages))
        found.append((figures.loss.loss, figures.grad_norm, figures.loss.reference_kl, figures.loss.rejected_ratio))
    assert found[1] == pytest.approx(found[0], rel=2e-5, abs=1e-6)
    assert found[0][1] > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_step_runs_the_stages_of_its_graph_in_their_order(name, model_path, ranks, tmp_path, monkeypatch):
    begun: list[str] = []
    usual = StepRun._inputs
    monkeypatch.setattr(StepRun, "_inputs", lambda self, stage: (begun.append(stage.name), usual(self, stage))[1])
    one = actor(model_path, ranks, tmp_path, name=name, **({"kl": {"coefficient": 0.1}} if name == "M2PO" else {}))
    tokens = batch(4, 4)
    advantages = one.advantages(tokens)
    one.update(Step(0, tokens), advantages, one.proximal(tokens, advantages))
    steps = [stage.name for stage in one.graph.stages if stage.clock == "step" and stage.kind != "publish"]
    assert sorted(begun) == sorted(steps)
