"""Aggregation weights against sums written out."""

from __future__ import annotations

import numpy as np
import pytest
from areal_trainer.algorithms.policy import token_weights

TRAINED = np.array([0, 1, 1, 0, 1, 0, 0, 1, 1, 1], bool)
SEQUENCE = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3, 3])


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token", [0, 1 / 6, 1 / 6, 0, 1 / 6, 0, 0, 1 / 6, 1 / 6, 1 / 6]),
        ("sequence", [0, 1 / 6, 1 / 6, 0, 1 / 3, 0, 0, 1 / 9, 1 / 9, 1 / 9]),
        ("constant", [0, 1 / 60, 1 / 60, 0, 1 / 60, 0, 0, 1 / 60, 1 / 60, 1 / 60]),
    ],
)
def test_each_has_its_factor_and_an_untrained_sequence_counts_nowhere(aggregation, expected):
    np.testing.assert_allclose(token_weights(TRAINED, SEQUENCE, aggregation, 20), expected, rtol=1e-12)


def test_the_constant_must_be_given():
    with pytest.raises(ValueError, match="longest answer"):
        token_weights(TRAINED, SEQUENCE, "constant")


def test_a_mini_batch_without_tokens_is_no_fault():
    for aggregation in ("token", "sequence", "constant"):
        assert not token_weights(np.zeros(3, bool), np.zeros(3, np.int64), aggregation, 5).any()
