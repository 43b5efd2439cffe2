"""Figures that a user's code names: their means, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from areal.errors import DataError
from areal.v1 import common_pb2 as common
from areal_trainer.figures import FigureMeans, checked, sample_means
from areal_trainer.hooks import HookFacts, try_hooks
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.floats(-1e6, 1e6)


def sample(**figures: float) -> common.Sample:
    return common.Sample(verdict=common.Verdict(figures=figures))


def test_a_figure_is_the_mean_over_the_samples_that_have_it():
    means = sample_means([sample(correct=1.0, turns=3), sample(correct=0.0), common.Sample()])
    assert means == {"correct": 0.5, "turns": 3.0}
    assert sample_means([]) == {}


@given(st.lists(st.tuples(st.integers(1, 50), NUMBERS), min_size=1, max_size=8))
def test_micro_batches_weigh_by_their_tokens_however_they_are_cut(parts):
    means = FigureMeans()
    for place, (tokens, value) in enumerate(parts):
        means.add({"gap": torch.tensor(value, dtype=torch.float64) if place % 2 else value}, tokens)
    tokens, values = zip(*parts, strict=True)
    assert means.means()["gap"] == pytest.approx(float(np.average(values, weights=tokens)), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("value", [float("nan"), None, "many", torch.ones(2), torch.tensor(float("inf"))])
def test_what_is_no_finite_number_is_refused_with_its_name(value):
    with pytest.raises(DataError, match="compute_advantages: the figure gap is"):
        checked("compute_advantages", {"gap": value})


@pytest.mark.parametrize("name", ["a b", "a/b", "", 3])
def test_a_name_that_no_chart_takes_is_refused(name):
    with pytest.raises(DataError, match="names a figure"):
        checked("compute_loss", {name: 1.0})
    with pytest.raises(DataError, match="names a figure"):
        FigureMeans().add({name: 1.0}, 1)


def test_hooks_that_name_a_wrong_figure_fail_before_the_first_step():
    def advantages(batch):
        batch.figures["spread"] = batch.rewards.std()
        return batch.rewards

    def loss(batch, outputs):
        batch.figures["gap"] = (outputs.logprobs - batch.behaviour).mean()
        return -outputs.logprobs * batch.advantages

    try_hooks(advantages, loss, 24, HookFacts())

    def wrong(batch):
        batch.figures["spread"] = batch.rewards
        return batch.rewards

    with pytest.raises(DataError, match="the figure spread"):
        try_hooks(wrong, None, 24, HookFacts())
