"""How many things there are: what was reached once is kept."""

from __future__ import annotations

import pytest

from tools.house import LIMITS, counts, is_participle


@pytest.mark.parametrize("name", LIMITS)
def test_a_count_stays_within_its_limit(name):
    assert counts()[name] <= LIMITS[name], "run tools/house.py --names: it says what is counted"


def test_a_participle_is_told_from_a_noun():
    assert all(map(is_participle, ("Asked", "Given", "Staged", "_Told")))
    assert not any(map(is_participle, ("Need", "FloorChanged", "Feed", "Answer", "StageRequest")))
