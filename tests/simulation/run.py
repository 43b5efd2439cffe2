"""One schedule from its scenario to its verdict."""

import logging
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from areal.rollout.controller.gauges import idle_of
from areal.rollout.controller.inputs import SetHotFields

from simulation.checks import check_tokens, verify
from simulation.controller_role import ControllerRole
from simulation.scenario import Fault, FaultKind, Point, Scenario
from simulation.scheduler import Incarnation, Pipe
from simulation.server_role import ServerRole
from simulation.trainer_role import TrainerRole
from simulation.worker_role import WorkerRole
from simulation.world import SimWorld

LIMIT_S = 240.0  # virtual; the slowest schedules need a third of it


@dataclass(frozen=True, slots=True)
class ScheduleOutcome:
    """What a schedule came to. `problems` is empty when every promise was kept."""

    seed: int
    problems: tuple[str, ...]
    virtual_s: float
    events: int
    groups: int
    trace: tuple[str, ...] = ()


_PAUSES = {FaultKind.PAUSE_WORKER, FaultKind.PAUSE_SERVER, FaultKind.PAUSE_TRAINER, FaultKind.PAUSE_CONTROLLER}


class Living(Protocol):
    """A process of any role."""

    life: Incarnation


class SimRole(Protocol):
    """A name under which processes follow one another."""

    @property
    def current(self) -> Living | None: ...
    def start(self) -> None: ...


class SimStage:
    """All roles of one world, and the faults that happen to them."""

    def __init__(self, world: SimWorld) -> None:
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

    def last_words(self) -> list[tuple[str, str, dict[str, int]]]:
        """What processes that live would tell now of their tokens."""
        servers, workers = [role.current for role in self.servers], [role.current for role in self.workers]
        told = [server.last_words() for server in servers if server is not None and server.life.alive]
        return [*told, *(worker.last_words() for worker in workers if worker is not None and worker.life.alive)]

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
            case FaultKind.KILL_WORKER | FaultKind.PAUSE_WORKER | FaultKind.DRAIN_WORKER:
                worker = self.workers[fault.target]
                if fault.kind is FaultKind.DRAIN_WORKER and worker.current is not None:
                    worker.current.drain()
                self._replace(fault, worker.name, worker, 4.0)
            case FaultKind.KILL_SERVER | FaultKind.PAUSE_SERVER:
                self._replace(fault, f"server-{fault.target}", self.servers[fault.target], 4.0)
            case FaultKind.KILL_TRAINER | FaultKind.PAUSE_TRAINER:
                self._replace(fault, "trainer", self.trainer, 3.0)
            case FaultKind.KILL_CONTROLLER | FaultKind.PAUSE_CONTROLLER:
                self._replace(fault, "controller", self.controller, 3.0)
                if fault.kind is FaultKind.KILL_CONTROLLER and fault.value:
                    world.journal.lose_power()
            case FaultKind.KILL_REDIS:
                if "redis" not in self._down:
                    world.store.kill(fault.value)
                    self._start_later("redis", world.store.restart, 1.5)
            case FaultKind.FALL_BACK | FaultKind.ROLL_BACK:
                trainer, rollback = self.trainer.current, fault.kind is FaultKind.ROLL_BACK
                if trainer is not None and "trainer" not in self._down and not trainer.finished:
                    world.lose_newest_checkpoint()
                    trainer.life.end()
                    self._start_later("trainer", lambda: self.trainer.start(rollback=rollback), 3.0)
            case FaultKind.SET_ETA | FaultKind.SET_MAX_STEPS | FaultKind.SET_CONCURRENT:
                self._set_hot(fault)
            case _:
                self._disturb(fault)
        world.broken()
        scheduler.events += 1

    def _disturb(self, fault: Fault) -> None:
        """A process that lives is hindered."""
        worker = self.workers[fault.target].current if fault.target < len(self.workers) else None
        server = self.servers[fault.target].current if fault.target < len(self.servers) else None
        match fault.kind:
            case FaultKind.BREAK_STREAM if worker is not None:
                worker.break_stream()
            case FaultKind.LATE_REPORTS if worker is not None:
                self._lag(worker.up, fault.value)
            case FaultKind.LATE_ORDERS if worker is not None:
                self._lag(worker.down, fault.value)
            case FaultKind.LATE_BEATS if server is not None:
                self._lag(server.up, fault.value)
            case FaultKind.POISON:
                self.world.unreadable = True
            case FaultKind.LAG_SERVER if server is not None:
                server.lag_s = fault.value
            case FaultKind.REFUSE if server is not None:
                server.refusing = int(fault.value)
            case _:
                pass

    def _lag(self, pipe: Pipe, lag_s: float) -> None:
        pipe.lag_s = lag_s

        def heal() -> None:
            pipe.lag_s = 0.0
            self.world.broken()

        self.world.scheduler.after(lag_s + self.world.scheduler.between(0.5, 2.0), heal)
        self.world.scheduler.after(2 * lag_s + 2.0, self.world.broken)  # the last late message has arrived

    def _replace(self, fault: Fault, name: str, role: SimRole, longest_s: float) -> None:
        """A process dies, or hangs and goes on beside its successor for a while; another one takes its place."""
        process = role.current
        if name in self._down or process is None:
            return
        self._start_later(name, role.start, longest_s)
        if fault.kind not in _PAUSES:
            process.life.end()
            return
        scheduler = self.world.scheduler
        process.life.pause()
        scheduler.after(fault.value, process.life.resume)

        def end() -> None:
            process.life.end()
            self.world.broken()

        # Whoever watches over it ends it, but not before it was replaced.
        scheduler.after(max(fault.value, longest_s) + scheduler.between(0.5, 4.0), end)

    def _start_later(self, name: str, start: Callable[[], None], longest_s: float) -> None:
        self._down.add(name)

        def back() -> None:
            self._down.discard(name)
            start()
            self.world.broken()

        self.world.scheduler.after(self.world.scheduler.between(0.2, longest_s), back)

    def _set_hot(self, fault: Fault) -> None:
        process, value = self.controller.current, int(fault.value)
        if process is None or not process.life.alive or process.carrier is None:
            self.world.scheduler.after(0.2, self._set_hot, fault)
            return
        match fault.kind:
            case FaultKind.SET_ETA:
                process.carrier.ask(SetHotFields(max_staleness=value, ahead=min(value, self.world.scenario.ahead)))
            case FaultKind.SET_CONCURRENT:
                process.carrier.ask(SetHotFields(max_concurrent=value))
            case _:
                process.carrier.ask(SetHotFields(max_steps=value))


def simulate(scenario: Scenario, *, trace: bool = False) -> ScheduleOutcome:
    """Run one schedule. The same scenario always gives the same outcome."""
    logging.getLogger("areal").setLevel(logging.CRITICAL)  # all of it is scripted, and the trace tells more
    world = SimWorld(scenario, trace=trace)
    stage = SimStage(world)
    try:
        stage.start()
        finished = world.scheduler.run(LIMIT_S, lambda: world.truth.finished)
        if not finished:
            world.truth.problems.append(f"promise 6: not finished after {LIMIT_S:g} s: {_why(stage)}")
        else:
            verify(world)
            if (core := stage.controller.core) is not None:
                check_tokens(world, core.book.tally.tokens, stage.last_words())
    except Exception as error:
        world.log(lambda: traceback.format_exc())
        world.truth.problems.append(f"{type(error).__name__}: {error}")
    core = stage.controller.core
    return ScheduleOutcome(
        scenario.seed,
        tuple(world.truth.problems),
        world.scheduler.now,
        world.scheduler.events,
        core.book.next_admission if core else 0,
        tuple(world.trace or ()),
    )


def _why(stage: SimStage) -> str:
    core = stage.controller.core
    if core is None:
        return "no controller"
    book = core.book
    return (
        f"step {core.desk.step} of {core.max_steps}, chosen {book.order.chosen}, next {book.next_admission}, "
        f"open {[(g, book.groups[g].due) for g in sorted(book.open)[:8]]}, "
        f"vmax {core.fleet.newest_version}; {idle_of(core)}"
    )
