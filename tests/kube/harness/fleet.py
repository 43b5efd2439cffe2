"""Fake nodes whose pods live and die as the stages say, and blows dealt to single pods.

kwok plays the kubelet: `stages/` holds what its pods do by themselves. What a test does to one pod (a container that
ends with a code, a disruption, a node that goes) is a write of that pod's status here, as a kubelet would write it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from areal.plan.roles import free_ports
from kube.harness.client import Client
from kube.harness.processes import Process, eventually
from kube.harness.tools import tool

STAGES = Path(__file__).with_name("stages")
LABEL = "test.areal.dev/fake-node"


class Fleet:
    """kwok and its nodes."""

    def __init__(self, client: Client, directory: Path) -> None:
        self._client = client
        self._directory = directory
        self._process: Process | None = None
        self._nodes = 0

    def start(self, nodes: int = 10) -> None:
        """Starts kwok and returns when that many nodes are ready."""
        (port,) = free_ports(1)
        command = [tool("kwok"), f"--kubeconfig={self._client.kubeconfig}", "--node-ip=127.0.0.1"]
        command += [f"--manage-nodes-with-label-selector={LABEL}=true", "--node-lease-duration-seconds=40"]
        command += ["--cidr=10.64.0.1/10", f"--server-address=127.0.0.1:{port}"]
        command += [f"--config={path}" for path in sorted(STAGES.glob("*.yaml"))]
        self._process = Process("kwok", command, self._directory / "log" / "kwok.log")
        self.add(nodes)

    def stop(self) -> None:
        """Ends kwok and takes its nodes away."""
        if self._process is not None:
            for index in range(self._nodes):
                self._client.delete(self._node(index))
            self._process.stop()

    def add(self, nodes: int) -> list[str]:
        """More nodes; returns the names of the new ones when they are ready."""
        new = [self._node(self._nodes + index) for index in range(nodes)]
        self._nodes += nodes
        for node in new:
            self._client.create(node)
        names = [str(node["metadata"]["name"]) for node in new]
        eventually(lambda: all(self._is_ready(name) for name in names), "fake nodes ready")
        return names

    def end_container(self, namespace: str, pod: str, exit_code: int, reason: str = "Error", message: str = "") -> None:
        """The main container ended with a code and was started again at once, as kubelet does under `Always`."""
        now = _now()
        status = self._pod(namespace, pod)["status"]["containerStatuses"]
        ended = {"exitCode": exit_code, "reason": reason, "message": message, "startedAt": now, "finishedAt": now}
        status[0] |= {
            "restartCount": status[0]["restartCount"] + 1,
            "lastState": {"terminated": ended},
            "state": {"running": {"startedAt": now}},
        }
        self._write(namespace, pod, {"containerStatuses": status})

    def fail_pod(self, namespace: str, pod: str, exit_code: int, reason: str = "Error", message: str = "") -> None:
        """The pod is over: its container ended and is not started again (evicted, or lost with its node)."""
        now = _now()
        status = self._pod(namespace, pod)["status"]["containerStatuses"]
        ended = {"exitCode": exit_code, "reason": reason, "message": message, "startedAt": now, "finishedAt": now}
        status[0] |= {"ready": False, "started": False, "state": {"terminated": ended}}
        self._write(namespace, pod, {"phase": "Failed", "reason": reason, "containerStatuses": status})

    def set_condition(self, namespace: str, pod: str, kind: str, value: str = "True", reason: str = "Test") -> None:
        """One condition of the pod, such as DisruptionTarget or Ready."""
        condition = {"type": kind, "status": value, "reason": reason, "lastTransitionTime": _now()}
        others = [other for other in self._pod(namespace, pod)["status"]["conditions"] if other["type"] != kind]
        self._write(namespace, pod, {"conditions": [*others, condition]})

    @contextlib.contextmanager
    def lingering(self, namespace: str, pod: str) -> Iterator[None]:
        """A pod that is deleted inside of this stays, terminating, until its end."""
        obj = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": pod}}
        self._client.patch(obj, {"metadata": {"finalizers": ["test.areal.dev/lingers"]}})
        yield
        self._client.patch(obj, {"metadata": {"finalizers": None}})

    def _write(self, namespace: str, pod: str, status: dict[str, Any]) -> None:
        obj = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": pod}}
        self._client.patch(obj, {"status": status}, subresource="status")

    def _pod(self, namespace: str, name: str) -> dict[str, Any]:
        pod = self._client.get("v1", "Pod", namespace, name)
        assert pod is not None, f"there is no pod {namespace}/{name}"
        return pod

    def _is_ready(self, name: str) -> bool:
        node = self._client.get("v1", "Node", "", name) or {}
        conditions = node.get("status", {}).get("conditions", [])
        return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

    def _node(self, index: int) -> dict[str, Any]:
        name = f"fake-{index}"
        labels = {LABEL: "true", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"}
        labels["topology.kubernetes.io/rack"] = f"rack-{index // 4}"
        metadata = {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
