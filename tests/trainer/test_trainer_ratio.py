"""Importance ratios of tokens and sequences, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from areal_trainer.algorithms.ratio import LIMIT, importance_ratio, sequence_mean, sequence_sum

SEQUENCE = torch.tensor([9, 4, 9, 9, 4])
LOGPROBS = torch.tensor([-1.0, -2.0, -0.5, -3.0, -0.1], dtype=torch.float64)
PROXIMAL = torch.tensor([-1.1, -2.5, -0.4, -2.0, -0.3], dtype=torch.float64)


def test_sums_and_means_are_of_the_tokens_sequence():
    values = torch.tensor([1.0, 10.0, 2.0, 6.0, 30.0])
    assert sequence_sum(values, SEQUENCE).tolist() == [9.0, 40.0, 9.0, 9.0, 40.0]
    assert sequence_mean(values, SEQUENCE).tolist() == [3.0, 20.0, 3.0, 3.0, 20.0]


def test_the_tokens_ratio_is_the_quotient_of_probabilities():
    found = importance_ratio(LOGPROBS, PROXIMAL, SEQUENCE, "token")
    expected = [math.exp(float(a - b)) for a, b in zip(LOGPROBS, PROXIMAL, strict=True)]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_the_sequences_ratio_is_the_geometric_mean_and_shared():
    found = importance_ratio(LOGPROBS, PROXIMAL, SEQUENCE, "sequence")
    nine, four = math.exp((0.1 - 0.1 - 1.0) / 3), math.exp((0.5 + 0.2) / 2)
    assert found.tolist() == pytest.approx([nine, four, nine, nine, four], rel=1e-12)


def test_gspos_two_published_forms_have_the_same_gradient():
    """The ratio of the whole sequence, and sg(u_s)·π_θ/sg(π_θ) by token (arXiv 2507.18071, eq. 7 and 14)."""
    advantages = torch.tensor([1.0, -2.0, 1.0, 1.0, -2.0], dtype=torch.float64)
    gradients = []
    for by_token in (False, True):
        logprobs = LOGPROBS.clone().requires_grad_(True)
        ratio = torch.exp(sequence_mean(logprobs - PROXIMAL, SEQUENCE))
        if by_token:
            ratio = importance_ratio(logprobs, PROXIMAL, SEQUENCE, "sequence")
        (ratio * advantages).sum().backward()
        gradients.append(logprobs.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=0)


def test_an_absurd_ratio_is_limited():
    found = importance_ratio(torch.tensor([0.0, -500.0]), torch.tensor([-500.0, 0.0]), torch.tensor([0, 1]), "token")
    assert found.tolist() == pytest.approx([math.exp(LIMIT), math.exp(-LIMIT)])


def test_no_tokens_are_no_fault():
    none = torch.zeros(0)
    assert importance_ratio(none, none, torch.zeros(0, dtype=torch.int64), "sequence").shape == (0,)
