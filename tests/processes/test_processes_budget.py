"""How often, and after how long, a child starts again."""

from __future__ import annotations

from areal.processes.core import Budget, BudgetPolicy, RestartGrant, RestartsExhausted
from hypothesis import given
from hypothesis import strategies as st

POLICY = BudgetPolicy(max_restarts=3, window_s=100.0, first_wait_s=0.1, max_wait_s=0.3)


def test_waits_double_up_to_the_most():
    budget = Budget(POLICY)
    assert [budget.ask(now, "died") for now in (0.0, 1.0, 2.0)] == [
        RestartGrant(0.1),
        RestartGrant(0.2),
        RestartGrant(0.3),
    ]


def test_the_refusal_lists_what_used_the_budget():
    budget = Budget(POLICY)
    for now, reason in enumerate(("killed by SIGKILL", "exit 75", "exit 75")):
        budget.ask(float(now), reason)
    refused = budget.ask(4.0, "exit 1")
    assert isinstance(refused, RestartsExhausted)
    assert refused.reason == ("exit 1; all 3 restarts in 100 s are used (1× killed by SIGKILL; 2× exit 75)")


def test_a_refusal_says_the_same_reason_once_and_a_long_one_short():
    budget, long = Budget(POLICY), "x" * 200
    for now in range(3):
        budget.ask(float(now), long)
    same, other = budget.ask(4.0, long), budget.ask(5.0, "exit 1")
    assert isinstance(same, RestartsExhausted)
    assert isinstance(other, RestartsExhausted)
    assert same.reason == f"{long}; all 3 restarts in 100 s are used (each for that)"
    assert other.reason == f"exit 1; all 3 restarts in 100 s are used (3× {'x' * 80}…)"


def test_restarts_leave_the_window():
    budget = Budget(POLICY)
    for now in (0.0, 50.0, 60.0):
        budget.ask(now, "died")
    assert isinstance(budget.ask(99.0, "died"), RestartsExhausted)
    assert isinstance(budget.ask(100.0, "died"), RestartGrant)


def test_a_budget_of_none_refuses_the_first():
    refused = Budget(BudgetPolicy(max_restarts=0)).ask(0.0, "died")
    assert isinstance(refused, RestartsExhausted)
    assert "none was allowed" in refused.reason


def test_a_restart_that_somebody_asked_for_uses_nothing():
    budget = Budget(POLICY)
    asked = [budget.ask(float(now), "asked to stop", counted=False) for now in range(11)]
    assert asked == [RestartGrant(0.1)] * 11
    assert budget.ask(11.0, "died") == RestartGrant(0.1)


def test_half_a_budget_is_said_with_what_used_it():
    budget = Budget(BudgetPolicy(max_restarts=4, window_s=100.0))
    budget.ask(0.0, "exit 75")
    assert budget.warning(1.0) == ""
    budget.ask(2.0, "killed by SIGKILL")
    assert budget.warning(3.0) == "2 of 4 restarts in 100 s are used (1× exit 75; 1× killed by SIGKILL)"
    assert budget.warning(100.0) == "", "the first one has left the window"


@given(st.lists(st.floats(0.0, 50.0), max_size=60))
def test_no_window_ever_holds_more_than_the_budget(gaps):
    budget, now, granted = Budget(POLICY), 0.0, []
    for gap in gaps:
        now += gap
        if isinstance(budget.ask(now, "died"), RestartGrant):
            granted.append(now)
    for at in granted:
        assert sum(at - POLICY.window_s < other <= at for other in granted) <= POLICY.max_restarts
