"""The node's network namespace: an address for the node and a way out that ends nowhere."""

from __future__ import annotations

from pathlib import Path

from kube.harness.tools import run
from node.harness.configs import GATEWAY, NODE_ADDRESS


def set_up() -> None:
    """Runs inside the namespace. A veth pair, because not every kernel has dummy devices."""
    for words in (
        "link set lo up",
        "link add node0 type veth peer name node1",
        f"addr add {NODE_ADDRESS}/24 dev node0",
        "link set node0 up",
        "link set node1 up",
        f"route add default via {GATEWAY}",
    ):
        run(["ip", *words.split()])
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
