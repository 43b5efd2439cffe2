"""Failures of pods outside of the gang: a lost machine is one failure of each pod on it, whoever tells first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest
from areal.spec.cluster import FailurePolicy
from areal_operator.operator.failure_policy import dealt_with, judge, kept
from areal_operator.operator.job_state import Condition, JobFailure, JobState
from areal_operator.operator.observed import NodeState, Observation, Pod
from areal_operator.operator.pod_failures import of_roles
from operator_values import NOW, ended, seen, server

BORN = NOW - 5000
SILENT = NodeState(ready=False, silent_since=NOW + 50.4)
SCHEDULED = {"PodScheduled": Condition("True", "", "", BORN)}
POD = replace(server(0), node="n0", conditions=SCHEDULED)


def marked(reason: str, at: float, pod: Pod = POD, **changes: object) -> Pod:
    """The pod with a disruption, as Kubernetes marks it before it is deleted."""
    conditions = {**pod.conditions, "DisruptionTarget": Condition("True", reason, "by it", at)}
    return replace(pod, conditions=conditions, terminating_until=at + 30, **changes)  # type: ignore[arg-type]


def look(pods: Sequence[Pod], **nodes: NodeState) -> Observation:
    return replace(seen(), pods=tuple(pods), nodes={"n0": NodeState(), **nodes})


def record(*looks: Observation) -> list[JobFailure]:
    """What is on record after these observations, as the operator keeps it."""
    failures: tuple[JobFailure, ...] = ()
    for one in (again for each in looks for again in (each, each)):
        for incident in of_roles(one, failures):
            if not dealt_with(incident, failures):
                made = incident.failure(judge(incident, FailurePolicy()), JobState())
                failures = kept((*failures, made))
    return list(failures)


UNKNOWN = replace(POD, ending=ended(255, NOW + 70, "ContainerStatusUnknown"), ready=False)
EVICTED = marked("DeletionByTaintManager", NOW + 350)


def test_a_machine_that_does_not_answer_is_a_failure_of_its_servers() -> None:
    (found,) = record(look([POD], n0=SILENT))
    assert (found.reason, found.owner, found.node, found.pod) == ("NodeLost", "node", "n0", POD.name)
    assert (found.at, found.counted, found.action) == (NOW + 50, False, "RestartPod")


@pytest.mark.parametrize(
    "looks",
    [
        [look([EVICTED], n0=SILENT)],  # five minutes later, while it is away
        [look([EVICTED])],  # and when it is back
        [look([UNKNOWN])],  # it came back with its pods
        [look([UNKNOWN], n0=SILENT), look([UNKNOWN])],
        [look([])],
    ],
)
def test_what_kubernetes_says_of_it_later_is_the_same_loss(looks: list[Observation]) -> None:
    (found,) = record(look([POD], n0=SILENT), *looks)
    assert (found.reason, found.owner, found.node) == ("NodeLost", "node", "n0")


def test_a_notice_and_then_silence_are_one_loss() -> None:
    notice = marked("DeletionByTaintManager", NOW)
    (found,) = record(look([notice]), look([notice], n0=SILENT), look([]))
    assert (found.reason, found.owner, found.at) == ("DeletionByTaintManager", "node", NOW)


def test_in_whatever_order_it_is_seen_a_loss_has_one_entry() -> None:
    sights = (look([POD], n0=SILENT), look([EVICTED], n0=SILENT), look([UNKNOWN]), look([EVICTED]))
    for order in permutations(sights):
        (found,) = record(*order)
        assert found.owner == "node"


def test_two_losses_of_a_pod_that_stays_are_two() -> None:
    later = NodeState(ready=False, silent_since=NOW + 230)
    found = record(look([POD], n0=SILENT), look([POD]), look([POD], n0=later))
    assert [(one.reason, one.at) for one in found] == [("NodeLost", NOW + 50), ("NodeLost", NOW + 230)]


def test_the_pod_that_comes_after_it_has_losses_of_its_own() -> None:
    new = replace(POD, uid="next", conditions={"PodScheduled": Condition("True", "", "", NOW + 120)})
    found = record(look([POD], n0=SILENT), look([new]), look([marked("DeletionByTaintManager", NOW + 200, new)]))
    assert [one.reason for one in found] == ["NodeLost", "DeletionByTaintManager"]


def test_a_drain_is_somebodys_and_a_later_silence_the_machines() -> None:
    drained = marked("EvictionByEvictionAPI", NOW)
    found = record(look([drained]), look([drained], n0=SILENT))
    assert [(one.reason, one.owner) for one in found] == [("EvictionByEvictionAPI", "platform"), ("NodeLost", "node")]


def test_a_container_that_fails_beside_a_loss_is_told_too() -> None:
    failed = replace(POD, ending=ended(1, NOW - 20))
    found = record(look([failed]), look([failed], n0=SILENT))
    assert [(one.reason, one.owner) for one in found] == [("Error", "role"), ("NodeLost", "node")]


def test_each_pod_of_the_machine_has_its_entry_and_others_have_none() -> None:
    other, elsewhere = replace(POD, name="digits-generation-1", uid="u1"), replace(server(2), node="n1")
    found = record(look([POD, other, elsewhere], n0=SILENT))
    assert [one.pod for one in found] == [POD.name, other.name]


def test_where_machines_may_not_be_seen_kubernetes_word_counts() -> None:
    blind = replace(look([EVICTED]), nodes=None)
    (found,) = record(replace(look([POD]), nodes=None), blind)
    assert found.reason == "DeletionByTaintManager"


def test_a_pod_that_is_over_loses_nothing_by_its_machine() -> None:
    assert record(look([replace(POD, phase="Succeeded")], n0=SILENT)) == []
