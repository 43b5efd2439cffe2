"""Which jobs a change of a machine concerns, and what finding them costs."""

from __future__ import annotations

import pytest
from areal.plan.cluster_names import LABEL_JOB
from areal_operator.kube.resources import PODS, Json
from areal_operator.operator.world import keys_of_node, node_of
from areal_operator.runtime.cache import Cache


def pod(number: int, node: str) -> Json:
    metadata = {"name": f"p{number}", "namespace": "team", "uid": f"u{number}", "labels": {LABEL_JOB: f"job-{number}"}}
    return {"kind": "Pod", "metadata": {**metadata, "resourceVersion": "1"}, "spec": {"nodeName": node}}


def node(name: str, *taints: str, ready: str = "True") -> Json:
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    spec = {"taints": [{"key": key} for key in taints]}
    return {"kind": "Node", "metadata": {"name": name}, "spec": spec, "status": status}


@pytest.fixture
def pods() -> Cache:
    cache = Cache(PODS, index=node_of)
    for number in range(300):
        cache.offer(pod(number, f"n{number % 100}"))
    return cache


@pytest.mark.parametrize(
    ("machine", "matters"),
    [
        (node("n7"), False),
        (node("n7", "nvidia.com/gpu"), False),
        (node("n7", "node.kubernetes.io/unschedulable"), False),
        (node("n7", "karpenter.sh/disrupted"), True),
        (node("n7", "node.kubernetes.io/out-of-service"), True),
        (node("n7", ready="Unknown"), True),
    ],
)
def test_a_machine_concerns_the_jobs_on_it_when_its_state_matters(pods: Cache, machine: Json, matters: bool) -> None:
    expected = {("team", f"job-{number}") for number in (7, 107, 207)} if matters else set()
    assert set(keys_of_node(machine, {PODS: pods})) == expected


def test_a_machines_pods_are_found_without_a_walk_over_all(pods: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk() -> None:
        raise AssertionError("every pod is looked at")

    monkeypatch.setattr(pods, "all", walk)
    assert len(set(keys_of_node(node("n7", ready="Unknown"), {PODS: pods}))) == 3


def test_a_pod_that_moves_or_goes_is_found_no_more_where_it_was(pods: Cache) -> None:
    moved = pod(7, "n8")
    moved["metadata"]["resourceVersion"] = "2"
    pods.offer(moved)
    pods.removed(pod(107, "n7"))
    assert [found["metadata"]["name"] for found in pods.indexed("n7")] == ["p207"]
    assert "p7" in [found["metadata"]["name"] for found in pods.indexed("n8")]
