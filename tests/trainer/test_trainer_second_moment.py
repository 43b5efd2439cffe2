"""M2PO's mask against a search over all prefixes of the sorted moments."""

from __future__ import annotations

import numpy as np
from areal_trainer.algorithms.rejection import second_moment_mask
from hypothesis import given
from hypothesis import strategies as st


@given(
    distances=st.lists(st.floats(-3, 3), min_size=1, max_size=30), threshold=st.sampled_from([0.0001, 0.04, 0.5, 100.0])
)
def test_the_fewest_largest_go_until_the_mean_of_the_rest_is_below(distances, threshold):
    behaviour = np.array(distances)
    kept = second_moment_mask(np.zeros(len(behaviour)), behaviour, threshold)
    moments = sorted((behaviour**2).tolist(), reverse=True)
    dropped = next((k for k in range(len(moments)) if np.mean(moments[k:]) < threshold), len(moments) - 1)
    assert int((~kept).sum()) == dropped
    assert sorted((behaviour[kept] ** 2).tolist(), reverse=True) == moments[dropped:]


def test_what_is_not_finite_goes_and_nothing_else_suffers():
    behaviour = np.array([0.1, -np.inf, np.nan, 0.05])
    assert second_moment_mask(np.zeros(4), behaviour, 0.04).tolist() == [True, False, False, True]
    assert not second_moment_mask(np.zeros(1), np.array([np.inf]), 0.04).any()
