"""A generation server in the simulation: takes the wanted weights in the background, swaps, refuses, lags, dies."""

from __future__ import annotations

from areal.rollout.controller.reports import RefusalReport, ServerReport, Weights
from areal.sim.controller_role import ControllerRole
from areal.sim.scheduler import Life, Pipe, Process
from areal.sim.world import World

_BEAT_S = 0.5
_RETRY_S = 0.5


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

    def start(self) -> None:
        """Come up without weights."""
        self._life = Life(self.world.scheduler)
        self.incarnation += 1
        self._up = Pipe(self.world.scheduler)
        self._held: Weights | None = None
        self._refused: RefusalReport | None = None
        self._tokens = 0
        self._life.start(self._beats())
        self._life.start(self._loads())

    def kill(self) -> None:
        """Die."""
        self._life.end()

    def token(self, floor: int) -> int | None:
        """Make a token: the version that made it, None when this server must not."""
        if not self._life.alive or self._held is None or self._held.version < floor:
            return None
        self._tokens += 1
        return self._held.version

    def _wanted(self) -> Weights | None:
        core = self._controller.core
        return core.fleet.served if core is not None else None

    def _loads(self) -> Process:
        scheduler = self.world.scheduler
        while True:
            wanted = self._wanted()
            if wanted is None or wanted == self._held:
                yield scheduler.between(0.02, 0.1)
                continue
            yield scheduler.between(0.5, 1.5) * self.world.scenario.load_s + self.lag_s
            self.lag_s = 0.0
            if self.refusing > 0:
                self.refusing -= 1
                tries = self._refused.tries + 1 if self._refused else 1
                self._refused = RefusalReport(wanted.policy_id, tries, "canary")
                self._beat()
                yield _RETRY_S
                continue
            held = self._held
            if held is not None and (wanted.fence, wanted.version) <= (held.fence, held.version):
                continue
            self._held, self._refused = wanted, None
            self.world.truth.newest_loaded = max(self.world.truth.newest_loaded, wanted.version)
            self.world.log(lambda held=wanted: f"server-{self.index} holds {held.policy_id}")  # type: ignore[misc]
            self._beat()

    def _beats(self) -> Process:
        while True:
            self._beat()
            yield _BEAT_S

    def _beat(self) -> None:
        held = self._held
        report = ServerReport(
            server_id=str(self.index),
            incarnation=str(self.incarnation),
            address=f"server-{self.index}",
            policy_id=held.policy_id if held else "",
            version=held.version if held else -1,
            ready=held is not None,
            progress=self._tokens,
            refused=self._refused,
        )
        self._up.send(self._arrive, report)

    def _arrive(self, report: ServerReport) -> None:
        if self._controller.core is not None:
            self._controller.post(lambda core, now: core.server(report))
