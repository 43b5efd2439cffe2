"""NetworkPolicies as rules of nftables, for a node whose network plugin enforces none.

Pure: the API's objects in, a ruleset out. Standard semantics: a pod that some policy selects for a direction takes, or
makes, only the connections that some such policy allows; answers always pass; the node itself may reach its pods.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]
TABLE = "areal_policies"


@dataclass(frozen=True)
class Pod:
    """A pod that has an address of its own."""

    name: str
    namespace: str
    address: str
    labels: Mapping[str, str]
    named_ports: Mapping[str, int]

    @classmethod
    def of(cls, pod: Object) -> Pod | None:
        """None for a pod without an address, on the node's network, or ended."""
        address = pod.get("status", {}).get("podIP")
        ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if not address or ended or pod["spec"].get("hostNetwork"):
            return None
        metadata = pod["metadata"]
        ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
        named = {port["name"]: port["containerPort"] for port in ports if "name" in port}
        return cls(metadata["name"], metadata["namespace"], address, metadata.get("labels", {}), named)


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches; an empty one matches everything, an absent one nothing."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for expression in selector.get("matchExpressions") or ():
        value, values = labels.get(expression["key"]), expression.get("values") or ()
        match expression["operator"]:
            case "In":
                holds = value in values
            case "NotIn":
                holds = value not in values
            case "Exists":
                holds = value is not None
            case _:  # DoesNotExist
                holds = value is None
        if not holds:
            return False
    return True


def ruleset(policies: Iterable[Object], pods: Iterable[Object], namespaces: Iterable[Object]) -> str:
    """The whole table, in a form that `nft -f -` puts in the place of the last one in one step."""
    return _Ruleset(list(policies), [found for pod in pods if (found := Pod.of(pod))], namespaces).text()


class _Ruleset:
    def __init__(self, policies: Sequence[Object], pods: Sequence[Pod], namespaces: Iterable[Object]) -> None:
        self.policies = policies
        self.pods = sorted(pods, key=lambda pod: (pod.namespace, pod.name))
        self.labels = {space["metadata"]["name"]: space["metadata"].get("labels", {}) for space in namespaces}

    def text(self) -> str:
        chains: list[str] = []
        jumps_in: list[str] = []
        jumps_out: list[str] = []
        for number, pod in enumerate(self.pods):
            for direction, field, jumps in (("Ingress", "daddr", jumps_in), ("Egress", "saddr", jumps_out)):
                chosen = [policy for policy in self.policies if self._applies(policy, pod, direction)]
                if chosen:
                    name = f"{direction.lower()}_{number}"
                    rules = [rule for policy in chosen for rule in self._rules(policy, pod, direction)]
                    body = "".join(f"    {rule} return\n" for rule in dict.fromkeys(rules))
                    chains.append(f"  chain {name} {{ # {pod.namespace}/{pod.name}\n{body}    reject\n  }}\n")
                    jumps.append(f"    ip {field} {pod.address} jump {name}\n")
        answers = "    ct state established,related accept\n"
        hooks = [("forward", [*jumps_out, *jumps_in]), ("input", jumps_out)]
        for hook, jumps in hooks:
            head = f"    type filter hook {hook} priority 10; policy accept;\n"
            chains.append(f"  chain {hook} {{\n{head}{answers}{''.join(jumps)}  }}\n")
        return f"table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n{''.join(chains)}}}\n"

    def _applies(self, policy: Object, pod: Pod, direction: str) -> bool:
        spec = policy["spec"]
        default = ["Ingress", *(["Egress"] if "egress" in spec else [])]
        return (
            policy["metadata"]["namespace"] == pod.namespace
            and direction in spec.get("policyTypes", default)
            and selects(spec.get("podSelector") or {}, pod.labels)
        )

    def _rules(self, policy: Object, pod: Pod, direction: str) -> Iterator[str]:
        """What the policy allows one pod: one match a rule of nftables."""
        inward = direction == "Ingress"
        field = "saddr" if inward else "daddr"
        for rule in policy["spec"].get(direction.lower()) or ():
            peers = rule.get("from" if inward else "to")
            ports = rule.get("ports") or []
            if not peers:
                everyone = [pod] if inward else self.pods
                yield from (port for port in self._ports(ports, everyone))
                continue
            for peer in peers:
                if "ipBlock" in peer:
                    block = peer["ipBlock"]
                    match = f"ip {field} {ipaddress.ip_network(block['cidr'], strict=False)}"
                    for hole in block.get("except") or ():
                        match += f" ip {field} != {hole}"
                    yield from (f"{match} {port}".strip() for port in self._ports(ports, [pod] if inward else []))
                    continue
                for other in self._peers(peer, policy["metadata"]["namespace"]):
                    for port in self._ports(ports, [pod if inward else other]):
                        yield f"ip {field} {other.address} {port}".strip()

    def _peers(self, peer: Object, namespace: str) -> Iterator[Pod]:
        for pod in self.pods:
            if "namespaceSelector" in peer:
                near = selects(peer["namespaceSelector"], self.labels.get(pod.namespace, {}))
            else:
                near = pod.namespace == namespace
            if near and selects(peer.get("podSelector", {}), pod.labels):
                yield pod

    def _ports(self, ports: Sequence[Object], targets: Sequence[Pod]) -> Iterator[str]:
        """Matches for the ports of a rule; a name means what the target pods call so."""
        if not ports:
            yield ""
        for port in ports:
            protocol = port.get("protocol", "TCP").lower()
            number = port.get("port")
            if number is None:
                yield f"meta l4proto {protocol}"
            elif isinstance(number, str):
                for found in sorted({target.named_ports[number] for target in targets if number in target.named_ports}):
                    yield f"{protocol} dport {found}"
            else:
                yield f"{protocol} dport {number}" + (f"-{port['endPort']}" if "endPort" in port else "")
