"""Request routing: which generation server takes a request, by floor, prefix-cache affinity and load, and who waits.

A choice is a pure function of what is known about the fleet. Order of the rules: the server may be routed to; it holds
a version that the group's floor allows; it is the one that holds the group's prompt in its prefix cache, unless it is
overloaded beside the least loaded; else the least loaded. Lag behind the newest version never matters, only the floor
does.

A synchronous loop evens out (`evened`): nothing new comes to a server that has ended its part while others still have
theirs. Where generation runs ahead the next groups fill it.

Requests that no server may take wait by their floor, under a named wait: whoever needs the oldest version may start
first. A server that is too old for one floor is too old for every higher one, so what is done for waiting requests
depends on how many may start, not on how many wait.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

from areal.observe.waits import WaitRegistry

OVERLOAD_FACTOR = 2  # a cached prompt saves one prefill; waiting behind twice as many answers costs more
OVERLOAD_SLACK = 16  # a group's own samples must not push each other away from an idle server
MOVE_GAP = 4  # requests fewer than the fullest server has: less isn't worth a second prefill


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


def evened(servers: Iterable[RoutedServer], own: Mapping[str, int], draw: float) -> tuple[str, str, int] | None:
    """Fullest server where this client has requests, emptiest of its version, how many of its own to move; else None.

    All clients together move half of what one server has more than the other: each its part, which `draw` in [0, 1)
    rounds, so that many clients with a request each neither all move theirs nor none.
    """
    routed = [server for server in servers if routable(server)]
    mine = [server for server in routed if own.get(server.server_id)]
    if not mine:
        return None
    full = max(mine, key=lambda server: (server.load, server.server_id))
    alike = [server for server in routed if server.version == full.version and server.refused_floor is None]
    empty = min(alike, default=full, key=lambda server: (server.load, server.server_id))
    more = full.load - empty.load
    moved = int(more // 2 * own[full.server_id] / full.load + draw) if more >= MOVE_GAP else 0
    return (full.server_id, empty.server_id, moved) if moved else None


T = TypeVar("T", bound=Hashable)


class WaitingRequests(Generic[T]):
    """Each request once, in the order of arrival within its floor."""

    def __init__(self, waits: WaitRegistry) -> None:
        self._waits = waits
        self._floors: dict[T, int] = {}
        self._by_floor: dict[int, dict[T, None]] = {}
        self._named: dict[int, AbstractContextManager[None]] = {}

    def __len__(self) -> int:
        return len(self._floors)

    def add(self, request: T, floor: int) -> None:
        """A request that didn't begins to wait."""
        self._floors[request] = floor
        if floor not in self._by_floor:
            self._by_floor[floor] = {}
            what = f"version ≥ {floor} on a server" if floor > 0 else "a server"
            self._named[floor] = self._waits.waiting("generation", what)
            self._named[floor].__enter__()
        self._by_floor[floor][request] = None

    def discard(self, request: T) -> None:
        """A request waits no more, if it did."""
        floor = self._floors.pop(request, None)
        if floor is None:
            return
        requests = self._by_floor[floor]
        del requests[request]
        if not requests:
            del self._by_floor[floor]
            self._named.pop(floor).__exit__(None, None, None)

    def __contains__(self, request: object) -> bool:
        return request in self._floors

    def lowest(self) -> Iterator[T]:
        """The first request of the lowest floor, again and again: discard it before the next."""
        while self._by_floor:
            yield next(iter(self._by_floor[min(self._by_floor)]))
