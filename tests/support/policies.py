"""What NetworkPolicies let through, as a function of their objects: an enforcer for tests of policies.

Follows networking.k8s.io/v1: a pod that no policy selects is open; one that is selected accepts what any of its
policies accepts. A connection passes when the caller may go out and the callee lets it in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """A pod as policies see it."""

    namespace: str
    labels: Mapping[str, str]
    namespace_labels: Mapping[str, str]


def passes(policies: Sequence[Json], caller: Pod, callee: Pod, port: int, protocol: str = "TCP") -> bool:
    """Whether `caller` reaches the port of `callee`."""
    out = _lets(policies, "Egress", caller, callee, port, protocol)
    return out and _lets(policies, "Ingress", callee, caller, port, protocol)


def selects(policy: Json, pod: Pod) -> bool:
    """Whether a policy speaks about a pod."""
    same = policy["metadata"]["namespace"] == pod.namespace
    return same and _matches(policy["spec"]["podSelector"], pod.labels)


def _lets(policies: Sequence[Json], way: str, pod: Pod, other: Pod, port: int, protocol: str) -> bool:
    speaking = [p for p in policies if selects(p, pod) and way in p["spec"]["policyTypes"]]
    if not speaking:
        return True
    side, peers = ("ingress", "from") if way == "Ingress" else ("egress", "to")
    return any(
        _peer_in(rule.get(peers), policy, other) and _port_in(rule.get("ports"), port, protocol)
        for policy in speaking
        for rule in policy["spec"].get(side) or []
    )


def _peer_in(peers: list[Json] | None, policy: Json, pod: Pod) -> bool:
    if not peers:
        return True
    return any(_is_peer(peer, policy["metadata"]["namespace"], pod) for peer in peers)


def _is_peer(peer: Json, home: str, pod: Pod) -> bool:
    assert "ipBlock" not in peer, "not needed here"
    if "namespaceSelector" in peer:
        if not _matches(peer["namespaceSelector"], pod.namespace_labels):
            return False
    elif pod.namespace != home:
        return False
    return _matches(peer.get("podSelector") or {}, pod.labels)


def _port_in(ports: list[Json] | None, port: int, protocol: str) -> bool:
    if not ports:
        return True
    return any(one.get("port", port) == port and one.get("protocol", "TCP") == protocol for one in ports)


def _matches(selector: Json, labels: Mapping[str, str]) -> bool:
    assert not selector.get("matchExpressions"), "not needed here"
    return all(labels.get(name) == value for name, value in (selector.get("matchLabels") or {}).items())
