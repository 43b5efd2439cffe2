"""Tests of the chart. Those that call `helm` or `promtool` have the marker `kube_api`: they need `make k8s-tools`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart.chart_release import CRDS, HOME, REGISTRY, Helm, crds, crds_went, definition, everything, namespace_object
from kube.harness import tools
from kube.harness.control_plane import ControlPlane
from kube.harness.processes import eventually

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # `deploy` is no part of the installed package


@pytest.fixture(scope="package")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of these tests' own: the chart's CRDs belong to one release, and are deleted here."""
    own = ControlPlane(tmp_path_factory.mktemp("chart-plane"))
    try:
        own.start()
        own.admin.create(namespace_object(HOME))
        yield own
    finally:
        own.stop()


@pytest.fixture
def helm(plane: ControlPlane) -> Helm:
    """Helm in the chart's namespace; what it installs has the one value that has no default."""

    def call(command: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        own = [REGISTRY] if command in ("install", "upgrade") else []
        return tools.helm(plane.kubeconfig, command, *arguments, *own, namespace=HOME, **options)

    return call


@pytest.fixture
def clean(plane: ControlPlane) -> Iterator[set[str]]:
    """What is in the cluster before; releases and CRDs are taken away after, whatever the test left."""
    before = everything(plane.admin)
    yield before
    for release in yaml.safe_load(tools.helm(plane.kubeconfig, "list", "-A", "--output=json").stdout) or []:
        arguments = ["uninstall", release["name"], "--no-hooks"]
        tools.helm(plane.kubeconfig, *arguments, namespace=release["namespace"])
    for name in CRDS:
        plane.admin.delete(definition(name))
    # The API server tries for a minute to delete a kind's objects, and begins again when one came meanwhile.
    eventually(lambda: crds_went(plane.admin), "the CRDs to be gone", every_s=1.0, timeout_s=150)
    assert not CRDS & crds(plane.admin).keys()
    for pod in plane.admin.list("v1", "Pod", HOME):  # of tests that failed, which helm leaves for people to look at
        plane.admin.delete(pod, grace_s=0)
