"""The gate lets start what can be trained young enough, and no more."""

from __future__ import annotations

from areal.ledger.gate import GatePolicy, Window, floor, may_sample, room
from hypothesis import given
from hypothesis import strategies as st

windows = st.builds(
    Window, next_rank=st.integers(0, 400), leased=st.integers(0, 80), newest_version=st.integers(-1, 60)
)
policies = st.builds(
    GatePolicy,
    batch_groups=st.integers(1, 16),
    max_staleness=st.integers(0, 4),
    max_steps=st.integers(0, 60),
    max_concurrent=st.integers(1, 64),
)


@given(windows, policies)
def test_every_admitted_group_may_be_sampled_by_the_newest_server(window: Window, policy: GatePolicy) -> None:
    for rank in range(window.next_rank, window.next_rank + room(window, policy)):
        assert may_sample(floor(rank, policy.batch_groups, policy.max_staleness), window.newest_version)
        assert rank < policy.batch_groups * policy.max_steps


@given(windows, policies)
def test_room_is_used_up_exactly(window: Window, policy: GatePolicy) -> None:
    admitted = room(window, policy)
    assert admitted >= 0
    first_left_out = window.next_rank + admitted
    full = window.leased + admitted >= policy.max_concurrent
    too_young = not may_sample(floor(first_left_out, policy.batch_groups, policy.max_staleness), window.newest_version)
    assert full or too_young or first_left_out >= policy.batch_groups * policy.max_steps


def test_without_staleness_only_the_next_batch_may_start() -> None:
    policy = GatePolicy(batch_groups=4, max_staleness=0, max_steps=10, max_concurrent=100)
    assert room(Window(next_rank=0, leased=0, newest_version=0), policy) == 4
    assert room(Window(next_rank=4, leased=4, newest_version=0), policy) == 0
    assert room(Window(next_rank=4, leased=0, newest_version=1), policy) == 4


def test_nothing_starts_before_a_server_holds_weights() -> None:
    policy = GatePolicy(batch_groups=4, max_staleness=0, max_steps=10, max_concurrent=100)
    assert room(Window(next_rank=0, leased=0, newest_version=-1), policy) == 0
