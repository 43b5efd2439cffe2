"""The critic's loss: clip, Huber, gradients."""

from __future__ import annotations

import pytest
import torch
from areal_trainer.algorithms.policy import ValueOptions, value_loss

VALUES = torch.tensor([0.0, 1.0, 2.0, -3.0, 30.0], dtype=torch.float64)
OLD = torch.tensor([0.1, 0.2, 1.9, 0.0, 29.9], dtype=torch.float64)
RETURNS = torch.tensor([1.0, 1.0, 0.0, -5.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["mse", "huber"])
def test_the_larger_of_both_errors_counts(kind):
    def h(x):
        return x * x / 2 if kind == "mse" or abs(x) < 10 else 10 * (abs(x) - 5)

    loss, clipped = value_loss(VALUES, OLD, RETURNS, ValueOptions(clip=0.5, kind=kind))
    for place in range(5):
        value, old, target = float(VALUES[place]), float(OLD[place]), float(RETURNS[place])
        near = old + min(max(value - old, -0.5), 0.5)
        assert float(loss[place]) == pytest.approx(max(h(value - target), h(near - target)), rel=1e-12)
        assert bool(clipped[place]) == (h(near - target) > h(value - target))


def test_a_wide_clip_is_none():
    wide, _ = value_loss(VALUES, OLD, RETURNS, ValueOptions(clip=1e9))
    free, clipped = value_loss(VALUES, OLD, RETURNS, ValueOptions(clip=None))
    torch.testing.assert_close(wide, free, rtol=1e-12, atol=0)
    assert not clipped.any()


def test_a_value_that_moved_far_enough_toward_its_return_has_no_gradient():
    values = torch.tensor([1.0, 1.0], requires_grad=True)
    loss, _ = value_loss(values, torch.tensor([0.0, 0.9]), torch.tensor([2.0, 2.0]), ValueOptions(clip=0.5))
    loss.sum().backward()
    assert values.grad.tolist() == [0.0, -1.0]
