"""The agent's rules over weights and starts."""

from __future__ import annotations

from pathlib import Path

from areal.generation.core import LAST_RETRY_S, AgentCore, RequestEntry, WantedVersion, retry_delay_s, takes
from areal.values.policy import NOTHING, PolicyId
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

POLICIES = st.builds(PolicyId, st.integers(0, 6), st.integers(1, 4))


def wanted(policy: PolicyId) -> WantedVersion:
    return WantedVersion(policy, Path(f"/volume/{policy}"), "digest")


@given(POLICIES, POLICIES)
def test_of_two_policies_exactly_one_supersedes_the_other(one, other):
    assert takes(one, other) + takes(other, one) == (one != other)


@given(POLICIES)
def test_a_server_without_weights_takes_any_policy(policy):
    assert takes(NOTHING, policy)


def test_a_rollback_under_a_higher_fence_is_taken_and_an_older_version_of_the_same_fence_is_not():
    assert takes(PolicyId(9, 1), PolicyId(3, 2))
    assert not takes(PolicyId(9, 1), PolicyId(3, 1))


def test_a_refused_version_is_due_again_after_growing_pauses_and_a_newer_one_at_once():
    core = AgentCore()
    core.engine_started(None)
    core.want(wanted(PolicyId(4, 1)))
    now = 100.0
    for tries in range(1, 8):
        assert core.due(now) is not None
        refused = core.refuse(PolicyId(4, 1), "canary", now)
        assert refused.tries == tries
        assert core.due(now + retry_delay_s(tries) - 0.01) is None
        assert core.next_look_s(now) == retry_delay_s(tries) <= LAST_RETRY_S
        now += retry_delay_s(tries)
    core.want(wanted(PolicyId(5, 1)))
    assert core.due(now - 1) == wanted(PolicyId(5, 1))
    core.loaded(PolicyId(5, 1))
    core.accept(wanted(PolicyId(5, 1)))
    assert core.refused is None


def test_a_server_whose_canary_failed_takes_the_same_version_again_when_its_time_comes():
    core = AgentCore()
    core.engine_started(None)
    core.want(wanted(PolicyId(1, 1)))
    core.loaded(PolicyId(1, 1))
    core.refuse(PolicyId(1, 1), "canary", 0.0)
    assert core.entry(-1) is RequestEntry.UNREADY
    assert core.due(0.1) is None
    assert core.due(retry_delay_s(1)) == wanted(PolicyId(1, 1))


def test_an_engine_that_came_back_with_the_start_model_takes_the_wanted_version_again():
    core = AgentCore()
    core.engine_started(None)
    core.want(wanted(PolicyId(2, 1)))
    core.loaded(PolicyId(2, 1))
    core.accept(wanted(PolicyId(2, 1)))
    assert core.due(0.0) is None
    core.engine_lost()
    assert core.entry(0) is RequestEntry.UNREADY
    core.engine_started(None)
    assert core.version == -1
    assert core.due(0.0) == wanted(PolicyId(2, 1))


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, readiness and starts keep their meaning."""

    def __init__(self) -> None:
        super().__init__()
        self.core = AgentCore()
        self.now = 0.0
        self.passed: set[PolicyId] = set()

    @rule(policy=POLICIES)
    def want(self, policy):
        self.core.want(wanted(policy))

    @rule(seconds=st.floats(0, 10))
    def wait(self, seconds):
        self.now += seconds

    @rule(passes=st.booleans(), loads=st.booleans())
    def swap(self, passes, loads):
        due = self.core.due(self.now)
        if due is None:
            return
        before = self.core.held if self.core.proven else NOTHING
        assert takes(before, due.policy)
        if loads:
            self.core.loaded(due.policy)
            if passes:
                self.core.accept(due)
                self.passed.add(due.policy)
                return
        self.core.refuse(due.policy, "no", self.now)

    @rule(keeps=st.booleans())
    def restart(self, keeps):
        self.core.engine_lost()
        assert not self.core.ready
        self.core.engine_started(self.core.accepted if keeps else None)

    @invariant()
    def ready_means_that_what_is_held_passed(self):
        if self.core.ready:
            assert self.core.held in self.passed
            assert self.core.entry(self.core.version) is RequestEntry.START
            assert self.core.entry(self.core.version + 1) is RequestEntry.BELOW_FLOOR
        else:
            assert self.core.entry(-100) is RequestEntry.UNREADY


TestAnyOrder = AnyOrder.TestCase
