"""Small pods for tests of the node itself; they meet the `restricted` profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kube.harness.client import Client
from kube.harness.processes import eventually
from node.harness.basics import BUSYBOX_IMAGE
from node.harness.environment import MOUNT
from node.harness.node import ENVIRONMENT_CLAIM

USER = 65532


def pod_spec(
    command: Sequence[str],
    *,
    image: str = BUSYBOX_IMAGE,
    environment: bool = False,
    claims: Mapping[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The spec of a pod with one container, a /tmp, and claims by where they are mounted."""
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {"medium": "Memory"}}]
    places: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]
    if environment:
        volumes.append({"name": "env", "persistentVolumeClaim": {"claimName": ENVIRONMENT_CLAIM, "readOnly": True}})
        places.append({"name": "env", "mountPath": str(MOUNT), "readOnly": True})
    for number, (place, claim) in enumerate((claims or {}).items()):
        volumes.append({"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}})
        places.append({"name": f"claim-{number}", "mountPath": place})
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": places,
    }
    user = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    return {
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": volumes,
        **more,
    }


def pod(
    namespace: str, name: str, command: Sequence[str], labels: Mapping[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    """A pod; see `pod_spec`."""
    metadata = {"namespace": namespace, "name": name, "labels": dict(labels or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(command, **more)}


def await_pods(client: Client, namespace: str, *names: str, phase: str = "Running") -> None:
    """Returns when all of them are in that phase, and ready if it is Running."""

    def there() -> bool:
        for name in names:
            found = client.get("v1", "Pod", namespace, name)
            status = found["status"] if found else {}
            assert status.get("phase") == phase, f"{name} is {status}"
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
            assert ready or phase != "Running", f"{name} is {status}"
        return True

    eventually(there, f"{', '.join(names)} {phase}", timeout_s=90)
