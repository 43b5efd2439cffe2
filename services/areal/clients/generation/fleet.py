"""Client-side view of the generation servers: the controller's reports, corrected by the client's own calls.

Pure. The controller's report is late by up to a heartbeat; what a server answered meanwhile (too old, draining, engine
lost) counts until its next different report or for `DOUBT_S`, whichever comes first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from areal.clients.generation.routing import RoutedServer
from areal.v1 import generation_pb2 as wire

DOUBT_S = 1.0  # two heartbeats: a report made after the doubt has arrived by then


@dataclass(frozen=True)
class _Doubt:
    until: float = 0.0
    refused_floor: int | None = None
    draining: bool = False
    suspect: bool = False


class Fleet:
    """States by server id, and doubts about them. `now` is the caller's monotonic clock in seconds."""

    def __init__(self) -> None:
        self._states: dict[str, wire.ServerState] = {}
        self._others: dict[str, int] = {}  # requests of other clients at each server, when it reported
        self._known: dict[str, RoutedServer] = {}
        self._doubts: dict[str, _Doubt] = {}

    def __contains__(self, server_id: str) -> bool:
        return server_id in self._states

    def states(self) -> list[wire.ServerState]:
        """The controller's last report."""
        return list(self._states.values())

    def asleep(self, server_id: str) -> bool:
        """Whether a server sends nothing because its cards are the trainer's now: what it has goes on later."""
        state = self._states.get(server_id)
        return state is not None and state.phase != wire.SERVER_PHASE_AWAKE

    def update(self, states: Iterable[wire.ServerState], own: Mapping[str, int]) -> None:
        """A new report; `own` is how many requests of this client each server holds now."""
        fresh = {state.server_id: state for state in states}
        for server_id, state in fresh.items():
            before = self._states.get(server_id)
            if before is None or _identity(before) != _identity(state):
                self._doubts.pop(server_id, None)
        self._states = fresh
        self._others = {
            server_id: max(0, state.running + state.waiting - own.get(server_id, 0))
            for server_id, state in fresh.items()
        }
        self._known = {server_id: self._server(state) for server_id, state in fresh.items()}

    def servers(self, own: Mapping[str, int]) -> list[RoutedServer]:
        """The fleet now; `own` holds this client's running requests for each server it is connected to.

        Asked for each request: a server that is as it was is not made again.
        """
        for server_id, known in self._known.items():
            connected, load = server_id in own, self._others[server_id] + own.get(server_id, 0)
            if (known.connected, known.load) != (connected, load):
                self._known[server_id] = replace(known, connected=connected, load=load)
        return list(self._known.values())

    def refused(self, server_id: str, floor: int, now: float) -> None:
        """It answered that it is older than `floor`."""
        doubt = self._doubt(server_id, now)
        lowest = floor if doubt.refused_floor is None else min(floor, doubt.refused_floor)
        self._doubts[server_id] = replace(doubt, refused_floor=lowest)
        self._look_again(server_id)

    def draining(self, server_id: str, now: float) -> None:
        """It answered that it drains."""
        self._doubts[server_id] = replace(self._doubt(server_id, now), draining=True)
        self._look_again(server_id)

    def penalise(self, server_id: str, now: float) -> None:
        """Its engine or stream was lost, or it streamed nonsense: give it a moment."""
        self._doubts[server_id] = replace(self._doubt(server_id, now), suspect=True)
        self._look_again(server_id)

    def expire(self, now: float) -> bool:
        """Forget old doubts; True when there were any."""
        old = [server_id for server_id, doubt in self._doubts.items() if doubt.until <= now]
        for server_id in old:
            del self._doubts[server_id]
            self._look_again(server_id)
        return bool(old)

    def _doubt(self, server_id: str, now: float) -> _Doubt:
        """What is doubted so far, for some time more."""
        return replace(self._doubts.get(server_id, _Doubt()), until=now + DOUBT_S)

    def _look_again(self, server_id: str) -> None:
        if (state := self._states.get(server_id)) is not None:
            self._known[server_id] = self._server(state)

    def _server(self, state: wire.ServerState) -> RoutedServer:
        """What is known of a server beside this client's own requests there."""
        doubt = self._doubts.get(state.server_id, _Doubt())
        return RoutedServer(
            server_id=state.server_id,
            version=state.version,
            live=state.live,
            ready=state.ready and not doubt.suspect,
            draining=state.draining or doubt.draining,
            connected=False,
            load=self._others[state.server_id],
            refused_floor=doubt.refused_floor,
        )


def _identity(state: wire.ServerState) -> tuple[str, str, int, bool, bool, bool]:
    """Fields by which reports differ: load changes all the time and proves nothing."""
    return (state.address, state.policy_id, state.version, state.live, state.ready, state.draining)
