"""Runs the pods of the chart's hooks where there is no node: as processes of this machine, with their account's token.

Owns the pods with the component labels `test` and `uninstall` of one namespace: what their container would run is run,
its exit code becomes the pod's phase. What a pod would find in the cluster's network or on a volume is given by
`stands_for`: words of its command, and what they become here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from kube.harness import tools
from kube.harness.client import Refused
from kube.harness.control_plane import ControlPlane

Object = dict[str, Any]

_SELECTOR = "app.kubernetes.io/part-of=areal,app.kubernetes.io/component in (test,uninstall)"


class HookPods:
    """Use as a context manager; `said` holds what each pod printed, by name."""

    def __init__(self, plane: ControlPlane, namespace: str, directory: Path, stands_for: Mapping[str, str]) -> None:
        self._plane = plane
        self._namespace = namespace
        self._directory = directory
        self._stands_for = stands_for
        self._stop = threading.Event()
        self._seen: set[str] = set()
        self._running: list[threading.Thread] = []
        self._watcher = threading.Thread(target=self._look, name="hook-pods", daemon=True)
        self.said: dict[str, str] = {}

    def __enter__(self) -> HookPods:
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in [self._watcher, *self._running]:
            thread.join(timeout=30)

    def _look(self) -> None:
        while not self._stop.wait(0.1):
            for pod in self._plane.admin.list("v1", "Pod", self._namespace, _SELECTOR):
                uid = pod["metadata"]["uid"]
                if uid not in self._seen and pod["status"]["phase"] == "Pending":
                    self._seen.add(uid)
                    thread = threading.Thread(target=self._run, args=(pod,), daemon=True)
                    self._running.append(thread)
                    thread.start()

    def _run(self, pod: Object) -> None:
        name, spec = pod["metadata"]["name"], pod["spec"]
        home = self._directory / pod["metadata"]["uid"]
        self._mount(spec, home)
        [container] = spec["containers"]
        words = [*container["command"], *container["args"]]
        for told, stands in {"/areal/checks": str(home), **self._stands_for}.items():
            words = [part for word in words for part in word.replace(told, stands).split()]
        marks = pod["metadata"].get("annotations", {})
        server = self._plane.url.removeprefix("https://").partition(":")
        environment = {
            "PATH": os.environ["PATH"],
            "POD_NAME": name,
            "POD_NAMESPACE": self._namespace,
            "KUBERNETES_SERVICE_HOST": server[0],
            "KUBERNETES_SERVICE_PORT": server[2],
            "AREAL_CHECK_ACCOUNT": str(home),
            "JOB_COMPLETION_INDEX": marks.get("batch.kubernetes.io/job-completion-index", ""),
        }
        command = [sys.executable if words[0] == "python" else words[0], *words[1:]]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        self.said[name] = done.stdout + done.stderr
        ended = {
            "terminated": {"exitCode": done.returncode, "reason": "Completed" if done.returncode == 0 else "Error"}
        }
        status = {
            "phase": "Succeeded" if done.returncode == 0 else "Failed",
            "containerStatuses": [
                {"name": "main", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": ended}
            ],
        }
        try:
            self._plane.admin.patch(pod, {"status": status}, subresource="status")
        except Refused as refused:
            if refused.code != 404:  # helm may have deleted it by now
                raise

    def _mount(self, spec: Object, home: Path) -> None:
        """What the kubelet would: the scripts of the ConfigMap, the account's token and the cluster's certificate."""
        home.mkdir(parents=True)
        for volume in spec["volumes"]:
            if "configMap" in volume:
                scripts = self._plane.admin.get("v1", "ConfigMap", self._namespace, volume["configMap"]["name"])
                assert scripts is not None
                for file, text in scripts["data"].items():
                    (home / file).write_text(text, encoding="utf-8")
        if spec["automountServiceAccountToken"]:
            command = ["create", "token", spec["serviceAccountName"]]
            token = tools.kubectl(self._plane.kubeconfig, *command, namespace=self._namespace).stdout
            (home / "token").write_text(token.strip(), encoding="utf-8")
            trust = self._plane.admin.get("v1", "ConfigMap", self._namespace, "kube-root-ca.crt")
            assert trust is not None
            (home / "ca.crt").write_text(trust["data"]["ca.crt"], encoding="utf-8")
