"""`areal why rljob/NAME` against a real API server: of jobs that can't run the cause, in the words of their status."""

from __future__ import annotations

import json
from typing import Any

import pytest
from areal.cli.main import app
from kube.harness.client import Client
from kube.harness.control_plane import Cluster
from kube.harness.processes import eventually
from kube.jobs import read, rljob, wait_for
from typer.testing import CliRunner

pytestmark = [pytest.mark.kube_api, pytest.mark.usefixtures("operator")]

HELD = {"tools": {"annotations": {"test.areal.dev/hold": "true"}}}
PULL = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "none.test/tools:1": not found'}
JOBS: dict[str, dict[str, Any]] = {
    "nameless": {"runtimeRef": {"kind": "RLRuntime", "name": "ours"}},
    "placeless": {"podTemplate": {"trainer": {"nodeSelector": {"gpu": "none"}}}},
    "bare": {"storage": {"storageClassName": "none"}},
    "imageless": {"podTemplate": HELD},
    "healthy": {},
}


def test_each_job_says_what_holds_it_up(admin: Client, cluster: Cluster, namespace: str) -> None:
    for name, blocks in JOBS.items():
        admin.create(rljob(namespace, name, **blocks))

    def why(name: str) -> dict[str, Any]:
        asked = ["why", f"rljob/{name}", f"--namespace={namespace}", f"--kubeconfig={cluster.kubeconfig}", "--json"]
        return dict(json.loads(CliRunner().invoke(app, asked).output))

    def says(name: str, cause: str) -> dict[str, Any]:
        def found() -> dict[str, Any]:
            answer = why(name)
            assert answer["cause"] == cause, answer["sentence"]
            return answer

        return eventually(found, f"{name}: {cause}", timeout_s=60)

    def held() -> dict[str, Any] | None:
        pods = admin.list("v1", "Pod", namespace, "areal.dev/rljob=imageless")
        return next((pod for pod in pods if pod["spec"].get("nodeName")), None)

    pod = eventually(held, "a pod whose image is pulled")
    containers = [{"name": "main", "image": "none.test/tools:1", "imageID": "", "ready": False, "restartCount": 0}]
    status = {"phase": "Pending", "containerStatuses": [{**containers[0], "state": {"waiting": PULL}}]}
    admin.patch(pod, {"status": status}, subresource="status")

    said = says("imageless", "ImagePullBackOff")
    assert said["pod"] == pod["metadata"]["name"]
    assert "build and push the image" in said["fix"]

    def told() -> dict[str, Any] | None:
        idle = read(admin, namespace, "imageless")["status"].get("idle") or {}
        return dict(idle) if idle.get("cause") == "ImagePullBackOff" else None

    idle = eventually(told, "the operator says it, too", timeout_s=60)
    assert why("imageless")["sentence"].startswith(idle["text"])

    assert "there is no RLRuntime ours" in says("nameless", "RuntimeNotFound")["text"]
    said = says("placeless", "Unschedulable")
    assert (said["pod"], said["role"]) == ("placeless-trainer-0", "trainer")
    assert "nodeSelector" in said["fix"]
    idle = eventually(lambda: read(admin, namespace, "placeless")["status"].get("idle"), "the operator says it")
    assert said["sentence"].startswith(idle["text"])
    assert "bare-run" in says("bare", "claim-pending")["text"]
    wait_for(admin, namespace, "healthy", Progressing="True")
    assert says("healthy", "none")["sentence"].startswith("nothing is wrong: it is at step")


def test_a_job_that_is_not_there_is_no_cause(cluster: Cluster, namespace: str) -> None:
    asked = ["why", "rljob/none", f"--namespace={namespace}", f"--kubeconfig={cluster.kubeconfig}"]
    assert "there is no RLJob 'none'" in str(CliRunner().invoke(app, asked).exception)
