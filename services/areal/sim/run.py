"""One schedule from its scenario to its verdict."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from areal.rollout.controller.status import idle_reason
from areal.sim.checks import verify
from areal.sim.controller_role import ControllerRole
from areal.sim.scenario import Fault, FaultKind, Point, Scenario
from areal.sim.server_role import ServerRole
from areal.sim.trainer_role import TrainerRole
from areal.sim.worker_role import WorkerRole
from areal.sim.world import World

LIMIT_S = 240.0  # virtual; the slowest schedules need a third of it


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a schedule came to. `problems` is empty when every promise was kept."""

    seed: int
    problems: tuple[str, ...]
    virtual_s: float
    events: int
    groups: int
    trace: tuple[str, ...] = ()


class Stage:
    """All roles of one world, and the faults that happen to them."""

    def __init__(self, world: World) -> None:
        self.world = world
        scenario = world.scenario
        self.controller = ControllerRole(world)
        self.servers = [ServerRole(world, i, self.controller) for i in range(scenario.servers)]
        self.workers = [WorkerRole(world, i, self.controller, self.servers) for i in range(scenario.workers)]
        self.trainer = TrainerRole(world, self.controller)
        self._down: set[str] = set()
        self._passed: Counter[Point] = Counter()
        world.on_point = self.passed

    def start(self) -> None:
        """Everything comes up, and the faults are on their way."""
        scenario, scheduler = self.world.scenario, self.world.scheduler
        if any(fault.kind is FaultKind.KILL_REDIS and fault.value for fault in scenario.faults):
            self.world.store.keep_snapshots()
        self.controller.start()
        for start in [role.start for role in self.servers] + [role.start for role in self.workers]:
            scheduler.after(scheduler.between(0.0, 0.3), start)
        self.trainer.start()
        for fault in scenario.faults:
            if fault.point is None:
                scheduler.after(fault.at_s, self.strike, fault)

    def passed(self, point: Point) -> None:
        """A moment passed; faults that were aimed at it follow."""
        self._passed[point] += 1
        for fault in self.world.scenario.faults:
            if fault.point is point and fault.nth == self._passed[point]:
                self.world.scheduler.after(fault.at_s, self.strike, fault)

    def strike(self, fault: Fault) -> None:
        """A fault happens; what it breaks heals after a while."""
        world, scheduler = self.world, self.world.scheduler
        world.log(lambda: f"FAULT {fault}")
        match fault.kind:
            case FaultKind.KILL_WORKER:
                worker = self.workers[fault.target]
                self._restart(worker.name, worker.kill, worker.start, 4.0)
            case FaultKind.KILL_SERVER:
                server = self.servers[fault.target]
                self._restart(f"server-{fault.target}", server.kill, server.start, 4.0)
            case FaultKind.KILL_TRAINER:
                self._restart("trainer", self.trainer.kill, self.trainer.start, 3.0)
            case FaultKind.KILL_CONTROLLER:
                self._restart("controller", self.controller.kill, self.controller.start, 3.0)
            case FaultKind.KILL_REDIS:
                store = world.store
                self._restart("redis", lambda: store.kill(fault.value), store.restart, 1.5)
            case FaultKind.BREAK_STREAM:
                self.workers[fault.target].break_stream()
            case FaultKind.LAG_SERVER:
                self.servers[fault.target].lag_s = fault.value
            case FaultKind.REFUSE:
                self.servers[fault.target].refusing = int(fault.value)
            case FaultKind.FALL_BACK | FaultKind.ROLL_BACK:
                rollback = fault.kind is FaultKind.ROLL_BACK
                if "trainer" not in self._down and not self.trainer.finished:
                    self.trainer.fall_back()
                    self._restart("trainer", self.trainer.kill, lambda: self.trainer.start(rollback=rollback), 3.0)
            case FaultKind.SET_ETA | FaultKind.SET_MAX_STEPS:
                self._set_hot(fault)
        scheduler.events += 1

    def _restart(self, name: str, kill: Callable[[], None], start: Callable[[], None], longest_s: float) -> None:
        if name in self._down:
            return
        self._down.add(name)
        kill()

        def back() -> None:
            self._down.discard(name)
            start()

        self.world.scheduler.after(self.world.scheduler.between(0.2, longest_s), back)

    def _set_hot(self, fault: Fault) -> None:
        if self.controller.core is None:
            self.world.scheduler.after(0.2, self._set_hot, fault)
            return
        value = int(fault.value)
        if fault.kind is FaultKind.SET_ETA:
            self.controller.ask(lambda core, ticket: core.set_hot(ticket, max_staleness=value))
        else:
            self.controller.ask(lambda core, ticket: core.set_hot(ticket, max_steps=value))


def _quiet() -> None:
    """Roles log what a person should see; here all of it is scripted, and the trace tells more."""
    logging.getLogger("areal").setLevel(logging.CRITICAL)


def simulate(scenario: Scenario, *, trace: bool = False) -> Outcome:
    """Run one schedule. The same scenario always gives the same outcome."""
    _quiet()
    world = World(scenario, trace=trace)
    stage = Stage(world)
    try:
        stage.start()
        finished = world.scheduler.run(LIMIT_S, lambda: world.truth.finished)
        if not finished:
            world.truth.problems.append(f"promise 6: not finished after {LIMIT_S:g} s: {_why(stage)}")
        else:
            verify(world)
    except Exception as error:
        world.log(lambda: traceback.format_exc())
        world.truth.problems.append(f"{type(error).__name__}: {error}")
    core = stage.controller.core
    return Outcome(
        scenario.seed,
        tuple(world.truth.problems),
        world.scheduler.now,
        world.scheduler.events,
        core.book.next_admission if core else 0,
        tuple(world.trace or ()),
    )


def _why(stage: Stage) -> str:
    core = stage.controller.core
    if core is None:
        return "no controller"
    book = core.book
    return (
        f"cursor {book.cursor}, step {core.desk.step} of {core.max_steps}, next {book.next_admission}, "
        f"open {sorted(book.open)[:8]}, vmax {core.fleet.newest_version}; {idle_reason(core)}"
    )
