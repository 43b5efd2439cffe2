"""What caches keep of pods and machines is what is read of them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from areal.plan.cluster_names import LABEL_JOB, LABEL_POD_INDEX, LABEL_ROLE
from areal_operator.kube.resources import PODS, Json
from areal_operator.operator.observed import read_node, read_pod
from areal_operator.operator.watched import projected_node, projected_pod
from areal_operator.runtime.cache import Cache

ENDED = {"exitCode": 137, "reason": "OOMKilled", "message": "m", "finishedAt": "2026-01-01T00:00:03Z"}
POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "digits-trainer-1", "namespace": "team", "uid": "u", "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:01:00Z",
        "labels": {LABEL_JOB: "digits", LABEL_ROLE: "trainer", LABEL_POD_INDEX: "1", "controller-revision-hash": "r"},
        "annotations": {"a": "x" * 500},
        "ownerReferences": [{"kind": "StatefulSet", "name": "digits-trainer", "uid": "w", "controller": True}],
    },
    "spec": {"nodeName": "n1", "containers": [
        {"name": "main", "env": [{"name": "A", "value": "x" * 3000}], "resources": {"limits": {"nvidia.com/gpu": "4"}}},
    ]},
    "status": {
        "phase": "Running", "podIP": "10.0.0.1", "hostIP": "10.0.0.2",
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"},
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "why"},
        ],
        "containerStatuses": [
            {
                "name": "main", "restartCount": 2, "image": "i", "state": {"running": {}},
                "lastState": {"terminated": ENDED},
            },
            {"name": "mesh", "restartCount": 0, "state": {"running": {}}},
        ],
    },
}  # fmt: skip


def variants() -> list[Json]:
    """The pod, and it without each of its parts."""
    found = [POD]
    for part in ("metadata", "status"):
        for name in POD[part]:
            rest = {key: value for key, value in POD[part].items() if key != name}
            found += [{**POD, part: rest}] if name not in ("name", "namespace", "uid", "labels") else []
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    main: dict[str, Any] = {"name": "main", "restartCount": 0, "state": waiting}
    return [*found, {**POD, "spec": {}}, {**POD, "status": {"containerStatuses": [main]}}]


def test_a_pod_is_read_alike_from_what_is_kept_of_it() -> None:
    for pod in variants():
        assert read_pod(projected_pod(pod)) == read_pod(pod)


@pytest.mark.parametrize(
    ("limits", "gpus"),
    [
        ([{"nvidia.com/gpu": "8", "cpu": "4", "rdma/hca": 1}], 8),
        ([{"amd.com/gpu": 2}, {"nvidia.com/mig-1g.10gb": "1"}], 3),
        ([{"memory": "1Gi"}, {}], 0),
    ],
)
def test_a_pods_gpus_are_those_of_all_its_containers(limits: list[dict[str, Any]], gpus: int) -> None:
    containers = [{"name": f"c{number}", "resources": {"limits": each}} for number, each in enumerate(limits)]
    pod = read_pod(projected_pod({**POD, "spec": {"containers": containers}}))
    assert pod is not None
    assert pod.gpus == gpus


def test_a_pod_s_claimed_gpus_are_those_of_its_label() -> None:
    labels = {**POD["metadata"]["labels"], "areal.dev/claimed-gpus": "4"}
    pod = read_pod(projected_pod({**POD, "metadata": {**POD["metadata"], "labels": labels}}))
    assert pod is not None
    assert pod.gpus == 4


def test_a_machine_is_read_alike_from_what_is_kept_of_it() -> None:
    for status in ("True", "False", "Unknown"):
        for taints in ([], [{"key": "karpenter.sh/disrupted"}], [{"key": "node.kubernetes.io/out-of-service"}]):
            ready = {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
            machine = {
                "metadata": {"name": "n1"},
                "spec": {"taints": taints, "podCIDR": "10.0.0.0/24"},
                "status": {"conditions": [{"type": "DiskPressure", "status": "False"}, ready], "images": [{}] * 50},
            }
            assert read_node(projected_node(machine)) == read_node(machine)


def test_a_cache_keeps_the_projection_and_gives_a_copy_of_it() -> None:
    cache = Cache(PODS, project=projected_pod)
    cache.offer(orjson.loads(orjson.dumps(POD)))
    found = cache.get("team", "digits-trainer-1")
    assert found is not None
    assert len(orjson.dumps(found)) < len(orjson.dumps(POD)) / 3
    found["metadata"].clear()
    again = cache.get("team", "digits-trainer-1")
    assert read_pod(again or {}) == read_pod(POD)
