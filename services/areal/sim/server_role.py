"""A generation server in the simulation: the real agent core; staging, swaps and canaries in virtual time."""

from __future__ import annotations

import random
from pathlib import Path

from areal.clients.generation.routing import Server
from areal.generation.core import AgentCore, Entry, Wanted
from areal.rollout.controller.reports import RefusalReport, ServerReport
from areal.sim.controller_role import ControllerRole
from areal.sim.scheduler import Life, Pipe, Process
from areal.sim.world import World
from areal.weights.policy import PolicyId

_BEAT_S = 0.5
_SWAP_S = 0.02  # the engine is paused, its weights change, the canary is scored


class ServerRole:
    """Server `index`. Comes back without weights."""

    def __init__(self, world: World, index: int, controller: ControllerRole) -> None:
        self.world = world
        self.index = index
        self.incarnation = 0
        self.lag_s = 0.0
        self.refusing = 0  # tries that fail from now on
        self._controller = controller
        self._life = Life(world.scheduler)
        self._life.end()
        self.core = AgentCore()

    def start(self) -> None:
        """Come up without weights."""
        self._life = Life(self.world.scheduler)
        self.incarnation += 1
        self._up = Pipe(self.world.scheduler)
        self.core = AgentCore()
        self.core.engine_started(None)
        self._tokens = 0
        self._life.start(self._beats())
        self._life.start(self._loads())

    def kill(self) -> None:
        """Die."""
        self._life.end()

    def token(self, floor: int) -> int | None:
        """Make a token: the version that made it, None when this server must not."""
        if not self._life.alive or self.core.entry(floor) is not Entry.START:
            return None
        self._tokens += 1
        return self.core.version

    # ---- weights

    def _hear(self) -> None:
        """The controller's orders name the wanted version again and again."""
        core = self._controller.core
        if core is not None and (served := core.fleet.served) is not None:
            policy = PolicyId(served.version, served.fence)
            self.core.want(Wanted(policy, Path("volume"), served.manifest_digest, served.rollback))

    def _loads(self) -> Process:
        scheduler, core = self.world.scheduler, self.core
        while True:
            self._hear()
            wanted = core.due(scheduler.now)
            if wanted is None:
                yield scheduler.between(0.02, 0.1)
                continue
            yield scheduler.between(0.5, 1.5) * self.world.scenario.load_s + self.lag_s
            self.lag_s = 0.0
            yield from self._swap(wanted)
            self._beat()

    def _swap(self, wanted: Wanted) -> Process:
        """Half of the refusals are found before the swap, half by the canary, which puts the last good version back."""
        core, refuses = self.core, self.refusing > 0
        if refuses:
            self.refusing -= 1
        if not refuses or self.refusing % 2:
            core.loaded(wanted.policy)
            yield _SWAP_S
        if not refuses:
            core.accept(wanted)
            self.world.truth.newest_loaded = max(self.world.truth.newest_loaded, wanted.policy.version)
            self.world.log(lambda: f"server-{self.index} holds {wanted.policy}")
            return
        core.refuse(wanted.policy, "scripted", self.world.scheduler.now)
        self.world.log(lambda: f"server-{self.index} refuses {wanted.policy}")
        if core.held == wanted.policy and core.accepted is not None:
            core.loaded(core.accepted.policy)
            yield _SWAP_S
            core.accept(core.accepted)

    # ---- heartbeats

    def _beats(self) -> Process:
        while True:
            self._beat()
            yield _BEAT_S

    def _beat(self) -> None:
        core, refused = self.core, self.core.refused
        report = ServerReport(
            server_id=str(self.index),
            incarnation=str(self.incarnation),
            address=f"server-{self.index}",
            policy_id=str(core.held) if core.version >= 0 else "",
            version=core.version,
            ready=core.ready,
            progress=self._tokens,
            refused=RefusalReport(str(refused.policy), refused.tries, refused.reason) if refused else None,
        )
        self._up.send(self._arrive, report)

    def _arrive(self, report: ServerReport) -> None:
        if self._controller.core is not None:
            self._controller.post(lambda core, now: core.server(report))


def told(fleet: list[tuple[int, int]], chance: random.Random) -> list[Server]:
    """The fleet as a routing client knows it; where the load is lies with chance."""
    return [Server(str(index), version, load=chance.randrange(3)) for index, version in fleet]
