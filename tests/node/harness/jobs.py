"""One RLJob on the node: submitted as a user does, followed through its status, hit by deleting pods."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from kube.harness.client import Object
from kube.harness.processes import eventually
from kube.harness.tools import ROOT, run
from node.harness.node import Node
from node.harness.platform import AREAL

API = "areal.dev/v1alpha1"
INFRASTRUCTURE = {"infra", "deadline", "poison"}
"""Reasons of tombstones that a healthy run has none of."""


class Job:
    """A job by name and namespace."""

    def __init__(self, node: Node, namespace: str, name: str) -> None:
        self.node, self.namespace, self.name = node, namespace, name

    @classmethod
    def submit(cls, node: Node, namespace: str, file: Path, *overrides: str) -> Job:
        """`areal submit`, from the root of the checkout, as the README says."""
        command = [*AREAL, "submit", str(file), "--namespace", namespace, "--kubeconfig", str(node.kubeconfig)]
        run([*command, *overrides], timeout_s=180, cwd=ROOT)
        return cls(node, namespace, yaml.safe_load(file.read_text())["metadata"]["name"])

    def asked(self, *command: str, cwd: Path, timeout_s: float = 180) -> str:
        """What `areal COMMAND rljob/NAME …` prints."""
        where = ["--namespace", self.namespace, "--kubeconfig", str(self.node.kubeconfig)]
        return run(
            [*AREAL, command[0], f"rljob/{self.name}", *command[1:], *where], timeout_s=timeout_s, cwd=cwd
        ).stdout

    @property
    def status(self) -> Object:
        """What the operator says."""
        found = self.node.admin.get(API, "RLJob", self.namespace, self.name)
        assert found is not None, f"there is no rljob/{self.name}"
        return dict(found.get("status") or {})

    @property
    def step(self) -> int:
        """Batches trained, as the status says."""
        return int((self.status.get("progress") or {}).get("step") or 0)

    def condition(self, name: str) -> Object:
        """One condition; empty when it is not there yet."""
        return next((item for item in self.status.get("conditions", ()) if item["type"] == name), {})

    def pods(self, role: str) -> list[Object]:
        """The role's pods that are not being deleted."""
        labels = f"areal.dev/rljob={self.name},areal.dev/role={role}"
        found = self.node.admin.list("v1", "Pod", self.namespace, labels)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def await_step(self, step: int, timeout_s: float) -> int:
        """Returns when so many steps are trained, or the job has ended; fails with the job's own words."""

        def there() -> bool:
            failed = self.condition("Failed")
            if failed.get("status") == "True":
                raise JobFailed(self.picture())
            return self.step >= step or self.condition("Complete").get("status") == "True"

        return self._await(there, f"step {step}", timeout_s) and self.step

    def await_end(self, timeout_s: float) -> Object:
        """The status of the ended job, which must be Complete."""

        def ended() -> bool:
            return any(self.condition(name).get("status") == "True" for name in ("Complete", "Failed"))

        self._await(ended, "the end", timeout_s)
        assert self.condition("Complete").get("status") == "True", self.picture()
        return self.status

    def await_replaced(self, role: str, uid: str, timeout_s: float = 600.0) -> None:
        """Returns when the role is ready in pods among which that one is not."""

        def replaced() -> bool:
            pods = self.pods(role)
            return bool(pods) and all(pod["metadata"]["uid"] != uid and _ready(pod) for pod in pods)

        self._await(replaced, f"another {role}", timeout_s)

    def connects(self, role: str, host: str, port: int) -> bool:
        """Whether a pod of the role gets a TCP connection to there."""
        knock = f"import socket; socket.create_connection(({host!r}, {port}), 3).close()"
        pod = self.pods(role)[0]["metadata"]["name"]
        command = ["exec", pod, "--", "/opt/areal/env/bin/python", "-c", knock]
        return self.node.kubectl(*command, namespace=self.namespace, check=False).returncode == 0

    def address(self, role: str) -> str:
        """Of the role's first pod."""
        return str(self.pods(role)[0]["status"]["podIP"])

    def run_dir(self) -> Path:
        """The run directory: on this node a volume is a folder of the machine."""
        claim = self.node.admin.get("v1", "PersistentVolumeClaim", self.namespace, f"{self.name}-run")
        assert claim is not None
        volume = self.node.admin.get("v1", "PersistentVolume", "", claim["spec"]["volumeName"])
        assert volume is not None
        return next((Path(volume["spec"]["hostPath"]["path"]) / "rljobs").glob(f"{self.name}-*"))

    def summary(self) -> dict[str, Any]:
        """What the finished run says of itself."""
        return dict(json.loads((self.run_dir() / "summary.json").read_text()))

    @contextmanager
    def page(self) -> Iterator[str]:
        """`areal view rljob/NAME` while entered: the address that it prints."""
        where = ["--namespace", self.namespace, "--kubeconfig", str(self.node.kubeconfig)]
        command = [*AREAL, "view", f"rljob/{self.name}", *where]
        running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert running.stdout is not None
        try:
            with running.stdout:
                yield running.stdout.readline().strip()
        finally:
            running.terminate()
            running.wait(timeout=60)

    def picture(self) -> str:
        """Everything one wants to see of a job that went wrong."""
        kubectl = [("get", "rljob", self.name, "-o", "yaml"), ("get", "pods", "-o", "wide"), ("get", "events")]
        parts = [self.node.kubectl(*words, namespace=self.namespace, check=False).stdout for words in kubectl]
        labels = f"areal.dev/rljob={self.name}"
        logs = ("logs", "-l", labels, "--tail=15", "--prefix", "--ignore-errors")
        parts.append(self.node.kubectl(*logs, namespace=self.namespace, check=False).stdout)
        return "\n".join(parts)

    def _await(self, ready: Any, what: str, timeout_s: float) -> bool:
        try:
            return bool(eventually(ready, what, timeout_s=timeout_s, every_s=0.5))
        except AssertionError as error:
            raise JobFailed(f"{self.name}: {error}\n{self.picture()}") from error


class JobFailed(Exception):
    """A job did not do what it should; not an AssertionError, which `eventually` would wait through."""


def applied(node: Node, namespace: str, file: Path) -> subprocess.CompletedProcess[str]:
    """`kubectl apply` of a job file."""
    return node.kubectl("apply", "--server-side", "-f", str(file), namespace=namespace)


def _ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
