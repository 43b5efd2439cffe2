"""The figures of a status, what reaches the API server at once and what may wait, and what is read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from areal.plan.cluster_names import Role
from areal.spec.runtime import RuntimeSpec
from areal.spec.status import JobStatus
from areal_operator.operator.decide import decide
from areal_operator.operator.decision import HandsOff
from areal_operator.operator.job_state import JobState, Rest, state_in
from areal_operator.operator.observed import BatchJob, BatchStage, Observation, TrainerProgress
from areal_operator.operator.summarize import summarize, urgent
from hypothesis import given, settings
from operator_values import NOW, a_failure, controller, ended, remembered, seen, server, trainer
from support.examples import examples
from test_operator_decide import sights


def status(base: Observation, now: float = NOW) -> dict[str, Any]:
    decision = decide(base, now)
    assert not isinstance(decision, HandsOff)
    return summarize(base, decision, now)


@settings(max_examples=examples(300), deadline=None)
@given(sights())
def test_a_status_is_valid_and_reads_back_as_what_was_decided(base: Observation) -> None:
    """What a successor recalls is what this process would have gone on with."""
    decision = decide(base, NOW)
    assert not isinstance(decision, HandsOff)
    if base.state.outcome is not None:
        return  # its conditions would come from the status that is not made up here
    written = summarize(base, decision, NOW)
    assert (
        JobStatus.model_validate(written, by_alias=True, by_name=False).model_dump(mode="json", exclude_none=True)
        == written
    )
    recalled, meant = state_in(written), decision.state
    for name in ("epoch", "members", "restarts", "counted", "failures", "outcome", "step", "step_at", "ended_at"):
        assert getattr(recalled, name) == getattr(meant, name), name
    if meant.outcome is None and base.admitted is not None and base.refusal is None:
        assert recalled.started_at == meant.started_at
        assert (recalled.prepared, recalled.finishing) == (meant.prepared, meant.finishing)


@settings(max_examples=examples(100), deadline=None)
@given(sights())
def test_the_same_sight_makes_the_same_status(base: Observation) -> None:
    assert status(base) == status(base)


def test_progress_has_the_newest_figures_of_all_roles() -> None:
    base = seen(reports=replace(seen().reports, trainer=TrainerProgress(6, 5, NOW - 30, NOW)))
    found = status(base)
    assert found["progress"] == {
        "step": 6, "maxSteps": 12, "groupsTrained": 24, "policyVersion": 5, "oldestServedVersion": 4, "reward": 0.5,
        "staleness": 0.25, "lastReportTime": "2027-01-15T08:00:00Z", "estimatedRemainingSeconds": 60,
        "evidence": {"epoch": 1, "incarnation": "p1", "made": 6},
    }  # fmt: skip
    assert found["checkpoint"] == {"step": 5, "time": "2027-01-15T07:59:30Z"}


def test_figures_of_a_role_that_fell_silent_stay() -> None:
    base = seen(reports=replace(seen().reports, controller=controller(at=NOW - 60)))
    base.raw["status"] = {"progress": {"policyVersion": 3, "reward": 0.25}, "checkpoint": {"step": 5}}
    found = status(base)
    assert (found["progress"]["policyVersion"], found["progress"]["reward"]) == (3, 0.25)
    assert found["checkpoint"] == {"step": 5}


def test_the_wasted_part_of_tokens_and_whether_roles_speak_tls_are_told() -> None:
    base = seen(reports=replace(seen().reports, controller=replace(controller(), wasted_share=0.012345)))
    found = status(base)
    assert (found["progress"]["wastedShare"], found["runtimeSnapshot"]["tls"]) == (0.0123, False)
    assert base.admitted is not None
    runtime = RuntimeSpec.model_validate({"tls": {"mode": "SelfSigned"}})
    encrypted = replace(base, admitted=replace(base.admitted, runtime=runtime))
    assert status(encrypted)["runtimeSnapshot"]["tls"] is True


def test_the_trainers_word_on_the_step_counts_until_it_falls_silent() -> None:
    for trainer_at, step in ((NOW, 6), (NOW - 10, 9)):
        reports = replace(seen().reports, trainer=TrainerProgress(6, 0, 0.0, trainer_at), controller=controller(step=9))
        assert status(seen(reports=reports))["progress"]["step"] == step


def test_roles_say_what_is_wanted_there_and_broken() -> None:
    base = seen(pods=(trainer(0), trainer(1), server(0), server(1, ready=False, ending=ended(1))))
    roles = {role["name"]: role for role in status(base)["roles"]}
    assert roles["generation"] == {"name": "generation", "desired": 2, "ready": 1, "failed": 1}
    assert roles["trainer"] == {"name": "trainer", "desired": 2, "ready": 2, "failed": 0}
    assert roles["controller"] == {"name": "controller", "desired": 1, "ready": 0, "failed": 0}


def test_nobody_is_wanted_while_a_job_is_prepared_or_rests() -> None:
    preparing = seen(JobState(), prepare=BatchJob(BatchStage.RUNNING), pods=())
    resting = seen(remembered(rest=Rest.ENDING), pods=(), spec={"suspend": True})
    for base in (preparing, resting):
        assert {role["desired"] for role in status(base)["roles"]} == {0}


def test_scale_sees_servers_and_their_selector() -> None:
    base = seen(pods=(server(0), server(1, ready=False), server(2, terminating_until=NOW)))
    assert status(base)["generation"] == {
        "replicas": 2,
        "readyReplicas": 1,
        "selector": f"areal.dev/rljob=digits,areal.dev/role={Role.GENERATION}",
    }


@pytest.mark.parametrize(
    ("change", "at_once"),
    [
        ({"progress": {"step": 6}}, False),
        ({"roles": [{"name": "trainer", "ready": 1}]}, False),
        ({"checkpoint": {"step": 5}}, False),
        ({"attempts": {"epoch": 2}}, True),
        ({"summary": "Stalled"}, True),
        ({"failures": [{"role": "trainer"}]}, True),
        ({"conditions": [{"type": "Scheduled", "status": "True", "message": "5 pods"}]}, False),
        ({"conditions": [{"type": "Scheduled", "status": "False", "message": "4 pods"}]}, True),
    ],
)
def test_what_anyone_may_wait_for_is_written_at_once(change: dict[str, Any], at_once: bool) -> None:
    before = {"summary": "Running", "conditions": [{"type": "Scheduled", "status": "True", "message": "4 pods"}]}
    assert urgent(before, {**before, **change}) is at_once


def test_a_memory_survives_its_process() -> None:
    state = remembered(restarts=3, counted=2, failures=(a_failure(NOW - 9), a_failure(NOW - 5, "trainer", "t")))
    assert state_in(status(seen(state))).failures == state.failures


def test_a_status_that_nobody_wrote_is_no_memory() -> None:
    assert state_in({}) == JobState()


def held(*gpus: int, **changes: Any) -> Observation:
    """A job of which each trainer holds so many GPUs."""
    return seen(pods=tuple(trainer(index, gpus=count, **changes) for index, count in enumerate(gpus)))


def test_gpu_seconds_are_what_was_held_until_the_number_changes_and_nothing_is_written_between() -> None:
    assert "usage" not in status(held(0, 0))
    first = status(held(8, 8))["usage"]
    assert first == {"gpus": 16, "gpuSeconds": 0, "since": "2027-01-15T08:00:00Z"}
    later = held(8, 8)
    later.raw["status"] = {"usage": first}
    assert status(later, NOW + 500)["usage"] == first
    fewer = held(8, 0)
    fewer.raw["status"] = {"usage": first}
    second = status(fewer, NOW + 600)["usage"]
    assert second == {"gpus": 8, "gpuSeconds": 16 * 600, "since": "2027-01-15T08:10:00Z"}
    none = held()
    none.raw["status"] = {"usage": second}
    assert status(none, NOW + 700)["usage"] == {"gpus": 0, "gpuSeconds": 10400, "since": "2027-01-15T08:11:40Z"}


def test_each_second_is_counted_once_however_often_the_number_of_gpus_changes() -> None:
    """A moment is written rounded down: a part of a second that both spans had would add up over a night's resizes."""
    usage = status(held(8, 8))["usage"]
    for change in range(1, 101):
        look = held(8, 8 * (1 - change % 2))
        look.raw["status"] = {"usage": usage}
        usage = status(look, NOW + 6.53 * change)["usage"]
    assert abs(usage["gpuSeconds"] - 12 * 653) <= 16


@pytest.mark.parametrize("changes", [{"node": ""}, {"phase": "Succeeded"}, {"phase": "Failed"}])
def test_a_pod_without_a_node_or_one_that_is_over_holds_no_gpu(changes: dict[str, Any]) -> None:
    assert "usage" not in status(held(8, **changes))


def test_a_number_of_gpus_that_changed_is_written_at_once() -> None:
    before = {"usage": {"gpus": 8, "gpuSeconds": 0, "since": "2027-01-15T08:00:00Z"}}
    assert urgent(before, {"usage": {"gpus": 0, "gpuSeconds": 80, "since": "2027-01-15T08:00:10Z"}})
