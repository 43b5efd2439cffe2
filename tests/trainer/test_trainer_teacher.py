"""On-policy distillation: the teacher's part of the advantages, against the exact gradient of the reverse KL."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from areal_trainer.algorithms.advantages import (
    AdvantageOptions,
    ShapingOptions,
    TokenColumns,
    estimate_advantages,
    taught,
    teacher_kl,
)
from areal_trainer.algorithms.baseline import BaselineOptions
from areal_trainer.algorithms.policy import PolicyOptions, policy_loss
from support.trainer_parts import batch

VOCABULARY = 7
PURE = AdvantageOptions(ShapingOptions(scale=0.0), BaselineOptions("none", "none", mask_zero_variance=False), teacher=1)


def logits(seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1.5, VOCABULARY))


def log_softmax(values: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(values, -1)


def reverse_kl(student: torch.Tensor, teacher: torch.Tensor) -> float:
    ours, theirs = log_softmax(student), log_softmax(teacher)
    return float((ours.exp() * (ours - theirs)).sum())


def by_differences(student: torch.Tensor, teacher: torch.Tensor, h: float = 1e-6) -> torch.Tensor:
    """The gradient of the reverse KL by central finite differences, float64."""
    found = torch.zeros_like(student)
    for at in range(len(student)):
        step = torch.zeros_like(student)
        step[at] = h
        found[at] = (reverse_kl(student + step, teacher) - reverse_kl(student - step, teacher)) / (2 * h)
    return found


def expected_gradient(student: torch.Tensor, sampler: torch.Tensor, teacher: torch.Tensor, c: float) -> torch.Tensor:
    """Of the policy's loss over every token of the vocabulary, each as often as `sampler` draws it."""
    leaf = student.clone().requires_grad_(True)
    ours, behaviour, theirs = log_softmax(leaf), log_softmax(sampler), log_softmax(teacher)
    policy = ours.detach()
    actions = np.ones(VOCABULARY, np.bool_)
    advantages = taught(np.zeros(VOCABULARY), actions, policy.numpy(), theirs.numpy(), c)
    terms = policy_loss(
        ours, policy, behaviour, torch.from_numpy(advantages), torch.arange(VOCABULARY), PolicyOptions(rejection=())
    )
    (behaviour.exp() * terms.loss).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("c", [1.0, 0.25])
def test_the_expected_gradient_is_the_reverse_kls(c):
    student, teacher = logits(0), logits(1)
    exact = by_differences(student, teacher)
    torch.testing.assert_close(expected_gradient(student, student, teacher, c), c * exact, rtol=0, atol=1e-8)


def test_tokens_of_an_older_policy_are_weighed_to_the_same_gradient():
    student, older, teacher = logits(0), logits(2), logits(1)
    exact = by_differences(student, teacher)
    torch.testing.assert_close(expected_gradient(student, older, teacher, 1.0), exact, rtol=0, atol=1e-8)


def test_the_gap_as_a_loss_with_its_gradient_would_teach_nothing():
    student = logits(0).requires_grad_(True)
    ours = log_softmax(student)
    (ours.detach().exp() * (ours - log_softmax(logits(1)))).sum().backward()
    torch.testing.assert_close(student.grad, torch.zeros_like(student), rtol=0, atol=1e-12)


def passes(seed: int = 4) -> tuple[TokenColumns, np.ndarray]:
    tokens = batch(3)
    random = np.random.default_rng(seed)
    ours, theirs = (np.float32(random.normal(-2, 0.7, tokens.tokens)) for _ in range(2))
    return TokenColumns(proximal=ours, teacher_logprobs=theirs), ours.astype(np.float64) - theirs.astype(np.float64)


def test_without_rewards_an_advantage_is_the_gap_of_its_own_token_and_every_group_trains():
    tokens = replace(batch(3), rewards=np.ones(12))
    columns, gap = passes()
    found = estimate_advantages(tokens, PURE, columns)
    actions = tokens.trainable()
    np.testing.assert_allclose(found.tokens[actions], -gap[actions], rtol=1e-12)
    assert not found.tokens[~actions].any()
    assert found.trained.all()
    assert teacher_kl(actions, columns.proximal, columns.teacher_logprobs) == pytest.approx(gap[actions].mean(), 1e-12)


def test_a_later_token_changes_no_earlier_advantage():
    tokens, (columns, _) = batch(3), passes()
    theirs = columns.teacher_logprobs.copy()
    last = int(tokens.offsets[1]) - 1
    theirs[last] -= 5.0
    before = estimate_advantages(tokens, PURE, columns).tokens
    after = estimate_advantages(tokens, PURE, replace(columns, teacher_logprobs=theirs)).tokens
    assert np.flatnonzero(before != after).tolist() == [last]


def test_beside_rewards_the_teachers_part_is_not_whitened_with_them():
    tokens, (columns, gap) = batch(3), passes()
    rewarded = AdvantageOptions(normalise="batch")
    alone = estimate_advantages(tokens, rewarded)
    both = estimate_advantages(tokens, replace(rewarded, teacher=0.5), columns)
    actions = tokens.trainable()
    np.testing.assert_allclose((both.tokens - alone.tokens)[actions], -0.5 * gap[actions], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(both.trained, alone.trained)


def test_what_it_is_made_of_must_be_there():
    with pytest.raises(ValueError, match="a teacher needs its own and the proximal log-probabilities"):
        estimate_advantages(batch(3), PURE)


def test_no_trained_token_has_no_figure():
    nothing = np.zeros(3, np.bool_)
    assert teacher_kl(nothing, np.zeros(3, np.float32), np.zeros(3, np.float32)) is None


def test_one_impossible_token_weighs_no_more_than_twenty():
    advantages, actions = np.zeros(3), np.array([True, True, False])
    ours, theirs = np.array([-1.0, -90.0, -90.0], np.float32), np.array([-200.0, 0.0, 0.0], np.float32)
    assert taught(advantages, actions, ours, theirs, 0.5).tolist() == [-10.0, 10.0, 0.0]
