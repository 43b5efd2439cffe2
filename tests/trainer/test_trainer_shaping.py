"""Reward shaping against the formula, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from areal_trainer.algorithms.advantages import OverlongPenalty, ShapingOptions, shape_rewards


def shape(rewards, tokens, **options):
    return shape_rewards(np.array(rewards, float), np.array(tokens), ShapingOptions(**options))


def test_by_default_nothing_changes():
    assert shape([1.0, -2.0], [3, 4]).tolist() == [1.0, -2.0]


def test_bias_comes_before_scale_and_clip_last():
    np.testing.assert_allclose(shape([1.0, 0.0, 9.0], [1, 1, 1], bias=-0.5, scale=10.0, clip=20.0), [5.0, -5.0, 20.0])


def test_the_overlong_penalty_grows_linearly_in_the_window_and_no_further():
    overlong = OverlongPenalty(max_tokens=100, window=20, factor=2.0)
    found = shape([1.0] * 5, [10, 80, 90, 100, 120], overlong=overlong)
    np.testing.assert_allclose(found, [1.0, 1.0, 1.0 - 1.0, 1.0 - 2.0, 1.0 - 2.0])


def test_a_window_longer_than_the_answer_is_refused():
    with pytest.raises(ValueError, match="window of 30"):
        OverlongPenalty(max_tokens=20, window=30)
