"""Carries out what the controller's core decides, in the order that its promises need. Pure: `CarrierPorts` do it.

Owns the order of effects: an entry is in the journal before the ledger, or a caller, hears of it; what is kept is on
disk before the core, servers or a caller hear of it; operations for a ledger that lost data are dropped with its epoch.
One batch of journal entries and one of ledger operations is under way at a time; what is decided meanwhile is the next.
The service drives it with asyncio, the simulation with virtual time.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import Protocol, TypeAlias

from areal.ledger.journal import JournalState, PoolChange
from areal.ledger.values import CloseResult, CloseStatus, LedgerSnapshot
from areal.rollout.contract.values import fields_of
from areal.rollout.controller import decisions, inputs
from areal.rollout.controller.core import Controller, Rebuilt
from areal.rollout.controller.evaluation import BlindLook
from areal.rollout.controller.kept import RestoredState
from areal.rollout.controller.settings import ControllerSettings

Entry: TypeAlias = decisions.JournalEntry | decisions.CloseGroup
Operation: TypeAlias = (
    decisions.CloseGroup | decisions.ReopenGroup | decisions.ScanLedger | decisions.AssignBatch
    | decisions.AdvanceLedger
)  # fmt: skip
LedgerAnswer: TypeAlias = CloseResult | LedgerSnapshot | None
WorkOrder: TypeAlias = decisions.GrantLease | decisions.Revoke | decisions.LeaseEvaluation

TURNS = 1 << 20  # of one controller, at most: its successor's have higher numbers
_CLOSES_AT_ONCE = 64  # more would only queue inside the ledger's client


class CarrierPorts(Protocol):
    """What a carrier needs done. Each call returns at once."""

    def wake(self) -> None:
        """An input waits: call `Carrier.step` soon."""

    def journal(self, entries: Sequence[Entry]) -> None:
        """Write these and fsync, then call `Carrier.journalled`."""

    def ledger(self, operations: Sequence[Operation]) -> None:
        """Carry these out, at once or one after the other, and call `Carrier.answered` for each."""

    def keep(self, kept: RestoredState) -> None:
        """Write this to disk, then call `Carrier.kept`."""

    def reply(self, answer: decisions.CallAnswer) -> None:
        """A call has its answer."""

    def order(self, order: WorkOrder) -> None:
        """Tell the worker it names."""

    def resend(self) -> None:
        """Tell every worker to add its held samples again."""

    def stop_workers(self) -> None:
        """Tell every worker that the run is over."""

    def tell_fleet(self) -> None:
        """Tell every worker the whole fleet."""

    def tell_servers(self) -> None:
        """Tell every generation server the served weights and the turn."""

    def tell_trainers(self) -> None:
        """Tell the trainer the turn."""

    def record(self, evaluation: decisions.RecordEvaluation) -> None:
        """Write an evaluation's result down."""

    def admitted(self, group: int) -> None:
        """A group exists from now on."""


class Carrier:
    """Feeds one core and carries its decisions out."""

    def __init__(self, core: Controller, ports: CarrierPorts, kept: RestoredState) -> None:
        self.core = core
        self._ports = ports
        self._kept = kept
        self._keeping = False
        self._inbox: list[inputs.Input] = []
        self._tickets = 0
        self._to_write: list[Entry] = []
        self._writing: list[Entry] = []
        self._to_ask: deque[Operation] = deque()
        self._asked: list[Operation] = []

    # ---- inputs

    def post(self, item: inputs.Input) -> None:
        """Something happened."""
        self._inbox.append(item)
        self._ports.wake()

    def ask(self, call: inputs.Call) -> int:
        """A call came: the ticket that its answer will hold."""
        self._tickets += 1
        self.post(replace(call, ticket=self._tickets))
        return self._tickets

    def step(self, now: float) -> None:
        """Take what waits and carry out what follows from it."""
        inbox, self._inbox = self._inbox, []
        for item in inbox:
            self.core.take(item, now)
        self._carry(self.core.decide(now))

    def tick(self, now: float) -> None:
        """Time passed."""
        self.core.tick(now)
        self.step(now)

    # ---- answers of the ports

    def journalled(self) -> None:
        """The entries given last are on disk: now the ledger or the core may hear of them."""
        written, self._writing = self._writing, []
        for entry in written:
            if not isinstance(entry, decisions.CloseGroup):
                self.post(inputs.EntryJournalled(entry))
            elif entry.epoch == self.core.book.epoch:
                self._to_ask.append(entry)
        self._write_next()
        self._ask_next()

    def kept(self) -> None:
        """What was given to keep is on disk."""
        self._keeping = False
        self.post(inputs.KeptOnDisk())

    def answered(self, operation: Operation, answer: LedgerAnswer) -> None:
        """The ledger did an operation. An answer that nobody waits for any more changes nothing."""
        if operation not in self._asked:
            return
        self._asked.remove(operation)
        match operation, answer:
            case decisions.CloseGroup(epoch, group, outcome), CloseResult(status, final, missing):
                lacking = missing if status is CloseStatus.MISSING else ()
                self.post(inputs.GroupClosed(epoch, group, final or outcome, lacking))
            case decisions.ScanLedger(ticket, epoch), LedgerSnapshot():
                self.post(inputs.LedgerScanned(ticket, epoch, answer))
        self._ask_next()

    def ledger_restarted(self) -> None:
        """The ledger's run id changed and it is claimed again: what was meant for the old one is void."""
        self._to_ask.clear()
        self._asked.clear()
        self.post(inputs.LedgerRestarted())

    @property
    def ahead(self) -> int:
        """Batches that generation may be ahead of training, as it holds now."""
        return self.core.settings.lead

    @property
    def unanswered(self) -> Sequence[Operation]:
        """Operations given to the ledger that it did not answer yet."""
        return tuple(self._asked)

    @property
    def settled(self) -> bool:
        """Whether nothing is on its way to the disk or the ledger."""
        return not (self._to_write or self._writing or self._keeping or self._to_ask or self._asked)

    # ---- decisions

    def _carry(self, made: Iterable[decisions.Decision]) -> None:
        for decision in made:
            if isinstance(decision, decisions.CloseGroup) and not decision.short:
                self._to_ask.append(decision)
            elif isinstance(decision, Entry):
                self._to_write.append(decision)
            elif isinstance(decision, Operation):
                self._to_ask.append(decision)
            else:
                self._tell(decision)
        self._write_next()
        self._ask_next()

    def _tell(self, decision: decisions.Decision) -> None:
        ports = self._ports
        match decision:
            case decisions.GrantLease() | decisions.Revoke() | decisions.LeaseEvaluation():
                ports.order(decision)
            case decisions.KeepServed(weights):
                self._keep(replace(self._kept, served=weights))
            case decisions.KeepHot(max_steps, max_staleness, max_concurrent, ahead):
                hot = (max_steps, max_staleness, max_concurrent)
                self._keep(RestoredState(self._kept.served, *hot, self._kept.job_digest, ahead))
            case decisions.CallAnswer():
                ports.reply(decision)
            case decisions.WantWeights():
                ports.tell_servers()
            case decisions.Notice.TURN_CHANGED:
                ports.tell_servers()
                ports.tell_trainers()
            case decisions.Notice.TRAINER_NEWS:
                ports.tell_trainers()
            case decisions.Notice.FLEET_CHANGED:
                ports.tell_fleet()
            case decisions.Notice.RESEND:
                ports.resend()
            case decisions.Notice.STOP_WORKERS:
                ports.stop_workers()
            case decisions.RecordEvaluation():
                ports.record(decision)
            case decisions.Admit(group):
                ports.admitted(group)

    def _keep(self, kept: RestoredState) -> None:
        self._kept, self._keeping = kept, True
        self._ports.keep(kept)

    def _write_next(self) -> None:
        if self._to_write and not self._writing:
            self._writing, self._to_write = self._to_write, []
            self._ports.journal(self._writing)

    def _ask_next(self) -> None:
        """The next operation, or all closes up to the next other one."""
        if not self._to_ask or self._asked:
            return
        closes = takewhile(lambda operation: isinstance(operation, decisions.CloseGroup), self._to_ask)
        for _ in range(max(1, len(list(islice(closes, _CLOSES_AT_ONCE))))):
            self._asked.append(self._to_ask.popleft())
        self._ports.ledger(self.unanswered)


def rebuild(
    settings: ControllerSettings,
    journal: JournalState,
    kept: RestoredState,
    view: LedgerSnapshot,
    evaluated: Iterable[str],
    fence: int = 0,
    looks: Iterable[BlindLook] = (),
) -> tuple[ControllerSettings, Rebuilt]:
    """Start state of a controller: its settings with hot fields as they were last set, and what it finds."""
    hot = fields_of(kept, ("max_steps", "max_staleness", "max_concurrent", "ahead"))
    settings = replace(settings, **{name: value for name, value in hot.items() if value is not None})
    rebuilt = Rebuilt(
        view=view,
        tombstones={group: tombstone.reason for group, tombstone in journal.tombstones.items()},
        batches=journal.batches,
        trainer_fence=journal.trainer.fence if journal.trainer else 0,
        trainer_step=journal.trainer.step if journal.trainer else 0,
        served=kept.served,
        evaluated=evaluated,
        looks=looks,
        pooled=max((change.committed for change in journal.pools if isinstance(change, PoolChange)), default=0),
        pools_from=max((change.from_group for change in journal.pools if isinstance(change, PoolChange)), default=0),
        rounds_to=max((first + len(places) for first, places in journal.rounds), default=0),
        restarted=journal.starts > 1,
        first_turn=fence * TURNS + 1,
    )
    return settings, rebuilt
