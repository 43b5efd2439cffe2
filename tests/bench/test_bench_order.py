"""The timed model of training orders: small runs end, keep the bound, and each group is trained once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from order import Run, Setting

SMALL = Setting("heavy", 2, 4, servers=2, slots=16, batch_groups=6, group_size=2, steps=16, warm_up=4)


@pytest.mark.parametrize("change", [{}, {"by_index": True, "ahead": 4}, {"bound": 2}, {"ahead": 0, "bound": 0}])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_group_is_older_than_the_bound_and_each_is_trained_once(change, seed):
    setting = replace(SMALL, seed=seed, **change)
    run = Run(setting).play()
    trained = [group.index for batch in run.trained for group in batch]
    assert len(trained) == len(set(trained)) == setting.steps * setting.batch_groups
    assert max(run.ages) <= setting.bound
    assert run.tokens_per_s > 0


def test_a_bound_above_the_lead_is_nearly_as_fast_as_none_and_one_at_the_lead_is_not():
    longer = replace(SMALL, steps=40, warm_up=16)
    paces = {bound: Run(replace(longer, bound=bound)).play().tokens_per_s for bound in (None, 8, 2)}
    assert paces[8] > 0.85 * paces[None]
    assert paces[2] < 0.85 * paces[8]


def test_admission_order_trains_groups_as_they_were_admitted():
    run = Run(replace(SMALL, by_index=True)).play()
    trained = [group.index for batch in run.trained for group in batch]
    assert trained == sorted(trained)
