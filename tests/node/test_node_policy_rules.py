"""What NetworkPolicies mean, as rules: the pure half of the node's enforcer."""

from __future__ import annotations

from typing import Any

import pytest
from node.harness.policy import ruleset, selects


def pod(name: str, address: str, namespace: str = "a", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"ports": [{"name": "grpc", "containerPort": 9000}]}]},
        "status": {"phase": "Running", "podIP": address},
    }


def policy(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "a"},
        "spec": {"podSelector": {"matchLabels": {"role": "r"}}, **spec},
    }


NAMESPACES = [{"metadata": {"name": name, "labels": {"name": name}}} for name in ("a", "b")]
PODS = [
    pod("server", "10.0.0.1", role="r"),
    pod("friend", "10.0.0.2", role="w"),
    pod("stranger", "10.0.0.3", "b", role="w"),
]


def chain(text: str, of: str) -> list[str]:
    """The rules of one pod's chain."""
    body = text.split(f"# {of}\n")[1].split("}")[0]
    return [line.strip() for line in body.strip().splitlines()]


def test_without_policies_nothing_is_refused() -> None:
    assert "reject" not in ruleset([], PODS, NAMESPACES)


def test_a_pod_selector_means_pods_of_the_policys_own_namespace() -> None:
    rule = {"from": [{"podSelector": {"matchLabels": {"role": "w"}}}], "ports": [{"port": 9000}]}
    text = ruleset([policy(ingress=[rule])], PODS, NAMESPACES)
    assert chain(text, "a/server") == ["ip saddr 10.0.0.2 tcp dport 9000 return", "reject"]
    assert "ip daddr 10.0.0.1 jump ingress_" in text


def test_a_namespace_selector_means_pods_of_those_namespaces() -> None:
    rule = {"from": [{"namespaceSelector": {"matchLabels": {"name": "b"}}}]}
    assert chain(ruleset([policy(ingress=[rule])], PODS, NAMESPACES), "a/server") == [
        "ip saddr 10.0.0.3 return",
        "reject",
    ]


def test_an_empty_list_of_rules_refuses_everything_and_an_empty_rule_allows_everything() -> None:
    sealed = policy(policyTypes=["Egress"], egress=[])
    assert chain(ruleset([sealed], PODS, NAMESPACES), "a/server") == ["reject"]
    opened = policy(policyTypes=["Egress"], egress=[{}])
    assert chain(ruleset([sealed, opened], PODS, NAMESPACES), "a/server") == ["return", "reject"]


def test_a_pod_that_may_not_call_out_may_not_call_the_node_either() -> None:
    text = ruleset([policy(policyTypes=["Egress"], egress=[])], PODS, NAMESPACES)
    for hook in ("forward", "input"):
        assert "ip saddr 10.0.0.1 jump egress_" in text.split(f"chain {hook} ")[1].split("}")[0]


@pytest.mark.parametrize(
    ("port", "match"),
    [
        ({"port": 53, "protocol": "UDP"}, "udp dport 53"),
        ({"port": 9000, "endPort": 9100}, "tcp dport 9000-9100"),
        ({"port": "grpc"}, "tcp dport 9000"),
        ({"protocol": "UDP"}, "meta l4proto udp"),
    ],
)
def test_ports_by_number_range_name_and_protocol(port: dict[str, Any], match: str) -> None:
    text = ruleset([policy(ingress=[{"ports": [port]}])], PODS, NAMESPACES)
    assert chain(text, "a/server") == [f"{match} return", "reject"]


def test_an_address_block_has_holes() -> None:
    block = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}
    text = ruleset([policy(policyTypes=["Egress"], egress=[{"to": [block]}])], PODS, NAMESPACES)
    assert chain(text, "a/server") == ["ip daddr 10.0.0.0/8 ip daddr != 10.1.0.0/16 return", "reject"]


def test_pods_without_an_address_of_their_own_are_left_alone() -> None:
    ended = pod("ended", "10.0.0.4", role="r")
    ended["status"]["phase"] = "Succeeded"
    assert "10.0.0.4" not in ruleset([policy(ingress=[])], [ended], NAMESPACES)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"key": "role", "operator": "In", "values": ["w", "x"]}, True),
        ({"key": "role", "operator": "NotIn", "values": ["w"]}, False),
        ({"key": "role", "operator": "Exists"}, True),
        ({"key": "role", "operator": "DoesNotExist"}, False),
    ],
)
def test_expressions_select_by_label(expression: dict[str, Any], expected: bool) -> None:
    assert selects({"matchExpressions": [expression]}, {"role": "w"}) is expected
