"""The controller in the simulation: the real core, carrier, journal and rebuild; their ports in virtual time."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from areal.errors import FencedError
from areal.ledger.journal import Journal
from areal.rollout.contract.values import WorkerReport
from areal.rollout.controller import decisions
from areal.rollout.controller.carrier import Carrier, Entry, LedgerAnswer, Operation, WorkOrder, rebuild
from areal.rollout.controller.core import Controller, Rebuilt
from areal.rollout.controller.disk_writer import write_entries
from areal.rollout.controller.groups import GroupPhase
from areal.rollout.controller.inputs import Input, TrainerBeat, WorkerBeat
from areal.rollout.controller.kept import RestoredState, check_alive
from areal.rollout.controller.settings import ControllerSettings

from simulation import checks
from simulation.scenario import Point, Scenario
from simulation.scheduler import Incarnation, Pipe
from simulation.world import SimWorld

# The controller's core under watch: what must not change an input of somebody who has no say.


class WatchedController(Controller):
    """`blame` is told of every promise that an input breaks at once."""

    def __init__(
        self, settings: ControllerSettings, rebuilt: Rebuilt, now: float, blame: Callable[[str], None]
    ) -> None:
        super().__init__(settings, rebuilt, now)
        self._blame = blame

    def take(self, item: Input, now: float) -> None:
        """As the core takes it."""
        match item:
            case WorkerBeat(report):
                self._worker_beat(item, report, now)
            case TrainerBeat(report) if report.fence < self.desk.fence:
                before = (self.book.order.committed, self.desk.finished)
                super().take(item, now)
                if before != (self.book.order.committed, self.desk.finished):
                    self._blame(f"promise 5: the beat of trainer f{report.fence} counted after f{self.desk.fence}")
            case _:
                super().take(item, now)

    def _worker_beat(self, item: Input, report: WorkerReport, now: float) -> None:
        """A worker's word about another one's group changes nothing; what it stored does."""
        told = {failure.group for failure in report.news.failures} | set(report.news.released)
        told -= {done.group for done in report.news.done}
        others = {
            index: (group.worker, group.infra_tries)
            for index in told
            if (group := self.book.groups.get(index)) is not None
            and group.phase is GroupPhase.OPEN
            and group.worker not in ("", report.worker_id)
        }
        super().take(item, now)
        for index, before in others.items():
            group = self.book.groups.get(index)
            if group is None or group.phase is not GroupPhase.OPEN or (group.worker, group.infra_tries) != before:
                self._blame(f"promise 5: {report.worker_id} changed group {index}, which {before[0]} holds")


_TICK_S = 0.25
_GATHER_S = 0.002
_TORN_SHARE = 0.05  # of looks at a stream, that find it broken while two processes have the controller's address
_WRONG_SHARE = 0.3  # of connections, while an address still names the process that was replaced


class WorkerEnd(Protocol):
    """What arrives at a worker."""

    def ordered(self, orders: list[WorkOrder], fence: int, committed: int) -> None: ...
    def told_to_resend(self, fence: int) -> None: ...
    def told_fleet(self, fleet: list[tuple[int, int]]) -> None: ...


class SimStream:
    """An open stream to a worker."""

    def __init__(self, worker: WorkerEnd, down: Pipe) -> None:
        self.worker = worker
        self.down = down
        self.open = True

    def send(self, call: Callable[..., None], *args: object) -> None:
        """Have the worker hear it, if the stream is still open then."""
        self.down.send(self._deliver, call, args)

    def _deliver(self, call: Callable[..., None], args: tuple[object, ...]) -> None:
        if self.open:
            call(*args)


def settings_of(scenario: Scenario) -> ControllerSettings:
    """The controller's settings; one unit of bytes is a group."""
    return ControllerSettings(
        group_size=scenario.group_size,
        batch_groups=scenario.batch_groups,
        max_steps=scenario.max_steps,
        max_staleness=scenario.max_staleness,
        max_concurrent=scenario.max_concurrent,
        ahead=scenario.ahead,
        admission_order=scenario.admission_order,
        group_deadline_s=scenario.deadline_s,
        filter_zero_variance=scenario.filter_share > 0,
        bytes_per_group=1,
        budget_bytes=scenario.budget_groups,
        publish_interval=scenario.publish_interval,
        evaluation_interval=scenario.evaluation_interval,
        evaluation_rows=2 if scenario.evaluation_interval else 0,
        evaluation_concurrent=2,
        shared_cards=scenario.shared,
    )


class ControllerProcess:
    """One incarnation, from its fence to its end. What it knew in memory is gone with it."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.life = Incarnation(world.scheduler)
        self.fence = world.fence("controller")
        self.carrier: Carrier | None = None
        self.workers: dict[str, SimStream] = {}
        self.answers: dict[int, decisions.CallAnswer] = {}
        self.callers: dict[int, int] = {}  # ticket → fence of the trainer that called
        self._obeyed = self._served = 0  # newest trainer whose call was accepted, whose weights were served
        self._journal = Journal(Path("journal"), world.journal)
        self._found = self._journal.start(self.fence)
        self._kept = world.kept[max(world.kept)] if world.kept else RestoredState()
        world.kept[self.fence] = self._kept
        self._orders: dict[str, list[WorkOrder]] = {}
        self._stepping = False
        self._guarded(self._claim)

    @property
    def core(self) -> Controller | None:
        """None until the ledger was claimed."""
        return self.carrier.core if self.carrier is not None else None

    def end(self, *, power: bool = False) -> None:
        """Die between two steps; with its machine's power what it did not sync is lost."""
        self.life.end()
        if power:
            self.world.journal.lose_power()

    def _guarded(self, step: object, *args: object) -> None:
        """Run a step; the error of an old fence ends the process."""
        try:
            step(*args)  # type: ignore[operator]
        except FencedError as error:
            words = error.message
            self.world.log(lambda: f"controller f{self.fence} ends: {words}")
            if self.fence == self.world.fences["controller"]:
                self.world.truth.problems.append(f"a living controller was fenced: {words}")
            self.life.end()

    def _after(self, delay_s: float, step: object, *args: object) -> None:
        self.life.after(delay_s, self._guarded, step, *args)

    def _claim(self) -> None:
        world = self.world
        if not world.store.up:
            self._after(0.1, self._claim)
            return
        ledger = world.store.ledger()
        ledger.claim(self.fence)
        world.used_ledger("controller", self.fence)
        self._run_id = world.store.run_id
        settings, rebuilt = rebuild(
            settings_of(world.scenario), self._found, self._kept, ledger.scan(), world.evaluated, self.fence
        )
        checks.check_rebuilt(world, settings)
        core = WatchedController(settings, rebuilt, world.scheduler.now, world.truth.problems.append)
        self.carrier = Carrier(core, self, self._kept)
        if counts := world.token_counts:
            core.book.tally.tokens.restore(counts[max(counts)])
        self._on_disk = [checks.held(core)]  # and what was added while this process lives
        world.log(lambda: f"controller f{self.fence} starts at step {len(rebuilt.batches)}")
        self._after(_TICK_S, self._tick)
        self.wake()

    # ---- inputs

    def open_stream(self, name: str, worker: WorkerEnd, down: Pipe) -> SimStream:
        """A worker's new stream takes the place of its old one."""
        if (old := self.workers.get(name)) is not None:
            old.open = False
        stream = self.workers[name] = SimStream(worker, down)
        return stream

    def post(self, item: Input) -> None:
        """A message arrives."""
        if self.life.alive and self.carrier is not None:
            self.carrier.post(item)

    def _tick(self) -> None:
        assert self.carrier is not None
        store = self.world.store
        if store.up and store.run_id != self._run_id:
            self._restarted()
        self.carrier.tick(self.world.scheduler.now)
        self.carrier.core.look_at_tokens(self.world.scheduler.now)
        self.world.token_counts[self.fence] = self.carrier.core.book.tally.tokens.kept()
        self._send()
        self._after(_TICK_S, self._tick)

    def _step(self) -> None:
        assert self.carrier is not None
        self._stepping = False
        self.carrier.step(self.world.scheduler.now)
        self._send()

    def _send(self) -> None:
        """The orders of one step travel together."""
        assert self.carrier is not None
        core, orders = self.carrier.core, self._orders
        checks.check_length(self.world, core)
        checks.check_order(self.world, core)
        checks.check_kept(self.world, core, self._on_disk)
        self._orders = {}
        for name, todo in orders.items():
            if name in self.workers:
                stream = self.workers[name]
                stream.send(stream.worker.ordered, todo, self.fence, core.book.order.low)
        if self.fence == self.world.fences["controller"]:
            self.world.truth.finished |= core.done and self.carrier.settled

    # ---- ports

    def wake(self) -> None:
        if not self._stepping:
            self._stepping = True
            self._after(_GATHER_S, self._step)

    def journal(self, entries: Sequence[Entry]) -> None:
        world = self.world
        for entry in entries:
            if isinstance(entry, decisions.JournalTombstone):
                world.on_point(Point.DECIDED)
            if isinstance(entry, decisions.JournalBatch) and self.carrier is not None:
                checks.check_batch(world, self.carrier.core, entry)
        self._after(world.scheduler.between(0.001, world.scenario.journal_s), self._write, entries)

    def _write(self, entries: Sequence[Entry]) -> None:
        newest = self.world.fences["controller"]
        try:
            write_entries(self._journal, entries, self.fence, lambda: newest)
        finally:
            if newest > self.fence:
                checks.check_void(self.world, entries, self.fence)
        assert self.carrier is not None
        self._after(self.world.scheduler.between(0.0, 0.01), self.carrier.journalled)

    def keep(self, kept: RestoredState) -> None:
        world = self.world
        self._after(world.scheduler.between(0.001, world.scenario.journal_s), self._write_kept, kept)

    def _write_kept(self, kept: RestoredState) -> None:
        self.world.kept[self.fence] = kept
        check_alive(self.fence, self.world.fences["controller"])
        self.world.truth.kept = kept
        said = {name: value for name in checks.HELD if (value := getattr(kept, name)) is not None}
        self._on_disk.append(replace(self._on_disk[-1], **said))
        assert self.carrier is not None
        self._after(self.world.scheduler.between(0.0, 0.01), self.carrier.kept)

    def reply(self, answer: decisions.CallAnswer) -> None:
        self.answers[answer.ticket] = answer
        if (caller := self.callers.pop(answer.ticket, None)) is not None and answer.error is None:
            self._obeyed = self.world.obeyed("a controller", caller, self._obeyed)

    def order(self, order: WorkOrder) -> None:
        self._orders.setdefault(order.worker, []).append(order)
        self.world.log(lambda: f"controller f{self.fence}: {order}")

    def resend(self) -> None:
        for stream in self.workers.values():
            stream.send(stream.worker.told_to_resend, self.fence)

    def stop_workers(self) -> None:
        """They stay: the run is checked to its last message."""

    def tell_fleet(self) -> None:
        fleet = self.fleet()
        for stream in self.workers.values():
            stream.send(stream.worker.told_fleet, fleet)

    def tell_servers(self) -> None:
        """They read what is served as often as they look."""
        assert self.carrier is not None
        if (served := self.carrier.core.fleet.served) is not None:
            self._served = self.world.obeyed("the published weights", served.fence, self._served)

    def tell_trainers(self) -> None:
        """They read whose turn it is as often as they look."""

    def record(self, evaluation: decisions.RecordEvaluation) -> None:
        self.world.evaluated.append(evaluation.name)

    def admitted(self, group: int) -> None:
        assert self.carrier is not None
        checks.check_admission(self.world, self.carrier.core, group)

    def fleet(self) -> list[tuple[int, int]]:
        """Routable servers as workers are told: (index, version)."""
        assert self.carrier is not None
        servers = self.carrier.core.fleet.servers.values()
        return [(int(s.report.server_id), s.report.version) for s in servers if s.routable]

    # ---- the ledger

    def ledger(self, operations: Sequence[Operation]) -> None:
        self._after(self.world.scheduler.between(0.001, 0.02), self._operate)

    def _restarted(self) -> None:
        assert self.carrier is not None
        store = self.world.store
        store.ledger().claim(self.fence)
        self.world.used_ledger("controller", self.fence)
        self._run_id = store.run_id
        self.carrier.ledger_restarted()

    def _operate(self) -> None:
        assert self.carrier is not None
        store, chance = self.world.store, self.world.scheduler.random
        if not store.up:
            self._after(0.1, self._operate)
            return
        if store.run_id != self._run_id:
            self._restarted()
            return
        operations = list(self.carrier.unanswered)
        if len(operations) > 1:
            chance.shuffle(operations)  # they run at once
        for operation in operations:
            answer = self._do(operation)
            if not isinstance(operation, decisions.ScanLedger):
                self.world.used_ledger("controller", self.fence)
            if self.world.scenario.repeat_share and chance.random() < self.world.scenario.repeat_share:
                self._after(0.3, self._repeat, operation, answer)
            else:
                self.carrier.answered(operation, answer)

    def _repeat(self, operation: Operation, late: LedgerAnswer) -> None:
        """The answer was late, so the call was made again: it is done twice and answered twice."""
        assert self.carrier is not None
        store = self.world.store
        if store.up and store.run_id == self._run_id:
            self.carrier.answered(operation, self._do(operation))
            self.carrier.answered(operation, late)
        else:
            self._operate()

    def _do(self, operation: Operation) -> LedgerAnswer:
        ledger, fence = self.world.store.ledger(), self.fence
        self.world.log(lambda: f"controller f{self.fence}: {operation}")
        match operation:
            case decisions.CloseGroup(_, group, outcome, indices, short):
                assert self.carrier is not None
                checks.check_close(self.world, operation)
                size = self.world.scenario.group_size
                answer = ledger.close(fence, group, outcome, size, len(indices) if short else None)
                checks.check_closed(self.world, self.carrier.core, group, answer)
                return answer
            case decisions.ScanLedger():
                return ledger.scan()
            case decisions.AssignBatch(step, groups):
                checks.check_assigned(self.world, operation)
                ledger.assign(fence, step, groups)
            case decisions.AdvanceLedger(low):
                ledger.advance(fence, low)
            case decisions.ReopenGroup(group):
                ledger.reopen(fence, group)
        return None


class ControllerRole:
    """The controller's address: `current` is the process that a new connection reaches."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.current: ControllerProcess | None = None
        self.older: list[ControllerProcess] = []

    def start(self) -> None:
        """Another process begins."""
        self.older = [process for process in (*self.older, self.current) if process is not None and process.life.alive]
        self.current = ControllerProcess(self.world)

    def going_on(self) -> list[ControllerProcess]:
        """Processes that were replaced, and go on."""
        if not self.older:
            return self.older
        self.older = [process for process in self.older if process.life.alive]
        return [process for process in self.older if process.life.paused_at is None]

    def reached(self) -> ControllerProcess | None:
        """The process that a new connection reaches: the current one, or by chance an older one that goes on."""
        going_on, chance = self.going_on(), self.world.scheduler.random
        return chance.choice(going_on) if going_on and chance.random() < _WRONG_SHARE else self.current

    @property
    def core(self) -> Controller | None:
        """Of the current process, None when it can't be reached."""
        process = self.current
        return process.core if process is not None and process.life.alive else None


class Connection:
    """Which controller process a peer's stream leads to: one that hangs is given up after a while."""

    def __init__(self, world: SimWorld, role: ControllerRole) -> None:
        self._world = world
        self._role = role
        self._patience_s = world.scheduler.between(0.2, 2.0)
        self._process: ControllerProcess | None = None

    def process(self) -> ControllerProcess | None:
        """The process at the other end, None while there is none that serves."""
        process, chance = self._process, self._world.scheduler.random
        if self._role.going_on() and chance.random() < _TORN_SHARE:
            process = None
        if process is None or not process.life.alive or process.life.silent_s > self._patience_s:
            self._process = process = self._role.reached()
        return process if process is not None and process.life.alive and process.carrier is not None else None
