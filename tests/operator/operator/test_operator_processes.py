"""`areal operator` as processes on a real API server: who leads, who follows, how each ends."""

from __future__ import annotations

import json
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from areal.plan.roles import free_ports
from kube.harness.client import Client
from kube.harness.control_plane import Cluster
from kube.harness.processes import Process, eventually
from support.operator_jobs import job_object

pytestmark = pytest.mark.kube_api


class Operator:
    """One process."""

    def __init__(self, cluster: Cluster, namespace: str, identity: str, directory: Path) -> None:
        self.metrics_port, self.health_port = free_ports(2)
        command = [sys.executable, "-m", "areal.cli.main", "operator", f"--kubeconfig={cluster.kubeconfig}"]
        command += [f"--namespace={namespace}", f"--lease-namespace={namespace}", f"--identity={identity}"]
        command += ["--bind=127.0.0.1", f"--metrics-port={self.metrics_port}", f"--health-port={self.health_port}"]
        self.process = Process(identity, command, directory / f"{identity}.log")

    def status(self, path: str) -> int:
        """Of a probe; 0 while nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def metrics(self) -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60) as answer:
            return list(answer.read().decode().splitlines())

    @property
    def leads(self) -> bool:
        return "areal_operator_leader 1.0" in self.metrics()

    def ends(self) -> int | None:
        """Waits for its end; the exit code."""
        return end_of(self.process)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.process.log.read_text().splitlines()]


def end_of(process: Process) -> int | None:
    """The exit code, once there is one."""
    eventually(lambda: process.code is not None, "its end")
    return process.code


@pytest.fixture
def start(cluster: Cluster, crds: None, namespace: str, tmp_path: Path) -> Iterator[Any]:
    """Start an operator of the test's namespace and wait until it is ready."""
    running: list[Operator] = []

    def begin(identity: str) -> Operator:
        made = Operator(cluster, namespace, identity, tmp_path)
        running.append(made)
        eventually(lambda: made.status("/readyz") == 200, f"{identity} ready")
        return made

    yield begin
    for one in running:
        one.process.stop(grace_s=15)


def summary(admin: Client, namespace: str, name: str) -> str:
    job = admin.get("areal.dev/v1alpha1", "RLJob", namespace, name) or {}
    return str(job.get("status", {}).get("summary", ""))


def lease(admin: Client, namespace: str) -> dict[str, Any]:
    found = admin.get("coordination.k8s.io/v1", "Lease", namespace, "areal-operator")
    assert found is not None
    return dict(found["spec"])


def test_a_follower_takes_over_from_a_leader_that_is_asked_to_stop(start, admin, namespace) -> None:
    first = start("first")
    eventually(lambda: first.leads, "first leads")
    second = start("second")
    assert second.status("/healthz") == 200
    assert not second.leads

    admin.create(job_object(namespace, "before", model={"path": "models/on-my-machine"}))
    eventually(lambda: summary(admin, namespace, "before") == "Rejected", "the leader's word about a job")
    told = [line for line in first.metrics() if line.startswith("areal_rljob_status")]
    assert told == [f'areal_rljob_status{{namespace="{namespace}",rljob="before",summary="Rejected"}} 1.0']
    assert not any(line.startswith("areal_rljob_status") for line in second.metrics()), "jobs are told about once"

    first.process.signal(signal.SIGTERM)
    assert first.ends() == 0
    eventually(lambda: second.leads, "second leads", timeout_s=60)
    assert lease(admin, namespace)["holderIdentity"] == "second"
    assert lease(admin, namespace)["leaseTransitions"] == 1
    admin.create(job_object(namespace, "after", model={"path": "models/on-my-machine"}))
    eventually(lambda: summary(admin, namespace, "after") == "Rejected", "the new leader's word")
    assert {line["level"] for line in first.log()} <= {"info", "warning"}
    assert first.log()[-1]["role"] == "operator"


def test_a_leader_whose_lease_was_taken_ends_at_once_and_says_why(start, admin, namespace) -> None:
    leader = start("leader")
    eventually(lambda: leader.leads, "it leads")
    held = admin.get("coordination.k8s.io/v1", "Lease", namespace, "areal-operator")
    admin.patch(held, {"spec": {"holderIdentity": "usurper"}})
    assert leader.ends() == 75
    assert "lost the lease to usurper" in leader.process.log.read_text()
    assert lease(admin, namespace)["holderIdentity"] == "usurper"


def test_outside_of_a_pod_without_a_kubeconfig_it_says_what_to_give(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "areal.cli.main", "operator", "--lease-namespace=default"]
    process = Process("lost", command, tmp_path / "log", env={"PATH": "/usr/bin", "HOME": str(tmp_path)})
    assert end_of(process) == 64
    assert "--kubeconfig" in process.log.read_text()
