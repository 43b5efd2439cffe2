"""What a failure leads to, what it costs, and that it is dealt with once."""

from __future__ import annotations

from typing import Any

import pytest
from areal.plan.cluster_names import Role
from areal.spec.cluster import FailurePolicy
from areal_operator.operator import fault_owner
from areal_operator.operator.failure_policy import (
    FailureAction,
    Incident,
    Ruling,
    charge,
    dealt_with,
    judge,
    kept,
    shell_code,
    worst,
)
from areal_operator.operator.fault_owner import FaultOwner
from areal_operator.operator.job_state import JobFailure, JobState
from hypothesis import given
from hypothesis import strategies as st
from operator_values import NOW


def policy(*rules: dict[str, Any], budget: int = 10) -> FailurePolicy:
    return FailurePolicy.model_validate({"maxRestarts": budget, "rules": list(rules)})


def incident(role: Role = Role.TRAINER, code: int | None = 1, at: float = NOW, **more: Any) -> Incident:
    return Incident(role, f"digits-{role.value}-0", at, more.pop("reason", "Error"), exit_code=code, **more)


DISRUPTED = {"DisruptionTarget": "True"}
FREE = Ruling(FailureAction.RESTART_TRAINER, False, "disruption")
DISRUPTION = {
    "name": "disruption", "action": "RestartTrainer", "countTowardsMax": False, "roles": ["trainer"],
    "onPodConditions": [{"type": "DisruptionTarget"}],
}  # fmt: skip
BAD = {"name": "bad", "action": "FailJob", "onExitCodes": {"operator": "In", "values": [64, 65]}}
ODD = {"name": "odd", "action": "RestartPod", "onExitCodes": {"operator": "NotIn", "values": [64]}}
ANY = {"name": "any", "action": "RestartTrainer"}


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        (incident(code=75, message="trainer: /data is full [disk-full]\nlast line [of] the log"), "disk-full"),
        (incident(code=70, message="trainer: odd [no-such-cause]\n[disk-full]"), "bug"),
        (incident(code=65), "data"),
        (incident(code=137), "role-killed"),
        (incident(code=137, reason="OOMKilled"), "no-memory"),
        (incident(code=1), "role-ended"),
        (incident(code=None, reason="Stalled", message="no step for an hour"), "stalled"),
        (incident(code=None, reason="Evicted"), "infra"),
    ],
)
def test_a_failure_has_the_cause_that_its_process_named_or_that_its_end_tells(what: Incident, cause: str) -> None:
    assert what.failure(judge(what, policy()), JobState()).cause == cause


@pytest.mark.parametrize(
    ("rules", "what", "ruling"),
    [
        ((), incident(), Ruling(FailureAction.RESTART_TRAINER, True)),
        ((), incident(code=137), Ruling(FailureAction.RESTART_TRAINER, True)),
        ((), incident(code=64), Ruling(FailureAction.FAIL_JOB, True)),
        ((), incident(Role.GENERATION, 65), Ruling(FailureAction.FAIL_JOB, True)),
        ((), incident(Role.REWARD, 70), Ruling(FailureAction.FAIL_JOB, True)),
        ((), incident(Role.GENERATION), Ruling(FailureAction.RESTART_POD, False)),
        ((), incident(Role.PREPARE, 75), Ruling(FailureAction.RESTART_POD, True)),
        ((DISRUPTION,), incident(conditions=DISRUPTED), FREE),
        (
            (DISRUPTION,),
            incident(conditions={"DisruptionTarget": "False"}),
            Ruling(FailureAction.RESTART_TRAINER, True),
        ),
        ((DISRUPTION,), incident(Role.REDIS, conditions=DISRUPTED), Ruling(FailureAction.RESTART_POD, False)),
        ((BAD,), incident(code=65), Ruling(FailureAction.FAIL_JOB, True, "bad")),
        ((ODD, BAD), incident(code=65), Ruling(FailureAction.RESTART_POD, True, "odd")),
        ((BAD, ODD), incident(code=65), Ruling(FailureAction.FAIL_JOB, True, "bad")),
        ((ODD,), incident(code=0), Ruling(FailureAction.RESTART_TRAINER, True)),
        ((ODD,), incident(code=None), Ruling(FailureAction.RESTART_TRAINER, True)),
        ((ANY,), incident(Role.WORKER, None, reason="Evicted"), Ruling(FailureAction.RESTART_TRAINER, True, "any")),
        ((ANY,), incident(code=64), Ruling(FailureAction.RESTART_TRAINER, True, "any")),
    ],
)  # fmt: skip
def test_the_first_rule_that_matches_decides(rules: tuple[Any, ...], what: Incident, ruling: Ruling) -> None:
    assert judge(what, policy(*rules)) == ruling


@pytest.mark.parametrize(
    ("incidents", "speaks"),
    [
        ([incident(code=1), incident(code=64)], 64),
        ([incident(code=1), incident(code=137)], 137),
        ([incident(code=75, at=NOW), incident(code=137, at=NOW - 3)], 137),
        ([incident(code=75), incident(code=None, conditions={"DisruptionTarget": "True"})], None),
    ],
)
def test_the_incident_that_speaks_for_a_gang_is_the_cause_not_its_echo(incidents: list[Incident], speaks: int) -> None:
    assert worst(incidents, policy(DISRUPTION))[0].exit_code == speaks


def test_a_counted_restart_uses_the_budget_up() -> None:
    state, rules = JobState(), policy(budget=2)
    for count in (1, 2):
        budget = charge(state, incident(at=NOW + count), judge(incident(), rules), rules, NOW)
        state = budget.state
        assert (state.restarts, state.counted, budget.exhausted) == (count, count, False)
    last = charge(state, incident(at=NOW + 3), judge(incident(), rules), rules, NOW)
    assert last.exhausted
    assert (last.state.restarts, last.state.counted) == (2, 2)
    assert last.state.failures[-1].action == "FailJob"


def test_what_a_rule_does_not_count_costs_nothing() -> None:
    rules = policy(DISRUPTION, budget=0)
    what = incident(conditions={"DisruptionTarget": "True"})
    budget = charge(JobState(), what, judge(what, rules), rules, NOW)
    assert (budget.state.restarts, budget.state.counted, budget.exhausted) == (1, 0, False)


def test_a_servers_restart_is_no_attempt_of_the_job() -> None:
    what = incident(Role.GENERATION)
    budget = charge(JobState(), what, judge(what, policy()), policy(), NOW)
    assert (budget.state.restarts, len(budget.state.failures)) == (0, 1)


@pytest.mark.parametrize(("code", "shown"), [(-9, 137), (-15, 143), (64, 64), (0, 0)])
def test_a_signal_is_shown_as_a_container_shows_it(code: int, shown: int) -> None:
    assert shell_code(code) == shown


FAILURES = st.lists(
    st.builds(
        JobFailure,
        at=st.integers(0, 30).map(float),
        role=st.sampled_from(["trainer", "generation", "reward"]),
        pod=st.sampled_from(["a", "b"]),
        exit_code=st.sampled_from([1, 2]),
    ),
    max_size=20,
)


@given(FAILURES)
def test_the_record_keeps_five_and_the_newest_of_both_kinds(failures: list[JobFailure]) -> None:
    found = kept(failures)
    assert len(found) == min(5, len(failures))
    assert list(found) == sorted(found)
    for trainers in (True, False):
        kind = [failure for failure in failures if (failure.role == "trainer") is trainers]
        assert not kind or max(kind).at in {f.at for f in found if (f.role == "trainer") is trainers}


SIGHTINGS = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(["trainer", "generation", "reward"]), st.sampled_from(["a", "b"])),
    max_size=40,
)


@given(SIGHTINGS, st.lists(st.integers(0, 39), max_size=60))
def test_no_failure_is_dealt_with_twice_in_whatever_order_it_is_seen_again(
    sightings: list[tuple[int, str, str]], again: list[int]
) -> None:
    """Each sighting may come back at any later time; what was dealt with stays so, also when the record forgot it."""
    state, rules = JobState(), policy(budget=1000)
    dealt: set[tuple[int, str, str]] = set()
    order = [*sightings, *(sightings[i] for i in again if i < len(sightings))]
    for at, role, pod in order:
        what = Incident(Role(role), pod, float(at), "Error", exit_code=1)
        if role == "trainer":  # whose failures are counted by epochs
            state = charge(state, what, judge(what, rules), rules, NOW).state
        elif not dealt_with(what, state.failures):
            assert (at, role, pod) not in dealt
            dealt.add((at, role, pod))
            state = charge(state, what, judge(what, rules), rules, NOW).state


def test_the_table_of_owners_has_every_reason_that_the_operator_gives():
    """A reason that isn't in it would be the job's own, and spend its restarts."""
    reasons = ("NODE_LOST", "PEER_GONE", "POD_GONE", "POD_DELETED", "OVERTAKEN", "NODE_LEAVES", "TEMPLATE_CHANGED")
    for name in reasons:
        assert fault_owner.owner_of(Role.TRAINER, getattr(fault_owner, name), {}) is not FaultOwner.JOB, name
    assert fault_owner.owner_of(Role.TRAINER, "Error", {}) is FaultOwner.JOB
