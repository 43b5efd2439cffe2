"""Log-linear proximal policy: its closed form and its ends."""

from __future__ import annotations

import math

import pytest
import torch
from areal_trainer.algorithms.ratio import log_linear


def test_ratio_and_weight_have_the_closed_forms_of_the_age():
    logprobs, behaviour = torch.tensor([-1.0] * 4), torch.tensor([-1.6] * 4, dtype=torch.float64)
    versions = torch.tensor([5, 4, 2, -1])
    proximal = log_linear(logprobs, behaviour, versions, step=5)
    for place, age in enumerate([1, 2, 4, 1]):
        assert math.exp(-1.0 - float(proximal[place])) == pytest.approx(math.exp(0.6 / age), rel=1e-12)
        assert math.exp(float(proximal[place]) + 1.6) == pytest.approx(math.exp((1 - 1 / age) * 0.6), rel=1e-12)


def test_it_is_a_constant():
    logprobs = torch.tensor([-1.0], requires_grad=True)
    assert not log_linear(logprobs, torch.tensor([-2.0]), torch.tensor([0]), step=3).requires_grad


def test_a_token_of_the_starting_weights_keeps_its_behaviour_however_impossible():
    behaviour = torch.tensor([-math.inf])
    assert log_linear(torch.tensor([-1.0]), behaviour, torch.tensor([3]), step=3).tolist() == [-math.inf]
