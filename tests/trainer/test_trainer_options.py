"""No field of the algorithm is dead: each, when it is flipped, changes the loss of a made-up batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from areal.spec.algorithm import ExpertFields, PolicyGradient
from areal.spec.block import blocks_in, fields_of
from areal.spec.job import RLJob
from areal.spec.resolved_algorithm import NAMES, resolve
from areal_trainer.algorithms.advantages import TokenColumns, estimate_advantages
from areal_trainer.algorithms.statistics import LossStatistics
from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import MicroBatch
from areal_trainer.objective import PolicyObjective
from areal_trainer.options import advantage_options, critic_options, objective_options
from areal_trainer.settings import TrainerPaths, TrainerSettings
from support.trainer_parts import batch

NO_LOSS = {"groupSize", "batchSize", "maxSteps", "maxStaleness"}  # they decide the batch's size, and which

SEVERAL = {"miniBatches": 2}
KL = {"coefficient": 0.5, "as": "loss"}
DELTA = {"clipLow": 0.003, "clipHigh": 0.003}
FLIPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # field → (a job's fields, the same with it flipped)
    "name": ({}, {"name": "DrGRPO"}),
    "rewardBias": ({"advantageMean": "none"}, {"advantageMean": "none", "rewardBias": 1}),
    "rewardScale": ({"advantageStd": "none"}, {"advantageStd": "none", "rewardScale": 3}),
    "rewardClip": ({"advantageStd": "none"}, {"advantageStd": "none", "rewardClip": 0.3}),
    "overlong": ({}, {"overlong": {"maxTokens": 6, "window": 4}}),
    "truncated": ({}, {"truncated": "neutral"}),
    "advantageMean": ({}, {"advantageMean": "batch"}),
    "advantageStd": ({}, {"advantageStd": "batch"}),
    "advantageUnbiased": ({}, {"advantageUnbiased": True}),
    "advantageEpsilon": ({}, {"advantageEpsilon": 0.1}),
    "leaveOneOut": ({"advantageStd": "none"}, {"advantageStd": "none", "leaveOneOut": True}),
    "zeroVariance": ({}, {"zeroVariance": "keep"}),
    "advantageNormalize": ({}, {"advantageNormalize": "batch"}),
    "advantageClip": ({}, {"advantageClip": 0.5}),
    "gamma": ({}, {"gamma": 0.9}),
    "gaeLevel": ({"gamma": 0.9}, {"gamma": 0.9, "gaeLevel": "turn"}),
    "lambda": ({"name": "PPO"}, {"name": "PPO", "lambda": 0.9}),
    "critic": ({"advantageMean": "none"}, {"advantageMean": "none", "critic": {}}),
    "importanceLevel": (SEVERAL, {**SEVERAL, "importanceLevel": "sequence"}),
    "surrogate": (SEVERAL, {**SEVERAL, "surrogate": "sapo"}),
    "clipLow": (SEVERAL, {**SEVERAL, "clipLow": 0.05, "clipHigh": 0.2}),
    "clipHigh": (SEVERAL, {**SEVERAL, "clipHigh": 0.28}),
    "dualClip": (SEVERAL, {**SEVERAL, "dualClip": 1.05}),
    "tauPositive": ({"surrogate": "sapo", **SEVERAL}, {"surrogate": "sapo", "tauPositive": 2.0, **SEVERAL}),
    "tauNegative": ({"surrogate": "sapo", **SEVERAL}, {"surrogate": "sapo", "tauNegative": 2.0, **SEVERAL}),
    "m2Threshold": ({"proximal": "recompute"}, {"m2Threshold": 0.01}),
    "divergence": ({"surrogate": "dppo", **DELTA}, {"surrogate": "dppo", "divergence": "binaryKl", **DELTA}),
    "quadratic": ({"surrogate": "dppo"}, {"surrogate": "dppo", "quadratic": 0.1}),
    "miniBatches": ({}, SEVERAL),
    "decoupled": ({}, {"decoupled": False}),
    "proximal": (SEVERAL, {**SEVERAL, "proximal": "loglinear"}),
    "weight": ({}, {"weight": "sequenceProduct"}),
    "truncate": ({}, {"truncate": {"upper": 1.1}}),
    "rejection": ({}, {"rejection": {"upper": 1.1}}),
    "rejections": ({}, {"rejections": [{"metric": "k2", "level": "sequence", "upper": 0.05}]}),
    "teacher": ({"proximal": "recompute"}, {"teacher": {"path": "t"}}),
    "kl": ({}, {"kl": KL}),
    "entropyCoefficient": ({}, {"entropyCoefficient": 0.1}),
    "lossAggregation": ({}, {"lossAggregation": "sequence"}),
}
REJECTS = {"rejections": [{"upper": 1.2, "level": "sequence"}]}
OVERLONG = {"maxTokens": 6, "window": 4}
INNER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # block.field, as above
    "rejection.metric": ({"rejections": [{"upper": 1.2}]}, {"rejections": [{"metric": "k3", "upper": 1.2}]}),
    "rejection.level": (REJECTS, {"rejections": [{"upper": 1.2}]}),
    "rejection.aggregate": (REJECTS, {"rejections": [{"upper": 1.2, "level": "sequence", "aggregate": "max"}]}),
    "rejection.upper": ({}, {"rejection": {"upper": 1.1}}),
    "rejection.lower": ({"rejections": [{"upper": 9}]}, {"rejections": [{"upper": 9, "lower": 0.95}]}),
    "truncate.upper": ({"truncate": {"upper": 2}}, {"truncate": {"upper": 1.1}}),
    "truncate.lower": ({"truncate": {"upper": 2}}, {"truncate": {"upper": 2, "lower": 1.0}}),
    "overlong.maxTokens": ({"overlong": OVERLONG}, {"overlong": {**OVERLONG, "maxTokens": 7}}),
    "overlong.window": ({"overlong": OVERLONG}, {"overlong": {**OVERLONG, "window": 2}}),
    "overlong.factor": ({"overlong": OVERLONG}, {"overlong": {**OVERLONG, "factor": 0.5}}),
    "kl.coefficient": ({"kl": KL}, {"kl": {**KL, "coefficient": 0.1}}),
    "kl.as": ({"kl": KL}, {"kl": {**KL, "as": "reward"}}),
    "kl.estimator": ({"kl": KL}, {"kl": {**KL, "estimator": "k3"}}),
    "teacher.coefficient": ({"teacher": {"path": "t"}}, {"teacher": {"path": "t", "coefficient": 0.5}}),
}
VALUES = [  # of fields that have more than two
    ({"kl": KL}, {"kl": {**KL, "estimator": "k3u"}}),
    ({"truncated": "neutral"}, {"truncated": "mask"}),
    ({"lossAggregation": "sequence"}, {"lossAggregation": "constant"}),
    ({"surrogate": "none", **SEVERAL}, {"surrogate": "cispo", **SEVERAL}),
    ({"surrogate": "none", **SEVERAL}, {"surrogate": "dppo", **SEVERAL}),
    ({"advantageStd": "none"}, {"advantageStd": "mean"}),
    (REJECTS, {"rejections": [{"lower": 0.9, "level": "sequence", "aggregate": "min"}]}),
]
CRITIC = {  # they reach the critic's update, which test_trainer_critic and test_trainer_value_loss measure
    "learningRate": 1e-3, "weightDecay": 0.1, "valueClip": 0.2, "loss": "huber", "warmupSteps": 3, "bootstrap": False,
}  # fmt: skip
WHERE = {
    "kl.placement",
    "teacher.placement",
    "teacher.path",
    "teacher.endpoint",
}  # the same losses: test_trainer_offload


def made_up() -> TokenBatch:
    """Four groups, one of them flat, one sample cut by length; versions 0 to 2."""
    tokens = batch(4, 4, seed=3)
    rewards = np.array([1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0], float)
    truncated = np.zeros(16, bool)
    truncated[[1, 9]] = True
    versions = np.where(tokens.versions >= 0, np.arange(tokens.tokens) % 3, -1)
    return replace(tokens, rewards=rewards, truncated=truncated, versions=versions)


def spec_of(given: dict[str, Any]) -> Any:
    advanced = {field: value for field, value in given.items() if field in fields_of(ExpertFields)}
    plain = {field: value for field, value in given.items() if field not in advanced}
    algorithm = {"name": "GRPO", "groupSize": 4, "batchSize": 4, "maxSteps": 4, **plain, "advanced": advanced}
    if algorithm["name"] == "OnPolicyDistillation":
        algorithm["teacher"] = {"path": "t"}
    spec = {"model": {"path": "m"}, "dataset": {"train": {"jsonl": "t.jsonl"}}, "algorithm": algorithm}
    spec["rollout"] = {"sampling": {"maxNewTokens": 9}}
    head = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "a"}}
    return RLJob.model_validate({**head, "spec": spec}).spec


def loss_of(given: dict[str, Any], order: np.ndarray[Any, Any] | None = None, cuts: int = 1) -> tuple[float, Any]:
    """The loss at step 2 and its gradient by token, of a batch whose passes differ a little from its behaviour."""
    spec, tokens = spec_of(given), made_up()
    random = np.random.default_rng(5)
    behaviour = tokens.behaviour_logprobs
    passes = (np.float32(behaviour + random.normal(0, 0.3, tokens.tokens)) for _ in range(4))
    logprobs, proximal, reference, teacher = passes
    columns = TokenColumns(proximal=proximal, reference=reference, teacher_logprobs=teacher)
    if resolve(spec).critic is not None:
        columns = replace(columns, values=random.normal(0.5, 0.3, tokens.tokens), bootstrap=np.zeros(16))
    advantages = estimate_advantages(tokens, advantage_options(spec), columns)
    options = objective_options(spec)
    objective = PolicyObjective(
        tokens,
        advantages,
        options,
        step=2,
        device=torch.device("cpu"),
        proximal=torch.from_numpy(proximal) if options.proximal == "recompute" else None,
        reference=torch.from_numpy(reference),
    )
    trained = tokens.trainable() & advantages.trained[tokens.sequence_of]
    loss = objective.of(trained, LossStatistics(torch.device("cpu")))
    current = torch.from_numpy(logprobs).requires_grad_(True)
    total = torch.zeros(())
    places = np.flatnonzero(trained)
    owners = np.unique(tokens.sequence_of[places])
    for part in np.array_split(owners if order is None else owners[order[order < len(owners)]], cuts):
        place = torch.from_numpy(np.concatenate([places[tokens.sequence_of[places] == s] for s in part]))
        nothing = torch.zeros(0)
        micro = MicroBatch(*[nothing] * 7, token_index=place)
        total = total + loss(current[place], 2.0 + 0.1 * current[place], micro)
    total.backward()
    return float(total.detach()), current.grad


def test_every_field_has_a_flip():
    assert set(FLIPS) | NO_LOSS == ({*fields_of(PolicyGradient), *fields_of(ExpertFields)} - {"advanced"})


@pytest.mark.parametrize("field", FLIPS)
def test_flipping_a_field_changes_the_loss_or_its_gradient(field):
    before, after = (loss_of(given) for given in FLIPS[field])
    assert before[0] != after[0] or not torch.equal(before[1], after[1])
    assert np.isfinite(after[0])


def test_every_field_of_a_block_has_a_flip():
    every = {**fields_of(PolicyGradient), **fields_of(ExpertFields)}
    blocks = {name: blocks_in(field.annotation) for name, field in every.items() if name != "advanced"}
    fields = {f"{name}.{inner}" for name, found in blocks.items() for block in found for inner in fields_of(block)}
    assert set(INNER) | {f"critic.{name}" for name in CRITIC} | WHERE == fields


@pytest.mark.parametrize(("before", "after"), [*INNER.values(), *VALUES], ids=str)
def test_so_does_what_is_inside_a_block(before, after):
    assert loss_of(before)[0] != loss_of(after)[0]


@pytest.mark.parametrize("field", CRITIC)
def test_every_field_of_a_critic_reaches_its_update(field):
    def of(critic: dict[str, Any]) -> Any:
        spec = spec_of({"name": "PPO", "critic": critic})
        settings = TrainerSettings("a", "u", spec, TrainerPaths(*[Path()] * 16), "", "", None, "")
        return critic_options(spec), settings.critic_engine

    assert of({}) != of({field: CRITIC[field]})


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_the_same_over_micro_batches_and_the_order_of_samples(name):
    given = {"name": name, "miniBatches": 2, "entropyCoefficient": 0.1, "weight": "sequenceMean"}
    whole, gradient = loss_of(given)
    order = np.random.default_rng(1).permutation(16)
    parts, again = loss_of(given, order, cuts=5)
    assert parts == pytest.approx(whole, rel=1e-6, abs=1e-7)
    torch.testing.assert_close(again, gradient, rtol=1e-6, atol=1e-8)
    assert float(gradient.abs().sum()) > 0
