"""The harness itself: the cluster that the other tests trust does what a cluster does."""

from __future__ import annotations

import time
from typing import Any

import pytest
from kube.harness.client import Client, Refused
from kube.harness.control_plane import ControlPlane
from kube.harness.fixtures import Runner
from kube.harness.fleet import Fleet
from kube.harness.processes import eventually

pytestmark = [pytest.mark.kube_api, pytest.mark.nightly]  # a harness that lies fails what trusts it, each landing

RESTRICTED: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
CONTAINER = {"name": "main", "image": "none.test/nothing:1", "securityContext": RESTRICTED}


def pod_spec(**more: Any) -> dict[str, Any]:
    """A pod that the restricted level lets in."""
    return {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [CONTAINER],
        **more,
    }


def workload(
    kind: str, namespace: str, name: str, annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """A StatefulSet or a Job of one pod."""
    group = "batch/v1" if kind == "Job" else "apps/v1"
    template = {"metadata": {"labels": {"app": name}, "annotations": annotations or {}}, "spec": pod_spec()}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
    else:
        spec |= {"selector": {"matchLabels": {"app": name}}, "serviceName": name}
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": {"template": template, **spec}}


def pod(admin: Client, namespace: str, name: str) -> dict[str, Any]:
    return admin.get("v1", "Pod", namespace, name) or {}


def test_a_pod_of_a_stateful_set_is_scheduled_and_becomes_ready_with_its_index_as_a_label(
    admin: Client, kwok: Fleet, namespace: str, kubectl: Runner
) -> None:
    admin.create(workload("StatefulSet", namespace, "db", replicas=2))
    eventually(lambda: "1/1" in kubectl("get", "pod", "db-0", namespace=namespace, check=False).stdout, "db-0 ready")
    seen = pod(admin, namespace, "db-0")
    assert seen["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "0"
    assert seen["status"]["podIP"].startswith("10.")


def test_a_pod_that_is_not_restricted_is_refused_and_the_answer_says_why(admin: Client, namespace: str) -> None:
    spec = {"containers": [{"name": "main", "image": "none.test/nothing:1"}]}
    with pytest.raises(Refused, match="allowPrivilegeEscalation"):
        admin.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": "p"}, "spec": spec}
        )


def test_a_job_completes_and_a_failing_one_fails_with_its_exit_code(admin: Client, kwok: Fleet, namespace: str) -> None:
    admin.create(workload("Job", namespace, "good", {"test.areal.dev/message": '{"ok":true}'}, backoffLimit=0))
    admin.create(workload("Job", namespace, "bad", {"test.areal.dev/exit-code": "64"}, backoffLimit=0))

    def finished(name: str) -> set[str]:
        conditions = (admin.get("batch/v1", "Job", namespace, name) or {})["status"].get("conditions", [])
        return {item["type"] for item in conditions if item["status"] == "True"}

    eventually(lambda: "Complete" in finished("good"), "good completes")
    eventually(lambda: "Failed" in finished("bad"), "bad fails")
    ends = {}
    for name in ("good", "bad"):
        (only,) = admin.list("v1", "Pod", namespace, f"app={name}")
        ends[name] = only["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ends["good"]["message"] == '{"ok":true}'
    assert (ends["bad"]["exitCode"], ends["bad"]["reason"]) == (64, "Error")


def test_a_container_that_ends_is_counted_and_its_code_is_kept(admin: Client, kwok: Fleet, namespace: str) -> None:
    admin.create(workload("StatefulSet", namespace, "db", replicas=1))
    eventually(lambda: pod(admin, namespace, "db-0").get("status", {}).get("phase") == "Running", "running")
    kwok.end_container(namespace, "db-0", 137, "OOMKilled")
    kwok.set_condition(namespace, "db-0", "DisruptionTarget")
    status = pod(admin, namespace, "db-0")["status"]
    assert status["containerStatuses"][0]["restartCount"] == 1
    assert status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137
    assert any(item["type"] == "DisruptionTarget" for item in status["conditions"])


def test_a_template_can_make_pods_wait_or_crash_again_and_again(admin: Client, kwok: Fleet, namespace: str) -> None:
    admin.create(workload("StatefulSet", namespace, "slow", {"test.areal.dev/hold": "true"}, replicas=1))
    admin.create(workload("StatefulSet", namespace, "sick", {"test.areal.dev/exit-code": "70"}, replicas=1))

    def crashed() -> bool:
        statuses = pod(admin, namespace, "sick-0").get("status", {}).get("containerStatuses", [])
        return bool(statuses and statuses[0]["lastState"].get("terminated", {}).get("exitCode") == 70)

    eventually(crashed, "sick crashes")
    held = eventually(lambda: pod(admin, namespace, "slow-0"), "slow is there")
    assert held["status"]["phase"] == "Pending"


def test_a_deleted_pod_of_a_stateful_set_comes_back_as_another(admin: Client, kwok: Fleet, namespace: str) -> None:
    admin.create(workload("StatefulSet", namespace, "db", replicas=1))
    first = eventually(lambda: pod(admin, namespace, "db-0"), "db-0")
    admin.delete(first)
    eventually(
        lambda: pod(admin, namespace, "db-0").get("metadata", {}).get("uid") not in (None, first["metadata"]["uid"]),
        "anew",
    )


def test_a_claim_gets_a_shared_volume_and_loses_it_with_its_deletion(
    admin: Client, volumes: None, namespace: str
) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": namespace, "name": "run"},
        "spec": spec,
    }
    admin.create(claim)

    def bound() -> str:
        seen = admin.get("v1", "PersistentVolumeClaim", namespace, "run") or {}
        return seen["spec"].get("volumeName", "") if seen["status"]["phase"] == "Bound" else ""

    volume = eventually(bound, "claim bound")
    admin.delete(claim)
    eventually(lambda: admin.get("v1", "PersistentVolume", "", volume) is None, "volume gone")


def test_a_deleted_owner_takes_what_it_owns_with_it(admin: Client, namespace: str) -> None:
    owner = admin.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": "owner"}}
    )
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    owned = {"namespace": namespace, "name": "owned", "ownerReferences": [reference]}
    admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": owned})
    admin.delete(owner)
    eventually(lambda: admin.get("v1", "ConfigMap", namespace, "owned") is None, "owned gone")


def test_a_user_has_only_the_rights_that_rbac_gives(control_plane: ControlPlane, namespace: str) -> None:
    stranger = Client(control_plane.as_user("stranger", "nobody"))
    with pytest.raises(Refused, match="cannot list"):
        stranger.list("v1", "Pod", namespace)


def test_a_watch_from_before_a_compaction_and_a_restart_is_answered_410(
    admin: Client, control_plane: ControlPlane, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    version = admin.raw("GET", path)["metadata"]["resourceVersion"]
    for number in range(3):
        admin.create(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": f"m{number}"}}
        )
    began = time.monotonic()
    control_plane.compact()
    control_plane.restart_apiserver()
    print(f"API server restarted in {time.monotonic() - began:.1f} s")
    (answer,) = list(admin.watch(path, version, timeout_s=5))
    assert (answer["type"], answer["object"]["code"]) == ("ERROR", 410)
