"""The book of groups: who is admitted, what each group has, how each one ends.

Owns every group that has not ended. Promises: credit for a tombstone only after the journal has it; nothing that the
trainer has in hand is ended or made again. The order in which they are trained is `order`'s; it assigns no work
(`leasing`) and answers no calls (`trainer_desk`).
"""

import logging
import math
from collections.abc import Callable, Iterable

from cachetools import LRUCache

from areal.ledger.values import TRAINED, LedgerSnapshot, TombstoneReason
from areal.record.episode_ends import TokenFate
from areal.rollout.contract.values import FailureKind, GroupInHand, SampleDone, SampleFailure
from areal.rollout.controller import decisions
from areal.rollout.controller.groups import HELD, GroupPhase, GroupVerdict, PromptGroup
from areal.rollout.controller.order import TrainOrder
from areal.rollout.controller.settings import ControllerSettings, TrainPosition, retry_pause_s
from areal.rollout.controller.streak import BadRows, Streak
from areal.rollout.controller.tally import Tally

log = logging.getLogger(__name__)

_CLAIMED = 1024
"""So many unknown groups a controller believes workers to hold, or `maxConcurrentRollouts` when it is more: a claim
creates every group up to the one it names, and no pass may take long."""

_KNOWN_ROWS = 1 << 17  # whose length is remembered: about 30 MB
_TRIES_THERE = 3  # in a row at the worker that keeps what the tries drew; then at any


class Book:
    """All groups of a job. Inputs that make time-dependent choices take `now`, a monotonic clock in seconds. `place`
    tells where a group's row is, for people."""

    def __init__(
        self,
        position: TrainPosition,
        order: TrainOrder,
        emit: Callable[[decisions.Decision], None],
        place: Callable[[int], str] = lambda group: "",
    ) -> None:
        self._position = position
        self._place = place
        self.order = order
        self.tally = Tally()
        self.streak = Streak()
        self.bad_rows = BadRows(position.settings.batch_groups)
        self.groups: dict[int, PromptGroup] = {}
        self.next_admission = order.last + 1
        self.open: set[int] = set()  # groups that still need samples or a decision
        self.epoch = 0  # grows when the ledger loses data: answers to older questions are void
        self._emit = emit
        self._scans = 0
        self._lengths: LRUCache[str, float] = LRUCache(_KNOWN_ROWS)  # mean tokens of a row's answers, lately
        self.claims_below: int | None = None  # workers may hold groups below that nothing here shows; None: unknown
        self._claimed = 0  # groups that were created because a worker says that it, or another, must hold them

    # ---- what follows from the state

    @property
    def settings(self) -> ControllerSettings:
        """As they hold now."""
        return self._position.settings

    @property
    def capacity(self) -> int:
        """Capacity of the byte budget, in groups."""
        return self.settings.budget_bytes // self.settings.bytes_per_group

    @property
    def holding(self) -> int:
        """Groups that have bytes, or are being given some: in a batch, or granted."""
        return len(self.groups) - len(self.order.waiting) + self.order.due.total()

    def waiting_complete(self) -> int:
        """Complete groups that the trainer did not take yet."""
        untaken = (group for g, group in self.groups.items() if not self.order.taken(g))
        return sum(group.phase is GroupPhase.CLOSED for group in untaken)

    def expected_tokens(self, index: int) -> float:
        """Tokens of an answer to the group's row, as the last groups of that row had; a new row may be the longest."""
        return float(self._lengths.get(self._place(index), math.inf))

    def live(self) -> list[PromptGroup]:
        """Open groups that the trainer did not take, in no order."""
        groups, order = self.groups, self.order  # one in no batch isn't taken: each pass asks this of every group
        return [groups[g] for g in self.open if g in order.waiting or not order.taken(g)]

    def unsettled(self) -> int:
        """Groups on their way to a tombstone."""
        untaken = (group for g, group in self.groups.items() if not self.order.taken(g))
        return sum(group.phase in (GroupPhase.DECIDED, GroupPhase.CLOSING) for group in untaken)

    # ---- admission

    def admit(self) -> PromptGroup:
        """The next dense index starts to exist."""
        group = self._create(self.next_admission)
        self.next_admission += 1
        self._emit(decisions.Admit(group.index))
        return group

    def _create(self, index: int, not_before: float = 0.0) -> PromptGroup:
        group = self.groups[index] = PromptGroup(index, not_before=not_before)
        self.open.add(index)
        self.order.enter(group)
        return group

    def _forget(self, index: int) -> None:
        """The group needs nothing more."""
        self.open.discard(index)
        if (group := self.groups.pop(index, None)) is not None:
            self.order.leave(group)

    # ---- batches

    def choose(self, now: float) -> None:
        """Choose the next batch, when the trainer wants it and waiting is of no use."""
        order, score = self.order, self.settings.pass_score
        if not order.wanted:
            return
        self._make_again(now, order.too_old(self.groups))
        if (batch := order.pick(self.groups, order.waiting - self.open)) is None:
            return
        groups = [self.groups[g] for g in batch]
        measured = () if score is None else tuple((group.index, *group.passes(score)) for group in groups)
        self._emit(decisions.JournalBatch(order.chosen, batch, measured))
        order.assign(groups)

    def batch_journalled(self, step: int) -> None:
        """The batch is on disk: the ledger may hear of it."""
        self.order.written = step + 1
        self.tally.tokens.count_batches(self.order, self.groups)
        self._emit(decisions.AssignBatch(step, self.order.batches[step]))

    def whole(self, step: int, groups: int) -> bool:
        """Whether so many groups are what is to be trained of a step's batch, and none of it is about to end."""
        members = (self.groups[g] for g in self.order.batches[step] if g in self.groups)
        return not any(group.phase is GroupPhase.DECIDED for group in members) and groups == self.order.trained_of(step)

    # ---- samples

    def sample(self, report: SampleDone) -> None:
        """A sample is in the ledger. From whom does not matter: the ledger stores each once."""
        group = self.groups.get(report.group)
        if group is None or group.phase is not GroupPhase.OPEN or report.index >= self.settings.group_size:
            return
        group.working.discard(report.index)
        if report.index in group.done:
            return
        group.done[report.index] = report
        group.infra_tries = 0
        self.tally.sampled(report, group.floor)
        self._judge_if_full(group)

    def _judge_if_full(self, group: PromptGroup) -> None:
        if not self.order.taken(group.index) and group.full(self.settings.group_size):
            self._close_whole(group)

    def _close_whole(self, group: PromptGroup) -> None:
        if self.settings.filter_zero_variance and group.index in self.order.waiting and group.same_rewards():
            self.end(group, GroupVerdict(TombstoneReason.FILTERED, "all samples earned the same reward", chosen=True))
            return
        self._drop_lease(group)
        group.phase = GroupPhase.CLOSING
        self.open.discard(group.index)
        self._emit(self._close_complete(group))

    def _close_complete(self, group: PromptGroup) -> decisions.CloseGroup:
        return decisions.CloseGroup(self.epoch, group.index, decisions.COMPLETE, tuple(sorted(group.done)), group.short)

    def failure(self, now: float, worker: str, report: SampleFailure) -> None:
        """A sample could not be made: the user's fault ends the group, the world's is tried again."""
        group = self.groups.get(report.group)
        if group is None or group.phase is not GroupPhase.OPEN or group.worker not in ("", worker):
            return
        self.tally.failed(report.kind)
        if report.kind is not FailureKind.INFRA:
            chosen = report.kind is FailureKind.REJECTED
            self.end(group, GroupVerdict(TombstoneReason.REJECTED, f"{report.kind}: {report.detail}", chosen))
            return
        group.working.discard(report.index)
        if not group.working:
            group.release()
        if not group.infra_tries:
            group.infra_since = now
        group.infra_tries += 1
        group.tried_by = worker if group.infra_tries <= _TRIES_THERE else ""
        group.not_before = now + retry_pause_s(group.infra_tries - 1)
        log.warning("group %d sample %d: try %d failed: %s", group.index, report.index, report.attempt, report.detail)
        patience_over = now - group.infra_since >= self.settings.infra_patience_s
        if group.infra_tries >= self.settings.infra_tries and patience_over:
            self.end(group, GroupVerdict(TombstoneReason.INFRA, report.detail))

    def spent(self, group: PromptGroup) -> None:
        """Eligible servers made progress for all the time that a group has: it closes with what is whole."""
        if len(group.done) >= 2:
            group.short = True
            self._close_whole(group)
        else:
            self.end(
                group, GroupVerdict(TombstoneReason.DEADLINE, f"{len(group.done)} samples in {group.spent_s:.0f} s")
            )

    # ---- endings

    def end(self, group: PromptGroup, verdict: GroupVerdict) -> None:
        """Tombstone a group; held back while the trainer has it in hand. Its batch, if it is in one, gets smaller."""
        group.verdict = verdict
        if self.order.taken(group.index):
            return
        self._drop_lease(group)
        group.phase = GroupPhase.DECIDED
        self.open.discard(group.index)
        counts = (0, 0)
        if self.settings.pass_score is not None and verdict.reason == TombstoneReason.FILTERED:
            counts = group.passes(self.settings.pass_score)
        self._emit(decisions.JournalTombstone(group.index, verdict.reason, verdict.detail, *counts))

    def journalled(self, now: float, index: int, reason: str) -> None:
        """The tombstone is on disk: now it counts, and the ledger is told."""
        group = self.groups.get(index)
        if self.order.tombstones.add(index, reason):
            self.tally.tombstoned(now, reason, group)
            verdict = (group and group.verdict) or GroupVerdict(reason)
            where = self._place(index) if verdict.reason == TombstoneReason.REJECTED else ""
            self.streak.ended(now, verdict, where)
            self.bad_rows.ended(verdict, where)
        if group is not None:
            group.phase = GroupPhase.CLOSING
            if index in self.order.waiting:
                self.tally.tokens.ended(TokenFate.ABORTED, group.done.values())
            self.order.leave(group)
        self._emit(decisions.CloseGroup(self.epoch, index, reason))

    def closed(self, now: float, epoch: int, index: int, outcome: str, missing: tuple[int, ...]) -> None:
        """The ledger answered a close; with `missing` samples the group opens again."""
        group = self.groups.get(index)
        if epoch != self.epoch or group is None or group.phase is not GroupPhase.CLOSING:
            return
        if (reason := self.order.tombstones.reason(index)) is not None:
            if outcome == decisions.COMPLETE:
                self._emit(decisions.ReopenGroup(index))
                self._emit(decisions.CloseGroup(self.epoch, index, reason))
            else:
                self._forget(index)
            return
        if missing:
            self._reopen(group, now)
            for i in missing:
                group.done.pop(i, None)
            return
        if outcome != decisions.COMPLETE:
            self.end(group, GroupVerdict(outcome, "found in the ledger"))
            return
        group.phase = GroupPhase.CLOSED
        group.closed_at = now
        self.order.set_due(group, group.made_due)
        if index in self.order.waiting and self.order.due_now(group):
            self._emit(decisions.Notice.TRAINER_NEWS)
        self.tally.completed(group, self.settings.batch_groups)
        self.streak.completed()
        self.bad_rows.completed()
        mean, row = sum(figures.tokens for figures in group.done.values()) / len(group.done), self._place(index)
        self._lengths[row] = (mean + self._lengths.get(row, mean)) / 2

    def _reopen(self, group: PromptGroup, now: float) -> None:
        """Samples of a closed group are lost: it is made again, due when it was."""
        group.phase = GroupPhase.OPEN
        group.short = False
        group.not_before = now + self.settings.resend_grace_s
        group.release()
        self.open.add(group.index)
        if group.due is not None:  # others were granted beside a group due then
            group.floor = max(group.floor, group.due - group.staleness_bound)

    def _make_again(self, now: float, groups: Iterable[PromptGroup]) -> None:
        """Throw away what was made of these, which nobody may train or nothing has room for: they start anew."""
        for group in groups:
            if group.phase not in (GroupPhase.OPEN, GroupPhase.CLOSED):
                continue
            self._drop_lease(group)
            self._reopen(group, now)
            self.tally.tokens.ended(TokenFate.STALE, group.done.values())
            group.done = {}
            self.order.set_due(group, None)
            self._emit(decisions.ReopenGroup(group.index))

    def end_beyond(self, most: int, verdict: GroupVerdict) -> None:
        """End all but so many of the groups in no batch, the least urgent first."""
        waiting = sorted((self.groups[g] for g in self.order.waiting), key=PromptGroup.by_urgency)
        going = [group for group in waiting if group.phase is not GroupPhase.DECIDED]
        able = [group for group in going if group.phase is not GroupPhase.CLOSING]
        for group in able[max(0, len(able) - max(0, len(going) - most)) :]:
            self.end(group, verdict)

    def end_all(self, verdict: GroupVerdict) -> None:
        """The run is over: end what the trainer did not take."""
        for index in sorted(self.groups):
            group = self.groups[index]
            if group.phase in (GroupPhase.OPEN, GroupPhase.CLOSED):
                self.end(group, verdict)

    # ---- leases

    def _drop_lease(self, group: PromptGroup) -> None:
        if group.worker and group.working:
            self._emit(decisions.Revoke(group.worker, group.index))
        group.release()

    def given_back(self, now: float, worker: str, index: int) -> None:
        """A worker drains, or the ledger would not take its samples: somebody else, or a little later."""
        if (group := self.groups.get(index)) is not None and group.worker == worker:
            group.release()
            group.not_before = max(group.not_before, now + retry_pause_s(0))

    def orphan(self, worker: str, keep: Iterable[int] = (), *, revoke: bool = True) -> int:
        """A worker lost its groups, except `keep`. Before they are leased again a scan tells what it had stored.

        Without `revoke` it is not told: another process has its name now, which would stop what it holds itself.
        """
        kept = set(keep)
        lost = [g for g in self.open if self.groups[g].worker == worker and g not in kept]
        for index in lost:
            self.tally.lost(len(self.groups[index].working))
            if revoke:
                self._drop_lease(self.groups[index])
            self.groups[index].release()
            self.groups[index].not_before = HELD
        return len(lost)

    def adopt(self, now: float, worker: str, held: GroupInHand) -> bool:
        """A worker says that it works on a group. False when it should stop."""
        unknown = max(0, held.group + 1 - self.next_admission)
        claimed = self._claimed + unknown
        if (
            held.group < self.order.low
            or held.group in self.order.tombstones
            or self.order.taken(held.group)
            or claimed > max(self.settings.max_concurrent, _CLAIMED)
            or (unknown and self._beyond_claims(held.group))
        ):
            return False
        self._claimed = claimed
        while self.next_admission <= held.group:
            self._create(self.next_admission, now + self.settings.adopt_grace_s)
            self.next_admission += 1
        group = self.groups.get(held.group) or self._create(held.group)
        if (
            group.phase is not GroupPhase.OPEN
            or group.worker not in ("", worker)
            or not self.order.adopt(group, held.floor, held.max_staleness)
        ):
            return False
        group.worker = worker
        group.working = {i for i in held.indices if i not in group.done}
        group.attempt = max(group.attempt, held.attempt)
        group.not_before = min(group.not_before, now) if group.not_before != HELD else now
        return True

    def bound_claims(self, restarted: bool) -> None:
        """The ledger was compared: what an earlier controller admitted, and only workers know, lies below a bound."""
        if self.claims_below is None:
            more = max(self.settings.max_concurrent, _CLAIMED)
            self.claims_below = self.next_admission + more if restarted else 0

    def _beyond_claims(self, index: int) -> bool:
        """Whether a group has the row of a newer judgement than a worker that holds it could know."""
        return self.settings.pass_score is not None and self.claims_below is not None and index >= self.claims_below

    # ---- the ledger

    def scan(self) -> int:
        """Ask for a scan; returns its ticket."""
        self._scans += 1
        self._emit(decisions.ScanLedger(self._scans, self.epoch))
        return self._scans

    def lost_data(self) -> None:
        """The ledger restarted: what it answered before is void."""
        self.epoch += 1

    def reconcile(self, now: float, view: LedgerSnapshot, *, lost: bool, grace_s: float) -> list[int]:
        """Compare every group that has not ended with the ledger; returns the tombstones that it closes again.

        `lost` says that the ledger may have forgotten what it once confirmed.
        """
        held = max((*view.closed, *view.samples), default=-1)
        self.next_admission = max(self.next_admission, held + 1)
        low = min([view.low, *(min(batch) for batch in self._assign(view))])
        if low < self.order.low:
            self._emit(decisions.AdvanceLedger(self.order.low))
        closing_again: list[int] = []
        for index in range(self.order.low, self.next_admission):
            outcome = view.closed.get(index)
            reason = self.order.tombstones.reason(index) or (TRAINED if self.order.ended(index) else None)
            if reason is not None and outcome == reason:
                self._forget(index)
            elif reason is not None:
                self._emit(decisions.CloseGroup(self.epoch, index, reason))
                if reason != TRAINED:
                    closing_again.append(index)
            elif not self.order.taken(index) or outcome == decisions.COMPLETE:
                self._reconcile_one(now, index, outcome, view, lost=lost, grace_s=grace_s)
        return closing_again

    def _assign(self, view: LedgerSnapshot) -> list[tuple[int, ...]]:
        """Tell the ledger again of the batches that it lacks, or of which it freed groups that are to be made again."""
        told = []
        for step in range(view.committed, self.order.written):
            batch = self.order.batches[step]
            freed = any(g < view.low or view.closed.get(g) == TRAINED for g in batch)
            if freed or view.batches.get(step) != batch:
                self._emit(decisions.AssignBatch(step, batch))
                told.append(batch)
        return told

    def _reconcile_one(
        self, now: float, index: int, outcome: str | None, view: LedgerSnapshot, *, lost: bool, grace_s: float
    ) -> None:
        stored = view.samples.get(index, {})
        group = self.groups.get(index)
        if (outcome == decisions.COMPLETE and not stored) or outcome == TRAINED:
            self._emit(decisions.ReopenGroup(index))
            outcome = None
        if outcome == decisions.COMPLETE:
            group = group or self._create(index)
            if group.phase is not GroupPhase.DECIDED:
                self._drop_lease(group)
                group.phase, group.done, group.verdict = GroupPhase.CLOSED, dict(stored), None
                self.open.discard(index)
                self._know_due(group)
            return
        if outcome is not None:
            log.error("group %d is tombstoned (%s) in the ledger but not in the journal", index, outcome)
            self.end(group or self._create(index), GroupVerdict(outcome, "found in the ledger"))
            return
        if group is None:
            group = self._create(index, now + grace_s)
        if group.phase is GroupPhase.CLOSED:
            self._reopen(group, now)
            group.done = dict(stored)
        elif group.phase is GroupPhase.CLOSING and lost:
            self._emit(self._close_complete(group))
            return
        elif group.phase is GroupPhase.OPEN:
            group.done = dict(stored) if lost else {**stored, **group.done}
        else:
            return
        self._know_due(group)
        group.working -= set(group.done)
        if group.not_before == HELD:
            group.not_before = now
        if group.verdict is not None:
            self.end(group, group.verdict)
        else:
            self._judge_if_full(group)

    def _know_due(self, group: PromptGroup) -> None:
        """A group with samples that another controller granted: their age says when it must be trained."""
        if not group.done or group.due is not None:
            return
        bound = min(figures.max_staleness for figures in group.done.values())
        self.order.grant(group, group.made_due - bound, bound)

    # ---- the trainer's position

    def took(self, now: float, step: int) -> None:
        """The trainer took this step's batch: nobody works on it any more."""
        groups = [self.groups[g] for g in self.order.batches[step] if g in self.groups]
        self.tally.trained(now, ((step, group) for group in groups if group.phase is GroupPhase.CLOSED))
        for group in groups:
            self._drop_lease(group)

    def commit(self, step: int) -> None:
        """A checkpoint holds the batches of the steps below: forget them."""
        order = self.order
        for batch in order.batches[order.committed : step]:
            for index in batch:
                self._forget(index)
        order.committed = max(order.committed, step)
        if order.advance_low(self.next_admission):
            self._emit(decisions.AdvanceLedger(order.low))

    def fell_back(self, step: int) -> None:
        """A trainer started from a checkpoint of this step, which may be an older one."""
        for index in self.order.fell_back(step) & self.groups.keys():
            self._forget(index)
        self.order.advance_low(self.next_admission)

    def drop_what_does_not_fit(self, now: float) -> None:
        """After a fall back earlier groups need the bytes: the least urgent complete groups are made again later."""
        waiting = sorted((self.groups[g] for g in self.order.waiting), key=PromptGroup.by_urgency, reverse=True)
        complete = [group for group in waiting if group.phase is GroupPhase.CLOSED]
        self._make_again(now, complete[: max(0, self.holding - self.capacity)])
