"""No legal job explodes: whatever the fields of `algorithm` and the rewards, an advantage stays within its bound."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from areal.errors import DataError
from areal.spec.algorithm import ExpertFields
from areal.spec.block import fields_of
from areal.spec.check import RULES
from areal.spec.job import JobSpec, RLJob
from areal.spec.problems import SpecError
from areal.spec.resolved_algorithm import NAMES, resolve
from areal.spec.rules import Facts, Severity
from areal_trainer.algorithms.advantages import TokenColumns, estimate_advantages, shape_rewards
from areal_trainer.data.batch import TokenBatch
from areal_trainer.options import advantage_options
from pydantic import ValidationError

CHOICES: dict[str, list[Any]] = {
    "rewardBias": [-0.5, 1.0], "rewardScale": [-2.0, 0.0, 10.0], "rewardClip": [0.5, 20.0],
    "overlong": [{"maxTokens": 4, "window": 3, "factor": 2.0}, {"window": 1}],
    "truncated": ["neutral", "mask"], "zeroVariance": ["keep", "mask", "filter"],
    "advantageMean": ["group", "batch", "none"], "advantageStd": ["group", "batch", "none", "mean"],
    "advantageUnbiased": [True], "advantageEpsilon": [1e-12, 1e-3], "leaveOneOut": [True, False],
    "advantageNormalize": ["batch", "group", "none"], "advantageClip": [0.5, 5.0], "gamma": [0.5, 0.99],
    "lambda": [0.0, 0.9], "gaeLevel": ["turn"], "critic": [{}], "teacher": [{"path": "t", "coefficient": 0.5}],
    "kl": [{"coefficient": 0.3, "as": "reward"}, {"coefficient": 3.0, "as": "reward", "estimator": "k3"}],
    "importanceLevel": ["sequence"], "surrogate": ["none", "dppo"],
}  # fmt: skip
REFUSALS = [rule for rule in RULES if rule.severity is Severity.ERROR and rule.field.startswith("spec.algorithm")]
HEAD = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "a"}}


def drawn(chance: random.Random) -> JobSpec | None:
    """A job with some fields of its algorithm given; None where it is refused."""
    given = {field: chance.choice(values) for field, values in CHOICES.items() if chance.random() < 0.2}
    advanced = {field: given.pop(field) for field in list(given) if field in fields_of(ExpertFields)}
    name = chance.choice(list(NAMES))
    if name == "OnPolicyDistillation":
        given.setdefault("teacher", {"path": "t"})
    algorithm = {"name": name, "groupSize": 8, "batchSize": 4, "maxSteps": 4, **given, "advanced": advanced}
    spec = {"model": {"path": "m"}, "dataset": {"train": {"jsonl": "t.jsonl"}}, "algorithm": algorithm}
    spec["reward"] = {"verifier": "exact"}
    spec["rollout"] = {"sampling": {"maxNewTokens": 9}}
    try:
        job = RLJob.model_validate({**HEAD, "spec": spec})
    except (ValidationError, SpecError):
        return None
    return None if any(rule.broken(job, Facts()) for rule in REFUSALS) else job.spec


def rewards(random_: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    flat = float(random_.choice([0.0, 0.1, 1.0, -1.0, 1e6, 1e-12]))
    kinds = [
        np.full(count, flat),
        np.full(count, flat) - 1e-9 * (random_.random(count) < 0.2),
        np.where(random_.random(count) < 0.5, 0.0, 1e6),
        random_.integers(0, 2, count).astype(float),
        random_.normal(size=count) * 10.0 ** random_.integers(-9, 9),
        np.where(random_.random(count) < 0.1, 1e150, 0.0),
    ]
    return kinds[int(random_.integers(len(kinds)))]


def made_up(random_: np.random.Generator) -> TokenBatch:
    """Up to four groups of up to eight samples of up to three sequences; some cut at a deadline or by length."""
    places = [
        (group, index)
        for group in range(int(random_.integers(1, 5)))
        for index in range(int(random_.integers(1, 9)))
        for _ in range(int(random_.choice([1, 1, 1, 3])))
    ]
    lengths = random_.integers(2, 9, len(places))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    total = int(offsets[-1])
    mask = random_.random(total) < 0.7
    return TokenBatch(
        token_ids=np.zeros(total, np.int64),
        behaviour_logprobs=np.where(mask, -random_.exponential(5.0, total), 0.0).astype(np.float32),
        loss_mask=mask,
        versions=np.where(mask, 0, -1).astype(np.int64),
        offsets=offsets,
        group_ids=np.array([group for group, _ in places], np.int64),
        sample_indices=np.array([index for _, index in places], np.int64),
        rewards=rewards(random_, len(places)),
        truncated=random_.random(len(places)) < 0.2,
    )


@dataclass(frozen=True)
class Sizes:
    """What the bound depends on: samples of the largest group and of the batch, sequences of a sample, tokens."""

    group: int
    smallest: int  # of the groups with more than one sample
    batch: int
    sequences: int
    tokens: int
    longest: int


def sizes(tokens: TokenBatch) -> Sizes:
    counted, actions = tokens.has_signal(), tokens.trainable()
    pairs, each = np.unique(np.stack([tokens.group_ids, tokens.sample_indices], 1)[counted], axis=0, return_counts=True)
    groups = np.bincount(pairs[:, 0]) if len(pairs) else np.zeros(1, int)
    several = groups[groups > 1]
    return Sizes(
        int(groups.max()),
        int(several.min()) if several.size else 2,
        len(pairs),
        int(each.max(initial=1)),
        int(actions.sum()),
        int(np.bincount(tokens.sequence_of[actions], minlength=1).max()),
    )


def bound(spec: JobSpec, tokens: TokenBatch) -> float:
    """What docs/deviations.md promises of |A|."""
    meant, advanced, size = resolve(spec), spec.algorithm.advanced, sizes(tokens)
    lengths = np.bincount(tokens.sequence_of[tokens.trainable()], minlength=tokens.sequences)
    shaped = shape_rewards(tokens.rewards, lengths, advantage_options(spec).shaping)[tokens.has_signal()]
    if meant.advantage_std == "mean":
        most = float(max(size.group * size.sequences - 1, 1))
    elif meant.advantage_std == "none":
        apart = meant.advantage_mean != "none" and len(shaped) > 0
        most = float(np.ptp(shaped) if apart else np.abs(shaped).max(initial=0.0))
    else:
        most = math.sqrt((size.group if meant.advantage_std == "group" else size.batch) * size.sequences)
    if meant.leave_one_out:
        most *= size.smallest / (size.smallest - 1)
    if meant.kl is not None and meant.kl.where == "reward":
        decay = 0.0 if advanced.gae_level == "turn" else advanced.gamma * advanced.lam
        most += 10 * meant.kl.coefficient * sum(decay**k for k in range(max(size.longest, 1)))
    if meant.advantage_normalize != "none":
        most = math.sqrt(max(size.tokens, 1))
    elif meant.critic is not None:
        most = math.inf
    most = min(most, advanced.advantage_clip or (20.0 if meant.critic is not None else math.inf))
    return most + (20 * spec.algorithm.teacher.coefficient if spec.algorithm.teacher is not None else 0.0)


def passes(random_: np.random.Generator, tokens: TokenBatch, spec: JobSpec) -> TokenColumns:
    """Other models' log-probabilities, at times far away, and a critic that is out of its mind."""

    def logprobs() -> np.ndarray[Any, Any]:
        return (tokens.behaviour_logprobs - random_.exponential(random_.choice([0.1, 50]), tokens.tokens)).astype("f4")

    critic = resolve(spec).critic is not None
    values = random_.normal(size=tokens.tokens) * 10.0 ** random_.integers(-2, 9) if critic else None
    return TokenColumns(
        logprobs(), logprobs(), logprobs(), values, random_.normal(size=tokens.sequences) if critic else None
    )


def explore(count: int, seed: int) -> tuple[int, set[str]]:
    """How many of `count` drawn jobs were accepted, and the names among them; each was within its bound."""
    chance, random_ = random.Random(seed), np.random.default_rng(seed)
    accepted, names, negative = 0, set(), set()
    for number in range(count):
        spec, tokens = drawn(chance), made_up(random_)
        if spec is None:
            continue
        columns = passes(random_, tokens, spec)
        try:
            found = estimate_advantages(tokens, advantage_options(spec), columns)
        except DataError:
            negative.add(resolve(spec).advantage_std)
            continue
        accepted, names = accepted + 1, names | {spec.algorithm.name}
        assert np.isfinite(found.tokens).all(), (number, spec.algorithm)
        assert not found.tokens[~tokens.trainable()].any()
        largest = float(np.abs(found.tokens[found.trained[tokens.sequence_of]]).max(initial=0.0))
        assert largest <= bound(spec, tokens) * (1 + 1e-6) + 1e-12, (number, spec.algorithm, tokens.rewards)
    assert negative == {"mean"}, "nothing else may refuse a reward"
    return accepted, names


def test_advantages_of_any_accepted_job_stay_within_the_stated_bound():
    accepted, names = explore(2000, seed=1)
    assert names == set(NAMES)
    assert accepted > 600


@pytest.mark.component
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_so_do_those_of_a_hundred_thousand():
    accepted, names = explore(100_000, seed=2)
    assert names == set(NAMES)
    assert accepted > 25_000


def test_a_bound_that_is_too_small_would_be_noticed(monkeypatch):
    monkeypatch.setitem(globals(), "bound", lambda spec, tokens: 1.0)
    with pytest.raises(AssertionError):
        explore(200, seed=1)
