"""A generation server in the simulation: the real agent core; staging, swaps and canaries in virtual time."""

import random
from pathlib import Path

from areal.cards import CardSide, ServerPhase
from areal.clients.generation.routing import RoutedServer
from areal.generation.core import AgentCore, RequestEntry, WantedVersion
from areal.record.episode_ends import GENERATED
from areal.rollout.controller.inputs import PublishedWeights, RefusalReport, ServerBeat, ServerReport
from areal.values.policy import PolicyId

from simulation.controller_role import Connection, ControllerRole
from simulation.scheduler import Incarnation, Pipe, Process
from simulation.world import SimWorld

_BEAT_S = 0.5
_VOLUME = Path("volume")
_SWAP_S = 0.02  # the engine is paused, its weights change, the canary is scored


class ServerProcess:
    """One incarnation of server `index`. Begins without weights."""

    def __init__(self, world: SimWorld, index: int, incarnation: int, controller: ControllerRole) -> None:
        self.world = world
        self.index = index
        self.life = Incarnation(world.scheduler)
        self.lag_s = 0.0
        self.refusing = 0  # tries that fail from now on
        self.up = Pipe(world.scheduler)
        self.core = AgentCore(shared=world.scenario.shared)
        if not world.scenario.shared:
            self.core.engine_started(None)
        self._incarnation = incarnation
        self._connection = Connection(world, controller)
        self._tokens = 0
        self._heard: PublishedWeights | None = None  # the last order
        self._obeyed = 0  # newest trainer fence of weights that it holds
        self.life.start(self._beats())
        self.life.start(self._loads())

    def token(self, floor: int) -> int | None:
        """Make a token: the version that made it, None when this server must not, or hangs."""
        if not self.life.alive or self.life.paused_at is not None or self.core.entry(floor) is not RequestEntry.START:
            return None
        self._tokens += 1
        self.world.truth.made_tokens += 1
        self.world.truth.untold_tokens[self.index, self._incarnation] += 1
        return self.core.version

    # ---- weights

    def _hear(self) -> None:
        """The controller's orders name the wanted version again and again."""
        process = self._connection.process()
        if process is None or process.life.paused_at is not None or process.core is None:
            return
        if (turns := process.core.turns) is not None:
            self.core.order(turns.number, sleep=turns.training)
        served = process.core.fleet.served
        if served is not None and served is not self._heard:
            self._heard = served
            policy = PolicyId(served.version, served.fence)
            self.core.want(WantedVersion(policy, _VOLUME, served.manifest_digest, served.rollback))

    def _loads(self) -> Process:
        scheduler, core = self.world.scheduler, self.core
        while True:
            self._hear()
            if (phase := core.switch()) is not None:
                yield from self._switch(phase)
                self._beat()
                continue
            wanted = core.due(scheduler.now)
            if wanted is None:
                yield scheduler.between(0.02, 0.1)
                continue
            yield scheduler.between(0.5, 1.5) * self.world.scenario.load_s + self.lag_s
            if self.lag_s:
                self.lag_s = 0.0
                self.world.broken()
            yield from self._swap(wanted)
            self._beat()

    def _switch(self, phase: ServerPhase) -> Process:
        """Give the cards to the trainer, or have them again, with the newest version that isn't refused."""
        core, world = self.core, self.world
        if phase is ServerPhase.ASLEEP:
            yield world.scheduler.between(0.01, 0.1)
            world.cards[CardSide.SERVING].discard(self.life)
        else:
            core.phase = ServerPhase.WAKING
            while not world.take_cards(CardSide.SERVING, self.life):
                yield 0.05
                self._hear()
                if core.sleeps:
                    core.phase = ServerPhase.ASLEEP
                    return
            if not core.engine_up:
                core.engine_started(None)
            elif (wanted := core.newest) is not None:
                yield world.scheduler.between(0.5, 1.5) * world.scenario.load_s
                yield from self._swap(wanted)
        core.phase = phase
        world.log(lambda: f"server-{self.index} is {phase}")

    def _swap(self, wanted: WantedVersion) -> Process:
        """Half of the refusals are found before the swap, half by the canary, which puts the last good version back."""
        core, refuses = self.core, self.refusing > 0
        if refuses:
            self.refusing -= 1
            self.world.broken()
        if not refuses or self.refusing % 2:
            core.loaded(wanted.policy)
            yield _SWAP_S
        if not refuses:
            core.accept(wanted)
            self._obeyed = self.world.obeyed(f"server-{self.index}", wanted.policy.fence, self._obeyed)
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

    def last_words(self) -> tuple[str, str, dict[str, int]]:
        """What it would tell now of its tokens: process, incarnation, counts."""
        return f"server/{self.index}", str(self._incarnation), {GENERATED: self._tokens}

    def _beat(self) -> None:
        core, refused = self.core, self.core.refused
        report = ServerReport(
            server_id=str(self.index),
            incarnation=str(self._incarnation),
            address=f"server-{self.index}",
            policy_id=str(core.held) if core.version >= 0 else "",
            version=core.version,
            ready=core.ready,
            progress=self._tokens,
            tokens_total=self._tokens,
            live=core.engine_up,
            phase=core.phase,
            refused=RefusalReport(str(refused.policy), refused.tries, refused.reason) if refused else None,
        )
        if (process := self._connection.process()) is not None:
            self.up.send(process.post, ServerBeat(report))
            self.world.truth.untold_tokens[self.index, self._incarnation] = 0


class ServerRole:
    """The address of server `index`."""

    def __init__(self, world: SimWorld, index: int, controller: ControllerRole) -> None:
        self.index = index
        self.current: ServerProcess | None = None
        self._world = world
        self._controller = controller
        self._incarnations = 0

    def start(self) -> None:
        """Another process begins."""
        self._incarnations += 1
        self.current = ServerProcess(self._world, self.index, self._incarnations, self._controller)

    def token(self, floor: int) -> int | None:
        """As `ServerProcess.token`."""
        return self.current.token(floor) if self.current is not None else None


def told(fleet: list[tuple[int, int]], chance: random.Random) -> list[RoutedServer]:
    """The fleet as a routing client knows it; where the load is lies with chance."""
    return [RoutedServer(str(index), version, load=chance.randrange(3)) for index, version in fleet]
