"""The rollout controller's core: everything it decides, nothing it does.

Owns the book of groups, the fleet, the crew, evaluations and the trainer's desk, and moves them on with every input.
Pure: `take` takes one input and the time, `decide` returns what is to be carried out, in order. It never waits, never
talks to Redis, and never gives credit for a tombstone before it was told that the journal has it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from areal.data.order import by_rounds
from areal.errors import ConfigError, Kind
from areal.ledger.values import LedgerSnapshot, TombstoneReason
from areal.net.heartbeat import Health
from areal.record.episode_ends import GENERATED
from areal.rollout.contract.values import WorkerReport, fields_of
from areal.rollout.controller import decisions, inputs
from areal.rollout.controller.book import Book
from areal.rollout.controller.evaluation import BlindLook, Evaluations
from areal.rollout.controller.fleet import Crew, ServerFleet, ServiceWatch
from areal.rollout.controller.groups import GroupVerdict
from areal.rollout.controller.inputs import PublishedWeights
from areal.rollout.controller.leasing import AdmissionRound, lease
from areal.rollout.controller.order import TrainOrder
from areal.rollout.controller.settings import (
    MOST_CONCURRENT,
    MOST_SHARED_STALENESS,
    MOST_STALENESS,
    MOST_STEPS,
    ControllerSettings,
    TrainPosition,
)
from areal.rollout.controller.trainer_desk import TrainerDesk

_SCAN_AGAIN_S = 0.3  # while the ledger waits for a trainer to repeat its position
ADMITTED_A_PASS = 256  # bounds how long one pass takes; the next one is a tenth of a second away
_LATE_S = 0.5  # a longer gap between two ticks is our own lateness, not the others' silence


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a controller finds when it starts: the journal, the ledger, what was kept on disk."""

    view: LedgerSnapshot
    tombstones: Mapping[int, str] = field(default_factory=dict)
    batches: Sequence[tuple[int, ...]] = ()  # by step
    trainer_fence: int = 0  # of the last trainer that started; 0 is none
    trainer_step: int = 0  # where it started
    served: PublishedWeights | None = None
    evaluated: Iterable[str] = ()
    looks: Iterable[BlindLook] = ()
    pooled: int = 0  # rows are judged by what groups below measured
    pools_from: int = 0  # which counts from this group on
    rounds_to: int = 0  # the journal says where rows of the groups below are
    first_turn: int = 1  # of shared cards: above every turn of an earlier controller
    restarted: bool = False  # an earlier controller may have admitted groups that nothing here shows


@dataclass(frozen=True, slots=True)
class CardDemand:
    """What the turn is decided by."""

    given_back: int  # the newest turn after which the living trainer gave the cards back
    wanted: bool  # the trainer asks for them, whatever there is to train
    batch: bool  # the next batch is whole
    evaluating: bool  # answers of an evaluation are missing
    idle: bool  # nothing is generated, and no trainer is there to ask for more


class CardTurns:
    """The turn of one job on cards that servers and trainer share: whose it is, and when it ends.

    `number`, from `first` on, fences orders: whoever heard of a later turn ignores an earlier one; a controller's turns
    are above those of the ones before it. One that starts doesn't know who has the cards: it begins with a training
    turn, which a trainer without work gives back at once, and one that is dead keeps until it is back.
    """

    def __init__(self, first: int, now: float) -> None:
        self._first = first
        self.number = first
        self.training = True
        self.since = now

    @property
    def count(self) -> int:
        """Number of this turn since the controller started, from 1 on: for people."""
        return self.number - self._first + 1

    def judge(self, demand: CardDemand, now: float) -> bool:
        """Whether the turn ended, and the other side's begins.

        A batch that is whole ends generation at every staleness: what of later batches runs then is kept, and goes on
        afterwards. An evaluation is not interrupted for it.
        """
        if self.training:
            over = demand.given_back >= self.number  # also of one that wants the next: it waits for another number
        else:
            over = demand.wanted or (not demand.evaluating and (demand.batch or demand.idle))
        if over:
            self.number += 1
            self.training = not self.training
            self.since = now
        return over


class Controller:
    """One job's rollout controller. `now` is a monotonic clock in seconds; `place` tells where a group's row is."""

    def __init__(
        self, settings: ControllerSettings, rebuilt: Rebuilt, now: float, place: Callable[[int], str] = lambda group: ""
    ) -> None:
        self._out: list[decisions.Decision] = []
        self._position = TrainPosition(settings, rebuilt.trainer_fence, rebuilt.trainer_step)
        order = TrainOrder(self._position, rebuilt.tombstones, rebuilt.batches)
        self.book = Book(self._position, order, self._out.append, place)
        self.crew = Crew()
        self.fleet = ServerFleet(rebuilt.served)
        self.evaluations = Evaluations(self._position, rebuilt.evaluated, self._out.append, rebuilt.looks)
        if rebuilt.view.trainer_fence >= rebuilt.trainer_fence:  # it knows how far that trainer is by now
            self._position.step = max(rebuilt.trainer_step, min(rebuilt.view.committed, self.book.order.chosen))
        self.book.fell_back(min(rebuilt.view.committed, self._position.step))
        self.desk = TrainerDesk(self._position, self.book, self.fleet, self._out.append)
        self.turns = CardTurns(rebuilt.first_turn, now) if settings.shared_cards else None
        self.last_round = AdmissionRound(0, 0, 0, 0)
        self.services = ServiceWatch()
        self.done = False
        self._now = now
        self.attention = now  # the clock by which peers are judged: it does not run while we ourselves are late
        self._reconciled_epoch = 0
        self._scan_again_at: float | None = None
        # The call that waits until what it changes is on disk, and those behind it.
        self._keeping: inputs.PublishWeights | inputs.SetHotFields | None = None
        self._calls: deque[inputs.AttachTrainer | inputs.PublishWeights | inputs.SetHotFields] = deque()
        self._pooled, self._pools_from, self._rows_pending = rebuilt.pooled, rebuilt.pools_from, False
        self._rounds_to = rebuilt.rounds_to
        self._restarted = rebuilt.restarted
        self._choose_from = now + settings.adopt_grace_s * rebuilt.restarted  # workers say first what they hold
        if self._comparable(now, rebuilt.view):
            self.book.reconcile(now, rebuilt.view, lost=False, grace_s=settings.adopt_grace_s)
            self.book.bound_claims(self._restarted)
        if rebuilt.served is not None:
            self._out.append(decisions.WantWeights(rebuilt.served))
            self.evaluations.published(rebuilt.served)
        self._wanted = self.wanted

    # ---- what follows from the state

    @property
    def settings(self) -> ControllerSettings:
        """As they hold now."""
        return self._position.settings

    @property
    def max_steps(self) -> int:
        """The run's last version."""
        return self._position.max_steps

    @property
    def wanted(self) -> PublishedWeights | None:
        """Weights that servers should hold: those served, or those an evaluation keeps until its end."""
        return self.evaluations.pinned or self.fleet.served

    @property
    def stalled(self) -> str:
        """Why the run can't go on without help; empty when it can."""
        settings, book = self.settings, self.book
        return (
            self.fleet.refusal()
            or book.streak.stall(settings.max_filtered_per_step)
            or book.bad_rows.excess(settings.max_bad_row_share)
            or self.evaluations.trains_blind
        )

    @property
    def stalled_by(self) -> Kind:
        """Whose fault a stall is: infrastructure's (servers that refuse weights too), else the recipe's or rows'."""
        return Kind.INFRA if self.fleet.refusal() or self.book.streak.by_infrastructure else Kind.DATA

    # ---- inputs

    def take(self, item: inputs.Input, now: float) -> None:
        """Something happened. What follows from it is what `decide` returns next."""
        match item:
            case inputs.WorkerBeat(report):
                self._worker(now, report)
            case inputs.ServerBeat(report):
                self.fleet.beat(self.attention, report)
                made = {GENERATED: report.tokens_total}
                self.book.tally.tokens.told(f"server/{report.server_id}", report.incarnation, made)
            case inputs.TrainerBeat(report):
                self.desk.beat(self.attention, report)
            case inputs.AttachTrainer() | inputs.PublishWeights() | inputs.SetHotFields():
                self._calls.append(item)
                self._next_calls()
            case inputs.AdvanceTrainer():
                self.desk.advance(now, item)
            case inputs.ProposeTombstone():
                self.desk.propose(item)
            case inputs.KeptOnDisk():
                self._kept()
                self._next_calls()
            case inputs.EntryJournalled(decisions.JournalTombstone(group, reason)):
                self.book.journalled(now, group, reason)
            case inputs.EntryJournalled(decisions.JournalPools(committed)):
                self._pooled, self._rows_pending = committed, False
            case inputs.EntryJournalled(decisions.JournalRounds(first, places)):
                self._rounds_to, self._rows_pending = first + len(places), False
            case inputs.EntryJournalled(decisions.JournalTrainer(ticket)):
                self.desk.journalled(ticket)
            case inputs.EntryJournalled(decisions.JournalBatch(step)):
                self.book.batch_journalled(step)
            case inputs.GroupClosed(epoch, group, outcome, missing):
                self.book.closed(now, epoch, group, outcome, missing)
                if epoch == self.book.epoch:
                    self.desk.closed(group)
            case inputs.LedgerScanned(ticket, epoch, view):
                self._scanned(now, ticket, epoch, view)
            case inputs.LedgerRestarted():
                self.book.lost_data()
                self._out.append(decisions.Notice.RESEND)
                self.book.scan()
                self.desk.rescan()

    def _worker(self, now: float, report: WorkerReport) -> None:
        """Results first, then what the worker holds, if it opens a stream."""
        name, news = report.worker_id, report.news
        fresh = self.crew.beat(self.attention, report)
        self.book.tally.tokens.told(f"worker/{name}", report.incarnation, report.token_fates)
        for sample in news.done:
            self.book.sample(sample)
        for failure in news.failures:
            self.book.failure(now, name, failure)
        for row in news.evaluated:
            self.evaluations.result(now, row)
        if fresh or news.held is not None:
            held = news.held or ()
            keep = () if fresh else [item.group for item in held]
            if self.book.orphan(name, keep, revoke=not fresh):
                self.book.scan()
            self.evaluations.orphan(name)
            for item in held:
                if not self.book.adopt(now, name, item):
                    self._out.append(decisions.Revoke(name, item.group))
        for index in news.released:
            self.book.given_back(now, name, index)

    def _next_calls(self) -> None:
        """Calls in their order, until one waits for the disk: what it changes holds for nobody before it is kept."""
        while self._calls and self._keeping is None:
            call = self._calls.popleft()
            match call:
                case inputs.AttachTrainer():
                    self.desk.attach(call)
                    self.done = self.done and self.desk.finished
                case inputs.PublishWeights():
                    self._keeping = call if self.desk.publish(call) else None
                case inputs.SetHotFields():
                    self._keeping = call if self._set_hot(call) else None

    def _kept(self) -> None:
        """The call that waited for the disk takes effect and is answered."""
        call, self._keeping = self._keeping, None
        match call:
            case inputs.PublishWeights():
                self.desk.serve(call)
                self.evaluations.published(call.weights)
            case inputs.SetHotFields():
                self._position.settings = _changed(self.settings, call)
                self._out.append(decisions.CallAnswer(call.ticket))

    def _set_hot(self, call: inputs.SetHotFields) -> bool:
        """Groups with tokens keep their η; groups beyond a lowered end are ended. True when something changes.

        Being told what holds already is no change, and is never refused: whoever sets fields may repeat itself.
        """
        if (new := _changed(self.settings, call)) == self.settings:
            self._out.append(decisions.CallAnswer(call.ticket))
            return False
        if (error := self._wrong_with(new)) is not None:
            self._out.append(decisions.CallAnswer(call.ticket, error, accepted=False))
            return False
        self._out.append(decisions.KeepHot(new.max_steps, new.max_staleness, new.max_concurrent, new.ahead))
        return True

    def _wrong_with(self, new: ControllerSettings) -> ConfigError | None:
        if new.lead > new.max_staleness:
            return ConfigError(
                f"ahead {new.lead} is more than maxStaleness {new.max_staleness}: groups would be too old when trained",
                fix=f"set ahead to {new.max_staleness} or less, or maxStaleness to {new.lead} or more",
            )
        if new.publish_interval > new.lead + 1:
            return ConfigError(
                f"ahead {new.lead} (of maxStaleness {new.max_staleness}) with weights every {new.publish_interval} "
                "steps never ends: a batch would wait for a version that only it can make",
                fix=f"set ahead and maxStaleness to {new.publish_interval - 1} or more",
            )
        if new.shared_cards and new.max_staleness > MOST_SHARED_STALENESS:
            return ConfigError(
                f"maxStaleness {new.max_staleness} on shared cards: nothing is generated while the trainer has them",
                fix=f"set maxStaleness to {MOST_SHARED_STALENESS} or less",
            )
        if self.desk.finished:
            return ConfigError("the run is over: its trainer has finished", fix="start a new run from its last model")
        for name, value, least, most in (
            ("maxSteps", new.max_steps, 1, MOST_STEPS),
            ("maxStaleness", new.max_staleness, 0, MOST_STALENESS),
            ("maxConcurrentRollouts", new.max_concurrent, 1, MOST_CONCURRENT),
            ("ahead", new.lead, 0, MOST_STALENESS),
        ):
            if not least <= value <= most:
                return ConfigError(f"{name} can't be {value}", fix=f"give a number from {least} to {most}")
        return None

    def _scanned(self, now: float, ticket: int, epoch: int, view: LedgerSnapshot) -> None:
        if epoch != self.book.epoch:
            return
        if not self._comparable(now, view):
            self.desk.scanned(ticket, [])
            return
        lost = epoch > self._reconciled_epoch
        self._reconciled_epoch = epoch
        closing = self.book.reconcile(now, view, lost=lost, grace_s=self.settings.resend_grace_s if lost else 0.0)
        self.book.bound_claims(self._restarted)
        if self.desk.attaching:
            self.book.drop_what_does_not_fit(now)
        self.desk.scanned(ticket, closing)

    def _comparable(self, now: float, view: LedgerSnapshot) -> bool:
        """Whether the ledger knows the trainer's position.

        One that lost the trainer's `recover` calls groups finished that are to be made again. The trainer's client
        repeats it when it next takes; until then nobody works on those groups, and the ledger is read again.
        """
        forgot = view.committed > self._position.step and view.trainer_fence < self._position.fence
        self._scan_again_at = now + _SCAN_AGAIN_S if forgot else None
        return not forgot

    # ---- the clock

    def tick(self, now: float) -> None:
        """Time passed: judge heartbeats, run deadlines. Call it several times a second."""
        seconds = max(0.0, now - self._now)
        self._now = now
        self.attention += min(seconds, _LATE_S)
        self.fleet.tick(self.attention)
        for name in self.crew.tick(self.attention):
            self.evaluations.orphan(name)
            if self.book.orphan(name):
                self.book.scan()
        unserved = self.fleet.unserved(self.attention) or self.crew.unserved(self.attention)
        self.services.look(self.attention, None if self.desk.finished else unserved, self.desk.step)
        if self._scan_again_at is not None and now >= self._scan_again_at:
            self._scan_again_at = None
            self.book.scan()
        if (version := self.fleet.progressing_version(self.attention)) is not None:
            seconds, limit_s = min(seconds, _LATE_S), self.settings.group_deadline_s
            for group in self.book.live():
                if (group.worker or group.done) and group.floor <= version:
                    group.spent_s += seconds
                    if group.spent_s >= limit_s:
                        self.book.spent(group)

    def look_at_tokens(self, now: float) -> None:
        """Compare what servers made with what became of it. Call it once or twice a second."""
        book = self.book
        book.tally.tokens.count_batches(book.order, book.groups)
        held = sum(figures.sampled for g in book.order.waiting for figures in book.groups[g].done.values())
        book.tally.tokens.look(now, held)

    def decide(self, now: float) -> list[decisions.Decision]:
        """Everything to be carried out, in this order, since the last call."""
        book = self.book
        most = max(0, self.max_steps - book.order.chosen) * self.settings.batch_groups
        if len(book.order.waiting) > most:
            book.end_beyond(most, GroupVerdict(TombstoneReason.ENDED, "beyond maxSteps"))
        if not self.desk.finished and now >= self._choose_from:
            book.choose(now)
        self._judge_rows()
        self._arrange_rows()
        versions = self.fleet.versions
        admit = 0
        if not self.desk.finished and not self.fleet.refusal() and not self._rows_pending:
            excess = self.book.bad_rows.excess(self.settings.max_bad_row_share)
            most = 0 if excess or self.evaluations.trains_blind else ADMITTED_A_PASS
            if self.settings.window_groups:
                most = min(most, max(0, self._rounds_to - self.book.next_admission))
            admit = self.book.streak.admissible(now, self.settings.max_filtered_per_step, most)
        self.last_round = lease(book, self.crew, versions, self.max_steps, now, admit=admit, emit=self._out.append)
        self.evaluations.lease([worker.worker_id for worker in self.crew.live()], self.fleet.newest_version, now)
        self._finish()
        self.evaluations.catch_up(self.fleet.served)
        self._turn()
        if self.settings.evaluation_pins and (wanted := self.wanted) is not None and wanted != self._wanted:
            self._wanted = wanted
            self._out.append(decisions.WantWeights(wanted))
        if self.fleet.changed:
            self.fleet.changed = False
            self._out.append(decisions.Notice.FLEET_CHANGED)
        out = list(self._out)
        self._out.clear()  # the parts hold this list's append
        return out

    def _judge_rows(self) -> None:
        """A checkpoint holds more groups: rows are judged by what they measured, for groups that nobody has yet.

        Nothing is admitted until that is on disk, so that a group has the same row after any restart.
        """
        book, bound = self.book, self.book.claims_below
        if self.settings.pass_score is None or bound is None or self._rows_pending or book.order.low <= self._pooled:
            return
        self._rows_pending = True
        self._pools_from = max(self._pools_from, book.next_admission, bound)
        self._out.append(decisions.JournalPools(book.order.low, self._pools_from))

    def _arrange_rows(self) -> None:
        """All groups of the last window are admitted: the rows of the next one go into rounds of alike lengths.

        Decided before any of them is sampled, and none is admitted until it is on disk: no row is drawn twice, and none
        changes its group in a restart, though what is known of lengths doesn't survive one.
        """
        book, size = self.book, self.settings.window_groups
        # Without a window so far, groups may be at work that were admitted before the job had rounds.
        bound = self._rounds_to or book.claims_below
        if not size or bound is None or self._rows_pending or book.next_admission < self._rounds_to:
            return
        first = max(book.next_admission, bound)
        expected = [book.expected_tokens(group) for group in range(first, first + size)]
        self._rows_pending = True
        self._out.append(decisions.JournalRounds(first, by_rounds(expected, self.settings.batch_groups, first)))

    def _finish(self) -> None:
        """The trainer is done: end what is left, measure the last version, then stop."""
        served = self.fleet.served
        if self.done or not self.desk.finished or served is None or served.version < self.desk.step:
            return
        self.book.end_all(GroupVerdict(TombstoneReason.ENDED, "the run is over"))
        measured = self.evaluations.final(served)
        if measured and not self.book.unsettled() and not self.book.open:
            self.done = True
            self._out.append(decisions.Notice.STOP_WORKERS)

    def _turn(self) -> None:
        """Shared cards go to the other side when their turn is over."""
        if self.turns is None:
            return
        desk, book = self.desk, self.book
        lost = desk.health(self.attention) in (None, Health.DEAD)
        demand = CardDemand(
            given_back=desk.given_back,
            wanted=desk.wants_cards,
            batch=desk.batch_whole,
            evaluating=bool(self.evaluations.runs),
            idle=lost and not book.open and not self.last_round.room,
        )
        if self.turns.judge(demand, self.attention):
            self._out.append(decisions.Notice.TURN_CHANGED)


def _changed(settings: ControllerSettings, call: inputs.SetHotFields) -> ControllerSettings:
    """The settings with the fields that the call names."""
    told = fields_of(call, ("max_steps", "max_staleness", "max_concurrent", "ahead"))
    return replace(settings, **{name: value for name, value in told.items() if value is not None})
