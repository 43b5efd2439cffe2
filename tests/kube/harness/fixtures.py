"""Pytest fixtures of the Kubernetes tests; loaded for all rooms by tests/conftest.py, started only when asked for.

The docstring of tests/kube/conftest.py shows how to use them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml
from kube.harness import tools
from kube.harness.client import Client
from kube.harness.control_plane import Cluster, ControlPlane, ExternalCluster
from kube.harness.fleet import Fleet
from kube.harness.processes import Process, eventually

Runner = Callable[..., "CompletedProcess[str]"]
DIRECTORY = pytest.StashKey[Path]()


@pytest.fixture(scope="session")
def workplace(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The session's folder for logs, certificates and data; it stays when a test failed."""
    directory = request.config.stash[DIRECTORY] = Path(tempfile.mkdtemp(prefix="areal-kube-"))
    yield directory
    if not request.session.testsfailed:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(workplace: Path) -> Iterator[Cluster]:
    """The cluster of KUBECONFIG, else a control plane of the tests' own."""
    named = os.environ.get("KUBECONFIG")
    if named:
        external = ExternalCluster(Path(named).absolute(), workplace)
        yield external
        external.stop()
        return
    own = ControlPlane(workplace)
    try:
        own.start()
        yield own
    finally:
        own.stop()


@pytest.fixture(scope="session")
def control_plane(cluster: Cluster) -> ControlPlane:
    """The tests' own control plane, for tests that stop its API server or make it forget; skips on another cluster."""
    if not isinstance(cluster, ControlPlane):
        pytest.skip("stops the API server: only on a control plane of the tests' own (unset KUBECONFIG)")
    return cluster


@pytest.fixture(scope="session")
def admin(cluster: Cluster) -> Client:
    """A client with every right."""
    return cluster.admin


@pytest.fixture(scope="session")
def crds(cluster: Cluster) -> None:
    """The project's custom resource definitions, as the chart ships them. They stay: other sessions may use them."""
    install_crds(cluster.admin)


def install_crds(admin: Client) -> None:
    """All that the chart ships, until the API server serves them."""
    for path in sorted((tools.ROOT / "charts" / "areal" / "files" / "crds").glob("*.yaml")):
        definition = yaml.safe_load(path.read_text())
        admin.apply(definition)
        name = definition["metadata"]["name"]
        eventually(lambda name=name: is_established(admin, name), f"{name} established")


def is_established(admin: Client, name: str) -> bool:
    """Whether the API server serves a definition by now."""
    found = admin.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name) or {}
    conditions = found.get("status", {}).get("conditions") or []
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


@pytest.fixture(scope="session")
def volumes(cluster: Cluster, workplace: Path) -> Iterator[None]:
    """Pending claims get volumes: by our provisioner, or by what another cluster has."""
    if not cluster.ours:
        yield
        return
    with provisioned(cluster, workplace):
        yield


@contextmanager
def provisioned(cluster: Cluster, workplace: Path) -> Iterator[None]:
    """Our provisioner of volumes, until it is left."""
    command = [sys.executable, "-m", "kube.harness.volumes", "--kubeconfig", str(cluster.kubeconfig)]
    environment = {**os.environ, "PYTHONPATH": str(tools.ROOT / "tests")}
    process = Process(
        "volumes", [*command, "--root", str(workplace / "volumes")], workplace / "log" / "volumes.log", env=environment
    )
    storage = "/apis/storage.k8s.io/v1/storageclasses"
    process.wait_until(lambda: bool(cluster.admin.raw("GET", storage)["items"]), "storage class")
    yield
    process.stop()


@pytest.fixture(scope="session")
def kwok(cluster: Cluster, volumes: None, workplace: Path) -> Iterator[Fleet]:
    """Ten fake nodes: pods get scheduled, become Ready, end as their annotations say."""
    if not cluster.ours and not os.environ.get("KUBE_FAKE_NODES"):
        pytest.skip(
            "fake nodes would attract this cluster's own pods; KUBE_FAKE_NODES=1 says that it is for tests only"
        )
    fleet = Fleet(cluster.admin, workplace)
    try:
        fleet.start(nodes=10)
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A fresh namespace of the test."""
    with fresh_namespace(cluster) as name:
        yield name


@contextmanager
def fresh_namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace in which pods must be restricted; its deletion is asked for, not waited for."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "test.areal.dev/namespace": "true"}
    metadata = {"name": f"t-{secrets.token_hex(4)}", "labels": labels}
    made: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    cluster.admin.create(made)
    name = str(metadata["name"])
    account = partial(cluster.admin.get, "v1", "ServiceAccount", name, "default")
    eventually(account, "pods can be made", timeout_s=150)  # the controllers may be deleting hundreds of jobs just now
    yield name
    cluster.admin.delete(made)


@pytest.fixture(scope="session")
def kubectl(cluster: Cluster) -> Runner:
    """`kubectl("get", "pods", namespace=…)` with every right; raises CommandFailed unless check=False."""
    return lambda *arguments, **options: tools.kubectl(cluster.kubeconfig, *arguments, **options)


@pytest.fixture(scope="session")
def helm(cluster: Cluster) -> Runner:
    """`helm("install", …, namespace=…)` with every right; raises CommandFailed unless check=False."""
    return lambda *arguments, **options: tools.helm(cluster.kubeconfig, *arguments, **options)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """After a failure: where the control plane's logs are."""
    directory = config.stash.get(DIRECTORY, None)
    if directory is not None and terminalreporter.stats.keys() & {"failed", "error"}:
        terminalreporter.write_line(f"Kubernetes logs: {directory}/log")
