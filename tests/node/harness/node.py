"""A real Kubernetes node for tests: `start` it, use `kubectl`, `helm`, `admin`, `stop` it.

Everything of it lives in one network, mount and process namespace and one folder; the only way in is its API server, on
a port of the machine's loopback. Needs root. Nothing is left after `stop`, nor after the test run was killed.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import yaml
from kube.harness import tools
from kube.harness.client import Client
from node.harness import environment, keeper
from node.harness.spec import NodeSpec

START_DEADLINE_S = 180.0
ENVIRONMENT_CLAIM = "areal-environment"


class NodeFailed(AssertionError):
    """The node did not start; the message holds what its parts said last."""


class Node:
    """One running node."""

    def __init__(self, archives: Sequence[Path], logs: Path) -> None:
        """`archives` of images, besides which there are no others; `logs`: a folder that outlives the node."""
        keeper.sweep()
        self.directory, self._lock = keeper.claim()
        self.logs = logs
        self.kubeconfig = self.directory / "kubeconfig"
        self._archives = tuple(archives)
        self._said: SimpleQueue[str] = SimpleQueue()
        self._keeper: subprocess.Popen[str] | None = None
        self.admin: Client

    def start(self) -> None:
        """Returns when pods can run."""
        listener = socket.create_server(("127.0.0.1", 0))
        spec = NodeSpec(
            directory=self.directory,
            logs=self.logs,
            tools=tools.tools_dir(),
            runc=_program("runc", "/usr/sbin/runc"),
            cni=_folder("/usr/lib/cni", "/opt/cni/bin"),
            archives=self._archives,
            binds=tuple(environment.binds(self._environment)),
            api_descriptor=listener.fileno(),
        )
        environment.write(self._environment)
        spec.write()
        variables = {**os.environ, "PYTHONPATH": str(tools.ROOT / "tests")}
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "node.harness.keeper", str(spec.file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.logs / "node.log").open("wb"),
            text=True,
            env=variables,
            pass_fds=[listener.fileno(), self._lock],
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(self._keeper,), daemon=True).start()
        port = listener.getsockname()[1]
        listener.close()
        os.close(self._lock)
        self._await('{"up": "ready"}')
        inner = self.directory / "control-plane" / "pki" / "admin.kubeconfig"
        config = yaml.safe_load(inner.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(config))
        self.admin = Client(self.kubeconfig)

    def stop(self) -> None:
        """Ends it all and returns when nothing is left."""
        if self._keeper is None:
            shutil.rmtree(self.directory, ignore_errors=True)
            return
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        code = self._keeper.wait(timeout=180)
        self._keeper = None
        assert not self.directory.exists(), f"the keeper ended with {code} and left {self.directory}"

    def inside(self, *command: str, timeout_s: float = 60.0, check: bool = True) -> str:
        """Runs a command of this machine in the node's namespaces; what it said."""
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid"]
        return tools.run([*enter, *command], timeout_s=timeout_s, check=check).stdout

    @property
    def pid(self) -> int:
        """Of the node's first process, as the machine counts."""
        assert self._keeper is not None
        guard = _child(self._keeper.pid)
        return _child(guard)

    def kubectl(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """`kubectl` with every right."""
        return tools.kubectl(self.kubeconfig, *arguments, **options)

    def helm(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """`helm` with every right."""
        return tools.helm(self.kubeconfig, *arguments, **options)

    def mount_environment(self, namespace: str) -> str:
        """Gives a namespace the claim through which its pods mount this checkout's Python environment; its name."""
        modes, size = ["ReadOnlyMany"], {"storage": "20Gi"}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": ENVIRONMENT_CLAIM}
        volume = f"environment-{namespace}"
        self.admin.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    "accessModes": modes,
                    "capacity": size,
                    "storageClassName": "static",
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": claim,
                    "hostPath": {"path": str(self._environment), "type": "Directory"},
                },
            }
        )
        self.admin.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": ENVIRONMENT_CLAIM, "namespace": namespace},
                "spec": {
                    "accessModes": modes,
                    "resources": {"requests": size},
                    "storageClassName": "static",
                    "volumeName": volume,
                },
            }
        )
        return ENVIRONMENT_CLAIM

    @property
    def _environment(self) -> Path:
        return self.directory / "environment"

    def _listen(self, keeper_process: subprocess.Popen[str]) -> None:
        assert keeper_process.stdout is not None
        for line in keeper_process.stdout:
            self._said.put(line.strip())
        self._said.put("")

    def _await(self, wanted: str) -> None:
        while True:
            try:
                said = self._said.get(timeout=START_DEADLINE_S)
            except Empty:
                said = ""
            if said == wanted:
                return
            if not said:
                tails = [f"--- {path}\n{_tail(path)}" for path in sorted(self.logs.glob("*.log"))]
                raise NodeFailed("the node did not start\n" + "\n".join(tails))


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-15:])


def _program(name: str, *places: str) -> str:
    found = shutil.which(name) or next((place for place in places if Path(place).is_file()), None)
    if found is None:
        raise tools.MissingTool(f"{name} is not installed: run `make k8s-tools`")
    return found


def _folder(*places: str) -> str:
    for place in places:
        if Path(place).is_dir():
            return place
    raise tools.MissingTool(f"no CNI plugins in {' or '.join(places)}: run `make k8s-tools`")
