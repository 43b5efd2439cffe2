"""Who belongs to the trainers' gang, when it is whole, what happened to it, whom to tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from areal.plan.cluster_names import Role
from areal.processes.core import ChildPhase
from areal.spec.cluster import FailurePolicy
from areal_operator.operator.failure_policy import FailureAction, judge
from areal_operator.operator.gang import gang_of
from areal_operator.operator.observed import LauncherReport, NodeState, Observation, Pod
from areal_operator.operator.times import QUIET_S
from operator_values import NOW, disrupted, ended, fleet, launchers, remembered, says, seen, trainer


def gang(base: Observation, size: int = 2) -> Any:
    return gang_of(base, size, NOW)


def pods(*found: Pod) -> Observation:
    return seen(pods=found)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"running": False, "waiting": "ImagePullBackOff"}, "does not run (ImagePullBackOff)"),
        ({"terminating_until": NOW + 30}, "is terminating"),
    ],
)
def test_a_gang_is_whole_only_when_every_pod_works(changes: dict[str, Any], why: str) -> None:
    assert gang(seen()).missing == []
    assert gang(pods(trainer(0), trainer(1, **changes))).missing == [f"digits-trainer-1 {why}"]


def test_pods_that_are_not_there_are_missed() -> None:
    assert gang(pods(trainer(0))).missing == ["1 of 2 pods are not there"]


def test_pods_beyond_the_gang_are_none_of_it() -> None:
    assert gang(seen(pods=(trainer(0), trainer(1), trainer(2)))).missing == []


@pytest.mark.parametrize(
    "report", [None, says(ChildPhase.READY, at=NOW - 60), says(ChildPhase.READY, at=NOW - 4), says(ChildPhase.STOPPED)]
)
def test_a_launcher_that_missed_the_last_round_or_was_drained_keeps_a_gang_from_forming(
    report: LauncherReport | None,
) -> None:
    assert gang(launchers(seen(), t1=report)).missing


def test_the_next_epoch_is_above_all_that_anyone_has_heard_of() -> None:
    assert gang(seen()).next_epoch == 2
    assert gang(launchers(seen(), t1=says(ChildPhase.READY, epoch=7))).next_epoch == 8


def test_a_status_from_a_backup_is_noticed() -> None:
    assert not gang(seen()).overtaken
    assert gang(launchers(seen(), t1=says(ChildPhase.READY, epoch=7))).overtaken


@pytest.mark.parametrize("phase", [ChildPhase.BACKING_OFF, ChildPhase.FAILED])
def test_the_end_of_a_child_in_this_epoch_is_an_incident(phase: ChildPhase) -> None:
    (incident,) = gang(launchers(seen(), t1=says(phase, code=-9))).incidents()
    assert (incident.pod, incident.exit_code) == ("digits-trainer-1", 137)


SILENT = {"n9": NodeState(ready=False, silent_since=NOW - 40)}


def without(role: Role, **changes: Any) -> Observation:
    """The job whose pod of a role is on a silent machine, or changed otherwise."""
    base = seen()
    lost = [replace(pod, **changes) if pod.role is role else pod for pod in base.pods]
    return replace(base, pods=tuple(lost), nodes=SILENT)


@pytest.mark.parametrize(
    ("base", "code", "told"),
    [
        (without(Role.REDIS, node="n9"), 75, ("NodeLost", "node", "n9", False)),
        (without(Role.WORKER, node="n9"), 75, ("NodeLost", "node", "n9", False)),
        (without(Role.REDIS, ready=False), 75, ("PeerGone", "role", "n1", False)),
        (without(Role.CONTROLLER, ready=False), 75, ("PeerGone", "role", "n1", False)),
        (without(Role.REDIS, node="n9"), 1, ("Error", "job", "n1", True)),
        (without(Role.REDIS, node="n9"), -9, ("Error", "job", "n1", True)),
        (without(Role.WORKER, ready=False), 75, ("Error", "job", "n1", True)),
        (seen(), 75, ("Error", "job", "n1", True)),
    ],
)
def test_a_trainer_that_ended_because_something_outside_failed_spends_nothing_of_the_job_s(
    base: Observation, code: int, told: tuple[str, str, str, bool]
) -> None:
    (incident,) = gang(launchers(base, t1=says(ChildPhase.BACKING_OFF, code=code))).incidents()
    ruling = judge(incident, FailurePolicy())
    assert ruling.action is FailureAction.RESTART_TRAINER
    assert (incident.reason, incident.owner, incident.node, ruling.counted) == told


def test_the_end_of_a_child_in_an_earlier_epoch_is_none() -> None:
    unproven = seen(remembered(epoch=2, proven_epoch=0))
    assert gang(launchers(unproven, t1=says(ChildPhase.BACKING_OFF, 1, 1))).incidents() == []


def test_nothing_is_an_incident_while_a_gang_forms() -> None:
    forming = seen(remembered(members=()), pods=(trainer(0),))
    assert gang(launchers(forming, t0=says(ChildPhase.BACKING_OFF, code=1))).incidents() == []


def test_a_member_that_is_gone_or_going_is_an_incident_of_a_gang_that_worked() -> None:
    assert [i.reason for i in gang(pods(trainer(0))).incidents()] == ["PodGone"]
    assert [i.reason for i in gang(pods(trainer(0), trainer(1, uid="other"))).incidents()] == ["PodGone"]
    going = trainer(1, terminating_until=NOW + 30)
    assert [i.reason for i in gang(pods(trainer(0), going)).incidents()] == ["PodDeleted"]
    (evicted,) = gang(pods(trainer(0), replace(going, conditions=disrupted()))).incidents()
    assert (evicted.reason, evicted.conditions) == ("EvictionByEvictionAPI", {"DisruptionTarget": "True"})


def test_the_same_costs_nothing_before_the_gang_has_worked() -> None:
    young = gang(seen(remembered(proven_epoch=0), pods=(trainer(0),)))
    assert young.incidents() == []
    assert [incident.reason for incident in young.dissolved()] == ["PodGone"]


def test_a_member_whose_machine_fell_silent_was_lost_with_it() -> None:
    pod, silent = trainer(1), {"n1": NodeState(ready=False, silent_since=NOW - 40)}
    (incident,) = gang(seen(pods=(trainer(0),), departed={"t1": pod}, nodes=silent)).incidents()
    assert (incident.reason, incident.owner, incident.node) == ("NodeLost", "node", "n1")


def test_a_container_that_the_kubelet_lost_count_of_was_its_nodes() -> None:
    pod = trainer(1, restarts=1, ending=ended(137, reason="ContainerStatusUnknown"))
    base = launchers(seen(pods=(trainer(0), pod)), t1=says(ChildPhase.IDLE, epoch=0))
    (incident,) = gang(base).incidents()
    assert (incident.exit_code, incident.owner, incident.node) == (137, "node", "n1")


def test_a_member_is_quiet_after_two_rounds_without_its_launcher() -> None:
    late = launchers(seen(), t1=says(ChildPhase.READY, at=NOW - QUIET_S - 1))
    assert gang(seen()).quiet() is None
    assert gang(launchers(seen(), t1=says(ChildPhase.READY, at=NOW - QUIET_S))).quiet() is None
    assert gang(late).quiet().name == "digits-trainer-1"
    assert gang(launchers(seen(), t1=None)).quiet().name == "digits-trainer-1"
    assert gang(replace(late, reports=replace(late.reports, at=0.0))).quiet() is None  # nobody was asked yet
    assert gang(replace(late, state=remembered(members=()))).quiet() is None


def test_a_launcher_that_forgot_its_epoch_lost_its_child() -> None:
    crashed = seen(pods=(trainer(0), trainer(1, restarts=1, ending=ended(137, reason="OOMKilled"))))
    (incident,) = gang(launchers(crashed, t1=says(ChildPhase.IDLE, epoch=0))).incidents()
    assert (incident.exit_code, incident.reason) == (137, "OOMKilled")


def test_a_launcher_that_works_is_believed_over_what_its_pod_once_said() -> None:
    late = seen(pods=(trainer(0), trainer(1, running=False, ending=ended(137))))
    assert gang(late).incidents() == []


def test_a_silent_launcher_in_a_running_pod_is_only_slow() -> None:
    assert gang(launchers(seen(), t1=None)).incidents() == []


def test_a_container_that_ended_for_good_reasons_is_known_once() -> None:
    crashed = seen(pods=(trainer(0), trainer(1, ending=ended(64))))
    assert [i.exit_code for i in gang(crashed).ended_launchers()] == [64]


def test_members_are_told_until_they_confirm() -> None:
    fresh = seen(remembered(epoch=2))
    assert [pod.uid for pod in gang(launchers(fresh, t0=says(ChildPhase.STARTING, 2))).to_tell()] == ["t1"]
    assert [pod.uid for pod in gang(launchers(fresh, t0=None)).to_tell()] == ["t0", "t1"]
    assert gang(seen(remembered(epoch=2, members=()))).to_tell() == ()


def test_a_run_is_complete_when_rank_zero_says_so_in_this_epoch() -> None:
    done = says(ChildPhase.COMPLETE)
    assert gang(launchers(seen(), t0=done)).complete
    assert not gang(launchers(seen(), t1=done)).complete
    assert not gang(launchers(seen(remembered(epoch=2)), t0=done)).complete


@pytest.mark.parametrize(
    ("phase", "saves", "drained"),
    [
        (ChildPhase.READY, True, True),
        (ChildPhase.STARTING, True, True),
        (ChildPhase.IDLE, True, True),
        (ChildPhase.BACKING_OFF, True, True),
        (ChildPhase.DRAINING, True, False),
        (ChildPhase.STOPPED, False, False),
        (ChildPhase.COMPLETE, False, False),
        (ChildPhase.FAILED, False, False),
    ],
)
def test_who_is_asked_to_save_and_who_is_waited_for(phase: ChildPhase, saves: bool, drained: bool) -> None:
    stopped = launchers(seen(), t0=says(ChildPhase.STOPPED), t1=says(phase))
    assert gang(stopped).unsaved() is saves
    assert bool(gang(stopped).to_drain()) is drained
    assert gang(launchers(stopped, t1=None)).unsaved()  # who doesn't answer may have something to save


def test_members_on_a_machine_that_leaves_are_known() -> None:
    base = seen(nodes={"n1": NodeState(leaving=True)})
    assert [pod.uid for pod in gang(base).leaving()] == ["t1"]


def test_members_of_an_old_template_are_known_once_the_controller_has_seen_the_new_one() -> None:
    assert gang(seen(workloads=(fleet("r2", Role.TRAINER),))).outdated() == (trainer(0), trainer(1))
    assert gang(seen(workloads=(fleet("", Role.TRAINER),))).outdated() == ()
