"""Request routing: which generation server takes a request, by floor, prefix-cache affinity and load.

Pure: a function of what is known about the fleet.

Order of the rules: the server may be routed to; it holds a version that the group's floor allows; it is the one that
holds the group's prompt in its prefix cache, unless it is overloaded beside the least loaded; else the least loaded.
Lag behind the newest version never matters, only the floor does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OVERLOAD_FACTOR = 2  # a cached prompt saves one prefill; waiting behind twice as many answers costs more
OVERLOAD_SLACK = 16  # a group's own samples must not push each other away from an idle server


@dataclass(frozen=True)
class RoutedServer:
    """What a client knows of one server."""

    server_id: str
    version: int  # -1 holds no weights
    live: bool = True  # not given up for dead: what runs there goes on
    ready: bool = True  # may take new requests: heartbeats fresh, canary passed for the version it holds
    draining: bool = False
    connected: bool = True  # this client's stream to it works
    load: int = 0  # requests running and waiting there, ours included
    refused_floor: int | None = None  # it refused this floor since its last reported state, so it is older than it says


def routable(server: RoutedServer) -> bool:
    """Whether any request may go there."""
    return server.live and server.ready and not server.draining and server.connected and server.version >= 0


def eligible(server: RoutedServer, floor: int) -> bool:
    """Whether a request with this floor may go there."""
    too_old = server.refused_floor is not None and floor >= server.refused_floor
    return routable(server) and server.version >= floor and not too_old


def choose(servers: Iterable[RoutedServer], floor: int, preferred: str | None = None) -> str | None:
    """The server for a request, or None when none is eligible now. `preferred` is the group's server so far."""
    candidates = [server for server in servers if eligible(server, floor)]
    if not candidates:
        return None
    least = min(candidates, key=lambda server: (server.load, -server.version, server.server_id))
    for server in candidates:
        if server.server_id == preferred and server.load <= OVERLOAD_FACTOR * least.load + OVERLOAD_SLACK:
            return server.server_id
    return least.server_id
