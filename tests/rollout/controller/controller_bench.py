"""A controller's core with a model ledger and a clock, driven by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from areal.ledger.state import LedgerModel
from areal.ledger.values import CloseStatus, SampleMeta
from areal.observe.live import Idle
from areal.rollout.contract.values import SampleDone, WorkerReport, WorkReport
from areal.rollout.controller.core import Controller, Rebuilt
from areal.rollout.controller.decisions import (
    AdvanceLedger,
    AssignBatch,
    CallAnswer,
    CloseGroup,
    Decision,
    GrantLease,
    JournalEntry,
    KeepHot,
    KeepServed,
    ReopenGroup,
    ScanLedger,
)
from areal.rollout.controller.gauges import idle_of
from areal.rollout.controller.inputs import (
    AdvanceTrainer,
    AttachTrainer,
    Call,
    EntryJournalled,
    GroupClosed,
    Input,
    KeptOnDisk,
    LedgerScanned,
    PublishedWeights,
    PublishWeights,
    ServerBeat,
    ServerReport,
    WorkerBeat,
)
from areal.rollout.controller.settings import ControllerSettings

B, N = 2, 2
SETTINGS = ControllerSettings(
    group_size=N,
    batch_groups=B,
    max_steps=10,
    max_staleness=1,
    max_concurrent=100,
    group_deadline_s=60.0,
    filter_zero_variance=True,
)
D = TypeVar("D")


def weights(version: int, fence: int = 1, *, rollback: bool = False) -> PublishedWeights:
    return PublishedWeights(f"{version}.f{fence}", version, fence, "path", "digest", rollback)


@dataclass
class Bench:
    """A core, a ledger model that does at once what it decides, and a journal and a kept file that do so when told."""

    settings: ControllerSettings = SETTINGS
    rebuilt: Rebuilt = field(default_factory=lambda: Rebuilt(view=LedgerModel().scan()))
    journalling: bool = True
    keeping: bool = True
    ledger: LedgerModel = field(default_factory=LedgerModel)
    now: float = 0.0
    place: Callable[[int], str] = lambda _: ""

    def __post_init__(self) -> None:
        self.core = Controller(self.settings, self.rebuilt, self.now, self.place)
        self.seen: list[Decision] = []
        self.unwritten: list[JournalEntry] = []
        self.tickets = 100
        self.run()

    def run(self) -> list[Decision]:
        """Carry out everything that is decided, and what follows from it."""
        new: list[Decision] = []
        while decisions := self.core.decide(self.now):
            new += decisions
            for decision in decisions:
                self._carry(decision)
        self.seen += new
        return new

    def _carry(self, decision: Decision) -> None:
        match decision:
            case _ if isinstance(decision, JournalEntry):
                self.unwritten.append(decision)
                if self.journalling:
                    self.write()
            case KeepServed() | KeepHot():
                if self.keeping:
                    self.core.take(KeptOnDisk(), self.now)
            case CloseGroup(epoch, group, outcome, indices, short):
                answer = self.ledger.close(1, group, outcome, N, len(indices) if short else None)
                missing = answer.missing if answer.status is CloseStatus.MISSING else ()
                self.core.take(GroupClosed(epoch, group, answer.outcome or outcome, missing), self.now)
            case ScanLedger(ticket, epoch):
                self.core.take(LedgerScanned(ticket, epoch, self.ledger.scan()), self.now)
            case AssignBatch(step, groups):
                self.ledger.assign(1, step, groups)
            case AdvanceLedger(low):
                self.ledger.advance(1, low)
            case ReopenGroup(group):
                self.ledger.reopen(1, group)

    def write(self) -> None:
        """The journal is on disk."""
        entries, self.unwritten = self.unwritten, []
        for entry in entries:
            self.core.take(EntryJournalled(entry), self.now)

    def all(self, kind: type[D]) -> list[D]:
        return [decision for decision in self.seen if isinstance(decision, kind)]

    # ---- peers

    def worker(
        self, name: str = "w", *, capacity: int = 100, incarnation: str = "1", **report: object
    ) -> list[Decision]:
        return self.take(WorkerBeat(WorkerReport(name, incarnation, capacity, WorkReport(**report))))  # type: ignore[arg-type]

    def server(self, version: int, name: str = "s", **report: object) -> list[Decision]:
        values = {"ready": version >= 0, **report}
        beat = ServerBeat(ServerReport(name, "1", "a:1", f"{version}.f1", version, **values))  # type: ignore[arg-type]
        return self.take(beat)

    def done(
        self, group: int, rewards: Iterable[float] = (0.0, 1.0), *, version: int = 0, eta: int = 1, tokens: int = 0
    ) -> None:
        reports = []
        for index, reward in enumerate(rewards):
            meta = SampleMeta(1, reward, version, version, eta, 1, False, 0)
            self.ledger.add_sample(group, index, b"x", meta)
            reports.append(SampleDone(group, index, reward, version, version, eta, tokens))
        self.worker(done=tuple(reports))

    def take(self, item: Input) -> list[Decision]:
        """One input, and everything that follows from it."""
        self.core.take(item, self.now)
        return self.run()

    def ask(self, call: Call) -> CallAnswer | None:
        self.tickets += 1
        self.take(replace(call, ticket=self.tickets))
        return next((a for a in self.all(CallAnswer) if a.ticket == self.tickets), None)

    @property
    def idle(self) -> Idle:
        """Why it admits nothing."""
        idle = idle_of(self.core)
        assert idle is not None
        return idle

    def later(self, seconds: float) -> list[Decision]:
        """Time passes while every peer beats."""
        passed: list[Decision] = []
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.25)
            for worker in list(self.core.crew.workers.values()):
                beat = WorkerReport(worker.worker_id, worker.incarnation, worker.capacity)
                self.core.take(WorkerBeat(beat), self.now)
            for server in list(self.core.fleet.servers.values()):
                progress = server.report.progress + 1
                report = replace(server.report, progress=progress, tokens_total=progress)
                self.core.take(ServerBeat(report), self.now)
            self.core.tick(self.now)
            passed += self.run()
        return passed

    def trained(self, steps: int) -> None:
        """A trainer attaches and takes this many batches of two complete groups, in order."""
        self.ask(AttachTrainer(1, 0))
        for step in range(steps):
            for group in (2 * step, 2 * step + 1):
                self.done(group, version=step)
            assert self.ask(AdvanceTrainer(1, step, 2)) == CallAnswer(self.tickets)
            self.ask(PublishWeights(1, weights(step + 1)))
            self.server(step + 1)


def started(settings: ControllerSettings = SETTINGS, **bench: object) -> Bench:
    """A bench with version 0 on a server and one worker."""
    made = Bench(settings, **bench)  # type: ignore[arg-type]
    made.ask(PublishWeights(1, weights(0)))
    made.server(0)
    made.worker()
    return made


def leased(bench: Bench) -> list[int]:
    return [grant.group for grant in bench.all(GrantLease)]
