"""Whitening of advantages: levels, Bessel's correction, what is left alone."""

from __future__ import annotations

import numpy as np
from areal_trainer.algorithms.advantages import EPSILON, normalise_advantages

VALUES = np.array([1.0, 2.0, 4.0, 100.0, -3.0, 5.0])
MASK = np.array([1, 1, 1, 0, 1, 1], bool)
GROUPS = np.array([7, 7, 7, 7, 3, 3])


def test_none_changes_nothing():
    assert normalise_advantages(VALUES, MASK, GROUPS, "none") is VALUES


def test_batch_whitens_over_all_trained_tokens():
    chosen = VALUES[MASK]
    found = normalise_advantages(VALUES, MASK, GROUPS, "batch")
    np.testing.assert_allclose(found[MASK], (chosen - chosen.mean()) / (chosen.std(ddof=1) + EPSILON), rtol=1e-12)
    assert found[3] == 0.0


def test_group_whitens_each_group_by_itself():
    found = normalise_advantages(VALUES, MASK, GROUPS, "group")
    for group in (3, 7):
        part = MASK & (group == GROUPS)
        chosen = VALUES[part]
        np.testing.assert_allclose(found[part], (chosen - chosen.mean()) / (chosen.std(ddof=1) + EPSILON), rtol=1e-12)


def test_one_token_or_none_is_no_fault():
    assert normalise_advantages(np.array([5.0]), np.array([True]), np.array([0]), "batch").tolist() == [0.0]
    assert normalise_advantages(np.array([5.0]), np.array([False]), np.array([0]), "group").tolist() == [0.0]
