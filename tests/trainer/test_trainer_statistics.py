"""What the figures of a step are means of."""

from __future__ import annotations

import pytest
import torch
from areal_trainer.algorithms.policy import PolicyOptions, policy_loss
from areal_trainer.algorithms.statistics import LossStatistics


def test_figures_are_means_over_tokens_not_means_of_means():
    statistics = LossStatistics(torch.device("cpu"))
    for values in ([1.0, 2.0, 3.0], [10.0]):
        theta = torch.tensor(values, dtype=torch.float64)
        zero = torch.zeros_like(theta)
        terms = policy_loss(zero, zero, zero, theta, torch.arange(len(values)), PolicyOptions())
        statistics.add(terms, zero, zero, zero, theta, torch.zeros_like(theta, dtype=torch.bool))
    figures = statistics.figures()
    assert figures.tokens == 4
    assert figures.entropy == pytest.approx(4.0)
    assert figures.loss == pytest.approx(-4.0)
    assert figures.logprob_mismatch is None
