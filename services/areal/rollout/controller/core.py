"""The rollout controller's core: everything it decides, nothing it does.

Owns the book of groups, the fleet, the crew, evaluations and the trainer's desk, and moves them on with every input.
Pure: inputs are method calls with a clock, `decide` returns what is to be carried out, in order. It never waits, never
talks to Redis, and never gives credit for a tombstone before it was told that the journal has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from areal.errors import ConfigError, FencedError
from areal.ledger.values import Reason
from areal.rollout.controller.book import Book
from areal.rollout.controller.crew import Crew
from areal.rollout.controller.decisions import (
    Answer,
    Decision,
    FleetChanged,
    KeepHot,
    KeepServed,
    Resend,
    Revoke,
    StopWorkers,
    WantWeights,
)
from areal.rollout.controller.evaluation import Evaluations
from areal.rollout.controller.fleet import Fleet
from areal.rollout.controller.groups import Verdict
from areal.rollout.controller.leasing import Pass, lease, loosen
from areal.rollout.controller.reports import LedgerView, ServerReport, TrainerReport, Weights, WorkerReport
from areal.rollout.controller.settings import Settings
from areal.rollout.controller.trainer_desk import TrainerDesk

_SCAN_AGAIN_S = 0.3  # while the ledger waits for a trainer to repeat its position
_LATE_S = 0.5  # a longer gap between two ticks is our own lateness, not the others' silence


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a controller finds when it starts: the journal, the ledger, what was kept on disk."""

    view: LedgerView
    tombstones: Mapping[int, str] = field(default_factory=dict)
    trainer_fence: int = 0  # of the last cursor told; 0 is none
    next_group: int = 0
    trainer_step: int = 0  # version that follows from the last cursor told
    served: Weights | None = None
    evaluated: Iterable[str] = ()


class Controller:
    """One job's rollout controller. `now` is a monotonic clock in seconds."""

    def __init__(self, settings: Settings, rebuilt: Rebuilt, now: float) -> None:
        self._out: list[Decision] = []
        self.settings = settings
        self.book = Book(settings, rebuilt.tombstones, self._out.append)
        self.crew = Crew()
        self.fleet = Fleet(rebuilt.served)
        self.evaluations = Evaluations(settings, rebuilt.evaluated, self._out.append)
        self.book.cursor = rebuilt.next_group
        self.book.committed = min(rebuilt.view.low, rebuilt.next_group)
        self.book.trainer_fence = rebuilt.trainer_fence
        self.desk = TrainerDesk(self.book, rebuilt.trainer_fence, rebuilt.trainer_step, self._out.append)
        self.found = Pass(0, 0, 0, 0, 0)
        self.done = False
        self._now = now
        self._attention = now
        self._reconciled_epoch = 0
        self._scan_again_at: float | None = None
        if self._comparable(now, rebuilt.view):
            self.book.reconcile(now, rebuilt.view, lost=False, grace_s=settings.adopt_grace_s)
        if rebuilt.served is not None:
            self._out.append(WantWeights(rebuilt.served))
            self.evaluations.published(rebuilt.served)

    # ---- what follows from the state

    @property
    def max_steps(self) -> int:
        """The run's last version. Below the trainer's version it means that version."""
        return max(self.settings.max_steps, self.desk.step)

    @property
    def attention(self) -> float:
        """The clock by which peers are judged: it does not run while we ourselves are late."""
        return self._attention

    @property
    def stalled(self) -> str:
        """Why the run can't go on without help; empty when it can."""
        limit = self.settings.max_filtered_per_step
        if limit and self.book.tally.filtered_in_a_row >= limit:
            return f"Filtered: {self.book.tally.filtered_in_a_row} groups in a row had samples of equal reward"
        return self.fleet.refusal()

    # ---- heartbeats

    def worker(self, now: float, report: WorkerReport) -> None:
        """A worker's message: results first, then what it holds, if it opens a stream."""
        name = report.worker_id
        fresh = self.crew.beat(self._attention, report)
        for sample in report.done:
            self.book.sample(sample)
        for failure in report.failures:
            self.book.failure(now, name, failure)
        for row in report.evaluated:
            self.evaluations.result(now, row)
        if fresh or report.held is not None:
            held = report.held or ()
            if self.book.orphan(name, () if fresh else [item.group for item in held]):
                self.book.scan()
            self.evaluations.orphan(name)
            for item in held:
                if not self.book.adopt(now, name, item):
                    self._out.append(Revoke(name, item.group))
        for index in report.released:
            self.book.given_back(now, name, index)

    def server(self, report: ServerReport) -> None:
        """A generation agent's beat."""
        self.fleet.beat(self._attention, report)

    def trainer(self, report: TrainerReport) -> None:
        """The trainer's beat."""
        self.desk.beat(self._attention, report)

    # ---- calls; each is answered by an `Answer` with its ticket

    def attach(self, ticket: int, fence: int, next_group: int, step: int) -> None:
        """A trainer starts from a checkpoint."""
        self.desk.attach(ticket, fence, next_group, step)
        self.done = self.done and self.desk.finished

    def advance(self, ticket: int, fence: int, next_group: int, step: int) -> None:
        """The trainer took a batch for `step`."""
        self.desk.advance(ticket, fence, next_group, step)

    def propose(self, ticket: int, fence: int, group: int, reason: str, detail: str) -> None:
        """The trainer proposes a tombstone."""
        self.desk.propose(ticket, fence, group, reason, detail)

    def publish(self, ticket: int, fence: int, weights: Weights) -> None:
        """New weights lie on the volume. Accepted ones are served from now on."""
        if fence < self.desk.fence:
            error = FencedError(f"trainer fence {fence} is over: {self.desk.fence}", fix="stop this trainer")
            self._out.append(Answer(ticket, error, accepted=False))
            return
        served = self.fleet.served
        accepted = self.fleet.publish(weights)
        if served is not None and served.policy_id == weights.policy_id:
            accepted = True  # told again because the answer was lost
        elif accepted:
            self._out += [KeepServed(weights), WantWeights(weights)]
            self.evaluations.published(weights)
        self._out.append(Answer(ticket, accepted=accepted))

    def set_hot(
        self,
        ticket: int,
        max_steps: int | None = None,
        max_staleness: int | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        """Change hot fields. Groups with tokens keep their η; groups beyond a lowered end are ended.

        Being told what holds already is no change, and is never refused: whoever sets fields may repeat itself.
        """
        old = self.settings
        new = replace(
            old,
            max_steps=old.max_steps if max_steps is None else max_steps,
            max_staleness=old.max_staleness if max_staleness is None else max_staleness,
            max_concurrent=old.max_concurrent if max_concurrent is None else max_concurrent,
        )
        if new == old:
            self._out.append(Answer(ticket))
            return
        if new.publish_interval > new.max_staleness + 1:
            self._out.append(
                Answer(
                    ticket,
                    ConfigError(
                        f"maxStaleness {new.max_staleness} with weights every {new.publish_interval} steps never ends: "
                        "a batch would wait for a version that only it can make",
                        fix=f"set maxStaleness to {new.publish_interval - 1} or more",
                    ),
                    accepted=False,
                )
            )
            return
        if self.desk.finished:
            error = ConfigError("the run is over: its trainer has finished", fix="start a new run from its last model")
            self._out.append(Answer(ticket, error, accepted=False))
            return
        if new.max_concurrent < 1 or new.max_steps < 1:
            error = ConfigError("maxSteps and maxConcurrentRollouts are at least 1", fix="give a positive number")
            self._out.append(Answer(ticket, error, accepted=False))
            return
        self.settings = self.book.settings = new
        self._out += [KeepHot(new.max_steps, new.max_staleness, new.max_concurrent), Answer(ticket)]

    # ---- answers to decisions

    def journalled(self, group: int, reason: str) -> None:
        """A tombstone is on disk."""
        self.book.journalled(group, reason)

    def cursor_journalled(self, ticket: int) -> None:
        """The trainer's position is on disk."""
        self.desk.cursor_journalled(ticket)

    def closed(self, now: float, epoch: int, group: int, outcome: str, missing: tuple[int, ...] = ()) -> None:
        """The ledger answered a close: the outcome that holds, or the samples that a complete one lacks."""
        self.book.closed(now, epoch, group, outcome, missing)
        if epoch == self.book.epoch:
            self.desk.closed(group)

    def scanned(self, now: float, ticket: int, epoch: int, view: LedgerView) -> None:
        """The ledger was read."""
        if epoch != self.book.epoch:
            return
        if not self._comparable(now, view):
            self.desk.scanned(ticket, [])
            return
        lost = epoch > self._reconciled_epoch
        self._reconciled_epoch = epoch
        closing = self.book.reconcile(now, view, lost=lost, grace_s=self.settings.resend_grace_s if lost else 0.0)
        if self.desk.attaching:
            self.book.drop_what_does_not_fit()
        self.desk.scanned(ticket, closing)

    def _comparable(self, now: float, view: LedgerView) -> bool:
        """Whether the ledger knows the trainer's position.

        One that lost the trainer's `recover` calls groups finished that are to be made again. The trainer's client
        repeats it when it next takes; until then nobody works on those groups, and the ledger is read again.
        """
        forgot = view.low > self.book.cursor
        self.book.refuse_below(view.low if forgot else 0)
        self._scan_again_at = now + _SCAN_AGAIN_S if forgot else None
        return not forgot

    def ledger_restarted(self) -> None:
        """The ledger's run id changed and it is claimed again: it may have lost a tail, or everything."""
        self.book.lost_data()
        self._out.append(Resend())
        self.book.scan()
        self.desk.rescan()

    # ---- the clock

    def tick(self, now: float) -> None:
        """Time passed: judge heartbeats, run deadlines. Call it several times a second."""
        seconds = max(0.0, now - self._now)
        self._now = now
        self._attention += min(seconds, _LATE_S)
        self.fleet.tick(self._attention)
        for name in self.crew.tick(self._attention):
            self.evaluations.orphan(name)
            if self.book.orphan(name):
                self.book.scan()
        if self._scan_again_at is not None and now >= self._scan_again_at:
            self._scan_again_at = None
            self.book.scan()
        self._run_deadlines(min(seconds, _LATE_S))

    def _run_deadlines(self, seconds: float) -> None:
        version = self.fleet.progressing_version(self._attention)
        if version is None:
            return
        for group in list(self.book.live()):
            if (group.worker or group.done) and self.book.floor(group) <= version:
                self.book.spend(group, seconds)

    def decide(self, now: float) -> list[Decision]:
        """Everything to be carried out, in this order, since the last call."""
        limit = self.max_steps * self.settings.batch_groups
        if self.book.open and self.book.ranks.rank(max(self.book.open)) >= limit:
            self.book.end_beyond(limit, Verdict(Reason.ENDED, "beyond maxSteps"), complete=False)
        if self.book.ranks_changed:
            self.book.ranks_changed = False
            loosen(self.book, self._out.append)
        newest = self.fleet.newest_version
        admit = not self.desk.finished and not self.stalled
        self.found = lease(self.book, self.crew, newest, self.max_steps, now, admit=admit, emit=self._out.append)
        self.evaluations.lease([worker.worker_id for worker in self.crew.live()], newest, now)
        self._finish()
        if self.fleet.changed:
            self.fleet.changed = False
            self._out.append(FleetChanged())
        out = list(self._out)
        self._out.clear()  # the parts hold this list's append
        return out

    def _finish(self) -> None:
        """The trainer is done: end what is left, measure the last version, then stop."""
        served = self.fleet.served
        if self.done or not self.desk.finished or served is None or served.version < self.desk.step:
            return
        self.book.end_beyond(0, Verdict(Reason.ENDED, "the run is over"), complete=True)
        measured = self.evaluations.final(served)
        if measured and not self.book.unsettled() and not self.book.open:
            self.done = True
            self._out.append(StopWorkers())
