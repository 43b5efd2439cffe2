"""The model of one synchronous round: no way of dealing it passes the limit that stands beside it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import sync_pace
from order import LAWS, Setting

SMALL = Setting("light", 0, 0, servers=2, slots=4, batch_groups=4, group_size=4)


@given(st.integers(0, 1000), st.integers(1, 3), st.integers(1, 8), st.sampled_from(sorted(LAWS)))
@settings(max_examples=30, deadline=None)
def test_no_way_takes_less_than_the_limit(seed: int, servers: int, slots: int, law: str) -> None:
    setting = replace(SMALL, seed=seed, servers=servers, slots=slots, law=law)
    batch = sync_pace.drawn(setting)
    least = sync_pace.least_s(setting, batch)
    for way in ("round robin", "routed, longest first, moved", "shared, longest first"):
        assert float(sync_pace.complete_at(setting, batch, way).max()) >= least * (1 - 1e-9), way


@pytest.mark.parametrize(("servers", "slots"), [(1, 16), (2, 8), (4, 1)])
def test_the_limit_is_reached_where_all_answers_are_alike(servers: int, slots: int) -> None:
    setting = replace(SMALL, servers=servers, slots=slots)
    alike = np.full((4, 4), 500)
    batch = sync_pace.Round(alike, alike.mean(1), np.full((4, 4), 0.5))
    took = float(sync_pace.complete_at(setting, batch, "round robin").max())
    assert took == pytest.approx(sync_pace.least_s(setting, batch), rel=1e-9)
