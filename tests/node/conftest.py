"""Tests on a real node (level 3, marker `kube_node`).

    pytestmark = pytest.mark.kube_node

    def test_a_pod_runs(node, room): node.kubectl("run", …, namespace=room)

- `node`: a Kubernetes node of the tests' own, started once a session (12 s): etcd, API server, controllers, scheduler,
  containerd, kubelet, kube-proxy, CoreDNS, gVisor, volumes, and an enforcer of NetworkPolicies. `.kubectl`, `.helm`,
  `.admin` (a `Client`), `.kubeconfig`, `.inside("ip", "addr")`, `.mount_environment(namespace)`.
- `builder`: which images are on it: all of docker/, as `builder.reference("trainer")`; and `BUSYBOX_IMAGE`.
- `installed`: the chart is installed on it, with its values for CPUs.
- `room`: a fresh namespace, `restricted` enforced, in which pods may mount the Python environment.

They need root, the programs of `make k8s-tools` and, the first time, a Debian mirror for the base of the images.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from kube.harness.tools import ROOT
from node.harness import platform
from node.harness.basics import basic_images
from node.harness.builds import Builder
from node.harness.configs import NODE_ADDRESS
from node.harness.node import Node
from support.s3_server import S3Server, s3_server

IMAGES = ("operator", "services", "worker", "reward", "engine", "sglang", "trainer", "redis")
FIRST_DEADLINE_S = 900  # the first test waits for the node, its images and, once a machine, their base


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives tests on the node the time that its start takes."""
    for item in items:
        if item.get_closest_marker("kube_node") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(FIRST_DEADLINE_S))


@pytest.fixture(scope="session")
def builder() -> Builder:
    """The images of docker/, under the names that the chart gives them."""
    chart = yaml.safe_load((ROOT / "charts" / "areal" / "Chart.yaml").read_text())
    return Builder("areal.test", str(chart["appVersion"]))


@pytest.fixture(scope="session")
def node(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A running node with every image."""
    assert os.geteuid() == 0, "a node needs root: run these tests as root, or leave the marker kube_node out"
    directory = tmp_path_factory.mktemp("node")
    logs = directory / "log"
    logs.mkdir()
    archives: list[Path] = [*basic_images(directory), builder.build(IMAGES, directory)]
    running = Node(archives, logs)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def installed(node: Node, builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The chart, installed."""
    platform.install(node, builder, tmp_path_factory.mktemp("values"))


@pytest.fixture
def server(node: Node, tmp_path: Path) -> Iterator[S3Server]:
    """An S3 server at the node's own address, outside of every pod, with an empty bucket."""
    with s3_server(tmp_path / "s3", NODE_ADDRESS, ("nsenter", f"--target={node.pid}", "--net")) as running:
        yield running


@pytest.fixture
def room(node: Node) -> Iterator[str]:
    """A fresh namespace; its deletion is asked for, not waited for."""
    with fresh_room(node) as name:
        yield name


@pytest.fixture
def other_room(node: Node) -> Iterator[str]:
    """Another one."""
    with fresh_room(node) as name:
        yield name


@contextmanager
def fresh_room(node: Node) -> Iterator[str]:
    """A namespace for the time that it is entered."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    name = f"t-{secrets.token_hex(4)}"
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    node.admin.create(made)
    node.mount_environment(name)
    yield name
    node.admin.delete(made)
