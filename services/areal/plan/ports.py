"""Free ports on loopback, outside the range from which the kernel takes the ports of outgoing connections.

A role may bind its port a minute after it was chosen; a port of the ephemeral range is often taken by then.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

from areal.errors import InfraError

LOWEST = 10_000  # below live well-known services
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LINUX_DEFAULT = 32_768


def free_ports(count: int) -> list[int]:
    """So many different ports that nobody listens on now. All are held open until the last one is found."""
    candidates = list(range(LOWEST, max(_ephemeral_from(), LOWEST + 1_000)))
    random.shuffle(candidates)
    found: list[int] = []
    with ExitStack() as held:
        for port in candidates:
            if len(found) == count:
                break
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    if len(found) < count:
        raise InfraError(f"only {len(found)} of {count} ports are free", fix="stop what listens on this machine")
    return found


def _ephemeral_from() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError):
        return _LINUX_DEFAULT
