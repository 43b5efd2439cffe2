"""Client-side view of the generation servers: the controller's reports, corrected by the client's own calls.

Pure. The controller's report is late by up to a heartbeat; what a server answered meanwhile (too old, draining, engine
lost) counts until its next different report or for `DOUBT_S`, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from areal.clients.generation.routing import Server
from areal.v1 import generation_pb2 as wire

DOUBT_S = 1.0  # two heartbeats: a report made after the doubt has arrived by then


@dataclass
class _Doubt:
    until: float
    refused_floor: int | None = None
    draining: bool = False
    suspect: bool = False


class Fleet:
    """States by server id, and doubts about them. `now` is the caller's monotonic clock in seconds."""

    def __init__(self) -> None:
        self._states: dict[str, wire.ServerState] = {}
        self._own_then: dict[str, int] = {}
        self._doubts: dict[str, _Doubt] = {}

    def __contains__(self, server_id: str) -> bool:
        return server_id in self._states

    def states(self) -> list[wire.ServerState]:
        """The controller's last report."""
        return list(self._states.values())

    def update(self, states: Iterable[wire.ServerState], own: Mapping[str, int]) -> None:
        """A new report; `own` is how many requests of this client each server holds now."""
        fresh = {state.server_id: state for state in states}
        for server_id, state in fresh.items():
            before = self._states.get(server_id)
            if before is None or _identity(before) != _identity(state):
                self._doubts.pop(server_id, None)
        self._states = fresh
        self._own_then = dict(own)

    def servers(self, own: Mapping[str, int]) -> list[Server]:
        """The fleet now; `own` holds this client's running requests for each server it is connected to."""
        return [self._server(state, own) for state in self._states.values()]

    def refused(self, server_id: str, floor: int, now: float) -> None:
        """It answered that it is older than `floor`."""
        doubt = self._doubt(server_id, now)
        doubt.refused_floor = floor if doubt.refused_floor is None else min(floor, doubt.refused_floor)

    def draining(self, server_id: str, now: float) -> None:
        """It answered that it drains."""
        self._doubt(server_id, now).draining = True

    def penalise(self, server_id: str, now: float) -> None:
        """Its engine or stream was lost, or it streamed nonsense: give it a moment."""
        self._doubt(server_id, now).suspect = True

    def expire(self, now: float) -> bool:
        """Forget old doubts; True when there were any."""
        old = [server_id for server_id, doubt in self._doubts.items() if doubt.until <= now]
        for server_id in old:
            del self._doubts[server_id]
        return bool(old)

    def _doubt(self, server_id: str, now: float) -> _Doubt:
        doubt = self._doubts.setdefault(server_id, _Doubt(now + DOUBT_S))
        doubt.until = now + DOUBT_S
        return doubt

    def _server(self, state: wire.ServerState, own: Mapping[str, int]) -> Server:
        doubt = self._doubts.get(state.server_id)
        others = max(0, state.running + state.waiting - self._own_then.get(state.server_id, 0))
        return Server(
            server_id=state.server_id,
            version=state.version,
            live=state.live,
            ready=state.ready and not (doubt and doubt.suspect),
            draining=state.draining or bool(doubt and doubt.draining),
            connected=state.server_id in own,
            load=others + own.get(state.server_id, 0),
            refused_floor=doubt.refused_floor if doubt else None,
        )


def _identity(state: wire.ServerState) -> tuple[str, str, int, bool, bool, bool]:
    """What makes a report different: load changes all the time and proves nothing."""
    return (state.address, state.policy_id, state.version, state.live, state.ready, state.draining)
