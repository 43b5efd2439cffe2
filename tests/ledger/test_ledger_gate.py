"""The gate lets generation run as far ahead as the job allows, and no further."""

from __future__ import annotations

from areal.ledger.gate import GatePolicy, Window, room
from hypothesis import given
from hypothesis import strategies as st

windows = st.builds(
    Window,
    next_step=st.integers(0, 40),
    waiting=st.integers(0, 100),
    leased=st.integers(0, 80),
    newest_version=st.integers(-1, 60),
)
policies = st.builds(
    GatePolicy,
    batch_groups=st.integers(1, 16),
    ahead=st.integers(0, 4),
    max_steps=st.integers(0, 60),
    max_concurrent=st.integers(1, 64),
)


@given(windows, policies)
def test_room_is_used_up_exactly(window: Window, policy: GatePolicy) -> None:
    admitted = room(window, policy)
    assert admitted >= 0
    groups = window.next_step * policy.batch_groups + window.waiting + admitted
    full = window.leased + admitted >= policy.max_concurrent
    assert not admitted or window.leased + admitted <= policy.max_concurrent
    last = min(window.newest_version + policy.ahead + 1, policy.max_steps)
    assert not admitted or groups <= last * policy.batch_groups
    assert full or groups >= last * policy.batch_groups


def test_without_a_lead_only_the_next_batch_may_start() -> None:
    policy = GatePolicy(batch_groups=4, ahead=0, max_steps=10, max_concurrent=100)
    assert room(Window(next_step=0, waiting=0, leased=0, newest_version=0), policy) == 4
    assert room(Window(next_step=0, waiting=4, leased=4, newest_version=0), policy) == 0
    assert room(Window(next_step=1, waiting=0, leased=0, newest_version=0), policy) == 0
    assert room(Window(next_step=1, waiting=0, leased=0, newest_version=1), policy) == 4


def test_nothing_starts_before_a_server_holds_weights() -> None:
    policy = GatePolicy(batch_groups=4, ahead=0, max_steps=10, max_concurrent=100)
    assert room(Window(next_step=0, waiting=0, leased=0, newest_version=-1), policy) == 0
