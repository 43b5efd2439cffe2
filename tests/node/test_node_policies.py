"""The node's enforcer: pods reach what NetworkPolicies allow, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from kube.harness.processes import eventually
from node.harness.node import Node
from node.harness.pods import await_pods, pod

pytestmark = pytest.mark.kube_node


def policy(namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def reaches(node: Node, namespace: str, pod: str, url: str) -> bool:
    said = node.kubectl(
        "exec", pod, "--", "timeout", "3", "wget", "-q", "-O", "-", url, namespace=namespace, check=False
    )
    return said.stdout.strip() == "here"


def resolves(node: Node, namespace: str, pod: str, name: str) -> bool:
    return node.kubectl("exec", pod, "--", "nslookup", name, namespace=namespace, check=False).returncode == 0


@pytest.fixture
def server(node: Node, room: str) -> str:
    """The URL of a web server in a room with a worker and a trainer; all may talk."""
    serve = ["sh", "-c", "echo here > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"]
    node.admin.create(pod(room, "server", serve, {"role": "reward"}))
    for role in ("worker", "trainer"):
        node.admin.create(pod(room, role, ["sleep", "3600"], {"role": role}))
    await_pods(node.admin, room, "server", "worker", "trainer")
    found = node.admin.get("v1", "Pod", room, "server")
    assert found is not None
    url = f"http://{found['status']['podIP']}:8080/"
    for role in ("worker", "trainer"):
        eventually(lambda role=role: reaches(node, room, role, url), f"{role} reaches the open server", timeout_s=60)
    return url


def test_a_pod_of_another_role_is_refused_and_the_named_one_passes(node: Node, room: str, server: str) -> None:
    rule = {
        "from": [{"podSelector": {"matchLabels": {"role": "worker"}}}],
        "ports": [{"port": 8080, "protocol": "TCP"}],
    }
    chosen = {"matchLabels": {"role": "reward"}}
    node.admin.create(policy(room, "reward", podSelector=chosen, policyTypes=["Ingress"], ingress=[rule]))
    eventually(lambda: not reaches(node, room, "trainer", server), "the trainer is refused", timeout_s=60)
    assert reaches(node, room, "worker", server)
    assert not reaches(node, room, "trainer", server)


def test_a_sealed_pod_reaches_nothing_not_even_dns_or_the_api_server(node: Node, room: str, server: str) -> None:
    name = "kubernetes.default.svc.cluster.local"
    assert resolves(node, room, "worker", name)
    chosen = {"matchLabels": {"role": "worker"}}
    node.admin.create(policy(room, "sealed", podSelector=chosen, policyTypes=["Egress"], egress=[]))
    eventually(lambda: not reaches(node, room, "worker", server), "the worker is sealed", timeout_s=60)
    assert not resolves(node, room, "worker", name)
    knock = node.kubectl("exec", "worker", "--", "nc", "-w", "2", "10.96.0.1", "443", namespace=room, check=False)
    assert knock.returncode != 0
    assert reaches(node, room, "trainer", server)
