"""The controller in the simulation: the real core; its loop, ledger link and journal writer in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeAlias

from areal.ledger.journal import Cursor, Tombstone
from areal.ledger.values import CloseStatus
from areal.rollout.controller.core import Controller, Rebuilt
from areal.rollout.controller.decisions import (
    Admit,
    AdvanceLedger,
    Answer,
    CloseGroup,
    Decision,
    FleetChanged,
    FloorChanged,
    GrantLease,
    JournalCursor,
    JournalTombstone,
    KeepHot,
    KeepServed,
    LeaseEvaluation,
    RecordEvaluation,
    ReopenGroup,
    Resend,
    Revoke,
    ScanLedger,
    StopWorkers,
)
from areal.rollout.controller.settings import Settings
from areal.sim.checks import check_admission, check_close
from areal.sim.scenario import Point, Scenario
from areal.sim.scheduler import Life, Pipe
from areal.sim.world import World

Operation: TypeAlias = CloseGroup | ReopenGroup | ScanLedger | AdvanceLedger
Input: TypeAlias = Callable[[Controller, float], None]

_TICK_S = 0.25
_GATHER_S = 0.002


class WorkerEnd(Protocol):
    """What the controller's side of a stream may do to a worker."""

    down: Pipe

    def ordered(self, orders: list[Decision], fence: int, committed: int) -> None: ...
    def told_fleet(self, fleet: list[tuple[int, int]]) -> None: ...


def settings_of(scenario: Scenario) -> Settings:
    """The controller's settings; one unit of bytes is a group."""
    return Settings(
        group_size=scenario.group_size,
        batch_groups=scenario.batch_groups,
        max_steps=scenario.max_steps,
        max_staleness=scenario.max_staleness,
        max_concurrent=scenario.max_concurrent,
        group_deadline_s=300.0,
        filter_zero_variance=scenario.filter_share > 0,
        bytes_per_group=1,
        budget_bytes=scenario.budget_groups,
        publish_interval=scenario.publish_interval,
        evaluation_interval=scenario.evaluation_interval,
        evaluation_rows=2 if scenario.evaluation_interval else 0,
        evaluation_concurrent=2,
    )


class ControllerRole:
    """Dies and is rebuilt; what it knew in memory is gone."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.core: Controller | None = None
        self.incarnation = 0
        self.workers: dict[str, tuple[int, WorkerEnd]] = {}  # open streams: name → (worker's incarnation, worker)
        self.answers: dict[int, Answer] = {}
        self._life = Life(world.scheduler)
        self._tickets = 0

    # ---- life

    def start(self) -> None:
        """Come up: fence, claim, scan, rebuild; tries again while Redis is away."""
        world = self.world
        self._life = Life(world.scheduler)
        if not world.store.up:
            self._life.after(0.1, self.start)
            return
        self.incarnation += 1
        self._fence = world.fence("controller")
        ledger = world.store.ledger()
        ledger.claim(self._fence)
        view = ledger.scan()
        self._run_id = world.store.run_id
        cursor, tombstones = world.journal.cursor, world.journal.tombstones
        next_group = cursor.next_group if cursor else 0
        below = sum(1 for group in tombstones if group < next_group)
        kept, settings = world.kept, settings_of(world.scenario)
        settings = replace(
            settings,
            max_steps=settings.max_steps if kept.max_steps is None else kept.max_steps,
            max_staleness=settings.max_staleness if kept.max_staleness is None else kept.max_staleness,
        )
        rebuilt = Rebuilt(
            view=view,
            tombstones={group: tombstone.reason for group, tombstone in tombstones.items()},
            trainer_fence=cursor.fence if cursor else 0,
            next_group=next_group,
            trainer_step=(next_group - below) // settings.batch_groups,
            served=kept.served,
            evaluated=world.evaluated,
        )
        self._inputs: list[Input] = []
        self._operations: deque[Operation] = deque()
        self._journal: list[JournalTombstone | JournalCursor] = []
        self._stepping = self._working = self._writing = False
        self.workers = {}
        self.answers = {}
        self.core = Controller(settings, rebuilt, world.scheduler.now)
        world.log(lambda: f"controller f{self._fence} starts at group {next_group}")
        self._life.after(_TICK_S, self._tick)
        self._wake()

    def kill(self) -> None:
        """Die between two steps."""
        self._life.end()
        self.core = None

    # ---- inputs

    def post(self, item: Input) -> None:
        """An input arrives."""
        self._inputs.append(item)
        self._wake()

    def ask(self, call: Callable[[Controller, int], None]) -> int:
        """A call arrives; its answer will be in `answers` under the returned ticket."""
        self._tickets += 1
        ticket = self._tickets
        self.post(lambda core, now: call(core, ticket))
        return ticket

    def _wake(self) -> None:
        if not self._stepping:
            self._stepping = True
            self._life.after(_GATHER_S, self._step)

    def _tick(self) -> None:
        core, store = self.core, self.world.store
        assert core is not None
        core.tick(self.world.scheduler.now)
        if store.up and store.run_id != self._run_id:
            self._restarted()
        self._step()
        self._life.after(_TICK_S, self._tick)

    def _step(self) -> None:
        self._stepping = False
        core, now = self.core, self.world.scheduler.now
        assert core is not None
        inputs, self._inputs = self._inputs, []
        for item in inputs:
            item(core, now)
        orders: dict[str, list[Decision]] = {}
        for decision in core.decide(now):
            self._carry(core, decision, orders)
        for name, todo in orders.items():
            if name in self.workers:
                stream = self.workers[name]
                stream[1].down.send(self._deliver, self.incarnation, name, stream, todo)
        self.world.truth.finished |= core.done and self._settled()

    def _settled(self) -> bool:
        return not self._journal and not self._operations

    def _deliver(self, incarnation: int, name: str, stream: tuple[int, WorkerEnd], orders: list[Decision]) -> None:
        if self.incarnation == incarnation and self.workers.get(name) == stream and self.core is not None:
            stream[1].ordered(orders, self._fence, self.core.book.committed)

    # ---- decisions

    def _carry(self, core: Controller, decision: Decision, orders: dict[str, list[Decision]]) -> None:
        world = self.world
        match decision:
            case GrantLease() | Revoke() | FloorChanged() | LeaseEvaluation():
                orders.setdefault(decision.worker, []).append(decision)
            case CloseGroup() | ReopenGroup() | ScanLedger() | AdvanceLedger():
                self._operations.append(decision)
                if not self._working:
                    self._working = True
                    self._life.after(world.scheduler.between(0.001, 0.02), self._operate)
            case JournalTombstone() | JournalCursor():
                self._journal.append(decision)
                if isinstance(decision, JournalTombstone):
                    world.on_point(Point.DECIDED)
                if not self._writing:
                    self._writing = True
                    self._life.after(world.scheduler.between(0.001, world.scenario.journal_s), self._write)
            case Answer(ticket):
                self.answers[ticket] = decision
            case KeepServed(weights):
                world.kept.served = weights
            case KeepHot(max_steps, max_staleness):
                world.kept.max_steps, world.kept.max_staleness = max_steps, max_staleness
            case FleetChanged():
                self.tell_fleet(core)
            case Resend() | StopWorkers():
                for name in self.workers:
                    orders.setdefault(name, []).append(decision)
            case RecordEvaluation(policy_id):
                world.evaluated.append(policy_id)
            case Admit(group):
                check_admission(world, core, group)
            case _:
                pass
        world.log(lambda: f"controller: {decision}")

    def fleet(self, core: Controller) -> list[tuple[int, int]]:
        """Routable servers as workers are told: (index, version)."""
        servers = core.fleet.servers.values()
        return [(int(s.report.server_id), s.report.version) for s in servers if s.routable]

    def tell_fleet(self, core: Controller) -> None:
        """Push the fleet to every worker."""
        fleet = self.fleet(core)
        for _, worker in self.workers.values():
            worker.down.send(worker.told_fleet, fleet)

    # ---- journal and ledger

    def _write(self) -> None:
        entries, self._journal = self._journal, []
        self._writing = False
        journal = self.world.journal
        for entry in entries:
            match entry:
                case JournalTombstone(group, reason, detail):
                    journal.tombstones.setdefault(group, Tombstone(group, reason, self._fence, detail))
                    self.post(lambda core, now, e=entry: core.journalled(e.group, e.reason))  # type: ignore[misc]
                case JournalCursor(ticket, fence, next_group, step):
                    if journal.cursor is None or fence >= journal.cursor.fence:
                        journal.cursor = Cursor(fence, next_group, step)
                    self.post(lambda core, now, t=ticket: core.cursor_journalled(t))  # type: ignore[misc]

    def _restarted(self) -> None:
        store = self.world.store
        store.ledger().claim(self._fence)
        self._run_id = store.run_id
        self._operations.clear()
        self.post(lambda core, now: core.ledger_restarted())

    def _operate(self) -> None:
        store = self.world.store
        if not store.up:
            self._life.after(0.1, self._operate)
            return
        if store.run_id != self._run_id:
            self._restarted()
        while self._operations:
            self._one(self._operations.popleft())
        self._working = False

    def _one(self, operation: Operation) -> None:
        ledger, fence = self.world.store.ledger(), self._fence
        match operation:
            case CloseGroup(epoch, group, outcome, indices, short):
                check_close(self.world, group, outcome)
                at_least = len(indices) if short else None
                answer = ledger.close(fence, group, outcome, self.world.scenario.group_size, at_least)
                missing = answer.missing if answer.status is CloseStatus.MISSING else ()
                final = answer.outcome or outcome
                self.post(lambda core, now: core.closed(now, epoch, group, final, missing))
            case ScanLedger(ticket, epoch):
                view = ledger.scan()
                self.post(lambda core, now: core.scanned(now, ticket, epoch, view))
            case AdvanceLedger(cursor, trainer_fence):
                ledger.advance(fence, cursor, trainer_fence or None)
            case ReopenGroup(group):
                ledger.reopen(fence, group)
