"""The book of groups: who is admitted, what each group has, how each one ends.

Owns ranks, the trainer's cursor and every group from the committed watermark on. Promises: credit for a tombstone only
after the journal has it; nothing below the trainer's cursor is ended or made again; a group keeps its η. It assigns no
work (`leasing`) and answers no calls (`trainer_desk`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from areal.ledger.gate import floor as floor_of
from areal.ledger.values import TombstoneReason
from areal.rollout.contract.values import FailureKind, GroupInHand, SampleDone, SampleFailure
from areal.rollout.controller.decisions import (
    COMPLETE,
    Admit,
    AdvanceLedger,
    CloseGroup,
    Decision,
    JournalTombstone,
    ReopenGroup,
    Revoke,
    ScanLedger,
)
from areal.rollout.controller.groups import HELD, GroupPhase, GroupRanks, GroupVerdict, PromptGroup
from areal.rollout.controller.reports import LedgerView
from areal.rollout.controller.settings import ControllerSettings, TrainCursor, retry_pause_s
from areal.rollout.controller.streak import BadRows, Streak
from areal.rollout.controller.tally import Tally

log = logging.getLogger(__name__)

_CLAIMED = 1024
"""So many unknown groups a controller believes workers to hold, or `maxConcurrentRollouts` when it is more: a claim
creates every group up to the one it names, and no pass may take long."""


_TRIES_THERE = 3  # in a row at the worker that keeps what the tries drew; then at any


class Book:
    """All groups of a job. Inputs that make time-dependent choices take `now`, a monotonic clock in seconds. `place`
    tells where a group's row is, for people."""

    def __init__(
        self,
        position: TrainCursor,
        tombstones: Mapping[int, str],
        emit: Callable[[Decision], None],
        place: Callable[[int], str] = lambda group: "",
    ) -> None:
        self._position = position
        self._place = place
        self.ranks = GroupRanks(tombstones)
        self.tally = Tally()
        self.streak = Streak()
        self.bad_rows = BadRows(position.settings.batch_groups)
        self.groups: dict[int, PromptGroup] = {}
        self.committed = 0  # a checkpoint holds every group below
        self.next_admission = self.ranks.last + 1
        self.refused_below = 0  # the ledger takes no samples of groups below
        self.open: set[int] = set()  # groups that still need samples or a decision
        self.epoch = 0  # grows when the ledger loses data: answers to older questions are void
        self.ranks_changed = False
        self._emit = emit
        self._scans = 0
        self.claims_below: int | None = (
            None  # workers may hold groups below that nothing here shows; None: not known yet
        )
        self._claimed = 0  # groups that were created because a worker says that it, or another, must hold them

    # ---- what follows from the state

    @property
    def settings(self) -> ControllerSettings:
        """As they hold now."""
        return self._position.settings

    @property
    def cursor(self) -> int:
        """The trainer took every group below."""
        return self._position.cursor

    def floor(self, group: PromptGroup) -> int:
        """The oldest version that may make a token of this group, by its current rank and its own η."""
        return floor_of(
            self.ranks.rank(group.index), self.settings.batch_groups, group.eta(self.settings.max_staleness)
        )

    @property
    def next_rank(self) -> int:
        """Rank of the next group to admit."""
        return self.ranks.rank(self.next_admission)

    @property
    def reserved(self) -> int:
        """Groups whose bytes are reserved: admitted, neither committed nor tombstoned."""
        return self.next_rank - self.ranks.rank(self.committed)

    @property
    def capacity(self) -> int:
        """Capacity of the byte budget, in groups."""
        return self.settings.budget_bytes // self.settings.bytes_per_group

    def fits(self, index: int) -> bool:
        """Whether the byte budget reaches to this group, counted from the committed watermark."""
        return self.ranks.rank(index) - self.ranks.rank(self.committed) < self.capacity

    def waiting_complete(self) -> int:
        """Complete groups that the trainer did not take yet."""
        return sum(1 for g, group in self.groups.items() if g >= self.cursor and group.phase is GroupPhase.CLOSED)

    def batch_whole(self) -> bool:
        """Whether the trainer can take its next batch: no group before its end is open or on its way to the ledger."""
        index, complete = self.cursor, 0
        while complete < self.settings.batch_groups:
            group = self.groups.get(index)
            if group is None and index not in self.ranks:
                return False
            if group is not None:
                if group.phase is not GroupPhase.CLOSED:
                    return False
                complete += 1
            index += 1
        return True

    def live(self) -> list[PromptGroup]:
        """Open groups at or above the cursor, lowest first."""
        cursor, groups = self.cursor, self.groups
        return [groups[g] for g in sorted(self.open) if g >= cursor]

    def unsettled(self) -> int:
        """Groups at or above the cursor on their way to a tombstone."""
        return sum(
            1
            for g, group in self.groups.items()
            if g >= self.cursor and group.phase in (GroupPhase.DECIDED, GroupPhase.CLOSING)
        )

    # ---- admission

    def admit(self) -> PromptGroup:
        """The next dense index starts to exist."""
        group = self._create(self.next_admission)
        self.next_admission += 1
        self._emit(Admit(group.index))
        return group

    def _create(self, index: int, not_before: float = 0.0) -> PromptGroup:
        group = self.groups[index] = PromptGroup(index, not_before=not_before)
        self.open.add(index)
        return group

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
        self.tally.sampled(report, self.floor(group))
        self._judge_if_full(group)

    def _judge_if_full(self, group: PromptGroup) -> None:
        if group.index < self.cursor or not group.full(self.settings.group_size):
            return
        self._close_whole(group)

    def _close_whole(self, group: PromptGroup) -> None:
        if self.settings.filter_zero_variance and group.same_rewards():
            self.end(group, GroupVerdict(TombstoneReason.FILTERED, "all samples earned the same reward", chosen=True))
            return
        self._drop_lease(group)
        group.phase = GroupPhase.CLOSING
        self.open.discard(group.index)
        self._emit(self._close_complete(group))

    def _close_complete(self, group: PromptGroup) -> CloseGroup:
        return CloseGroup(self.epoch, group.index, COMPLETE, tuple(sorted(group.done)), group.short)

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

    def spend(self, group: PromptGroup, seconds: float) -> None:
        """An eligible server made progress for this long. At its deadline a group closes with what is whole."""
        group.spent_s += seconds
        if group.spent_s < self.settings.group_deadline_s:
            return
        if len(group.done) >= 2:
            group.short = True
            self._close_whole(group)
        else:
            self.end(
                group, GroupVerdict(TombstoneReason.DEADLINE, f"{len(group.done)} samples in {group.spent_s:.0f} s")
            )

    # ---- endings

    def end(self, group: PromptGroup, verdict: GroupVerdict) -> None:
        """Tombstone a group; held back when the trainer's cursor is beyond it."""
        group.verdict = verdict
        if group.index < self.cursor:
            return
        self._drop_lease(group)
        group.phase = GroupPhase.DECIDED
        self.open.discard(group.index)
        counts = (0, 0)
        if self.settings.pass_score is not None and verdict.reason == TombstoneReason.FILTERED:
            counts = group.passes(self.settings.pass_score)
        self._emit(JournalTombstone(group.index, verdict.reason, verdict.detail, *counts))

    def journalled(self, now: float, index: int, reason: str) -> None:
        """The tombstone is on disk: now it counts, and the ledger is told."""
        group = self.groups.get(index)
        if self.ranks.add(index, reason):
            self.ranks_changed = True
            self.tally.tombstoned(now, reason, group)
            verdict = (group and group.verdict) or GroupVerdict(reason)
            where = self._place(index) if verdict.reason == TombstoneReason.REJECTED else ""
            self.streak.ended(now, verdict, where)
            self.bad_rows.ended(verdict, where)
        if group is not None:
            group.phase = GroupPhase.CLOSING
        self._emit(CloseGroup(self.epoch, index, reason))

    def closed(self, now: float, epoch: int, index: int, outcome: str, missing: tuple[int, ...]) -> None:
        """The ledger answered a close; with `missing` samples the group opens again."""
        group = self.groups.get(index)
        if epoch != self.epoch or group is None or group.phase is not GroupPhase.CLOSING:
            return
        reason = self.ranks.reason(index)
        if reason is not None:
            if outcome == COMPLETE:
                self._emit(ReopenGroup(index))
                self._emit(CloseGroup(self.epoch, index, reason))
            else:
                del self.groups[index]
            return
        if missing:
            self._reopen(group, now)
            for i in missing:
                group.done.pop(i, None)
            return
        if outcome != COMPLETE:
            self.end(group, GroupVerdict(outcome, "found in the ledger"))
            return
        group.phase = GroupPhase.CLOSED
        group.closed_at = now
        self.tally.completed(group, self.settings.batch_groups)
        self.streak.completed()
        self.bad_rows.completed()

    def _reopen(self, group: PromptGroup, now: float) -> None:
        group.phase = GroupPhase.OPEN
        group.short = False
        group.not_before = now + self.settings.resend_grace_s
        group.release()
        self.open.add(group.index)

    def end_beyond(self, rank: int, verdict: GroupVerdict, *, complete: bool) -> None:
        """End every group whose rank is at or beyond `rank`; complete ones only when asked."""
        for index in sorted(self.groups):
            group = self.groups[index]
            if index < self.cursor or self.ranks.rank(index) < rank:
                continue
            if group.phase is GroupPhase.OPEN or (complete and group.phase is GroupPhase.CLOSED):
                self.end(group, verdict)

    # ---- leases

    def _drop_lease(self, group: PromptGroup) -> None:
        if group.worker and group.working:
            self._emit(Revoke(group.worker, group.index))
        group.release()

    def given_back(self, now: float, worker: str, index: int) -> None:
        """A worker drains, or the ledger would not take its samples: somebody else, or a little later."""
        group = self.groups.get(index)
        if group is not None and group.worker == worker:
            group.release()
            group.not_before = max(group.not_before, now + retry_pause_s(0))

    def refuse_below(self, index: int) -> None:
        """The ledger takes no samples of groups below: nobody works on them."""
        self.refused_below = index
        for group in self.groups.values():
            if group.index < index and group.phase is GroupPhase.OPEN:
                self._drop_lease(group)

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
            held.group < self.cursor
            or held.group in self.ranks
            or claimed > max(self.settings.max_concurrent, _CLAIMED)
            or (unknown and self._beyond_claims(held.group))
        ):
            return False
        self._claimed = claimed
        while self.next_admission <= held.group:
            self._create(self.next_admission, now + self.settings.adopt_grace_s)
            self.next_admission += 1
        group = self.groups.get(held.group) or self._create(held.group)
        if group.phase is not GroupPhase.OPEN or group.worker not in ("", worker):
            return False
        group.worker = worker
        group.working = {i for i in held.indices if i not in group.done}
        group.attempt = max(group.attempt, held.attempt)
        group.staleness_bound = held.max_staleness
        group.has_tokens = held.has_tokens
        group.not_before = min(group.not_before, now) if group.not_before != HELD else now
        group.told_floor = self.floor(group)
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
        self._emit(ScanLedger(self._scans, self.epoch))
        return self._scans

    def lost_data(self) -> None:
        """The ledger restarted: what it answered before is void."""
        self.epoch += 1

    def reconcile(self, now: float, view: LedgerView, *, lost: bool, grace_s: float) -> list[int]:
        """Compare every group at or above the cursor with the ledger; returns the tombstones that it closes again.

        `lost` says that the ledger may have forgotten what it once confirmed.
        """
        held = max((*view.closed, *view.samples), default=-1)
        self.next_admission = max(self.next_admission, held + 1, self.cursor)
        closing_again: list[int] = []
        for index in range(self.cursor, self.next_admission):
            reason = self.ranks.reason(index)
            outcome = view.closed.get(index)
            if reason is not None:
                if outcome != reason:
                    self._emit(CloseGroup(self.epoch, index, reason))
                    closing_again.append(index)
                else:
                    self.groups.pop(index, None)
                continue
            self._reconcile_one(now, index, outcome, view, lost=lost, grace_s=grace_s)
        self._emit(AdvanceLedger(self.cursor, self._position.fence))
        return closing_again

    def _reconcile_one(
        self, now: float, index: int, outcome: str | None, view: LedgerView, *, lost: bool, grace_s: float
    ) -> None:
        stored = view.samples.get(index, {})
        group = self.groups.get(index)
        if outcome == COMPLETE and not stored:
            self._emit(ReopenGroup(index))
            outcome = None
        if outcome == COMPLETE:
            group = group or self._create(index)
            if group.phase is not GroupPhase.DECIDED:
                self._drop_lease(group)
                group.phase, group.done, group.verdict = GroupPhase.CLOSED, dict(stored), None
                self.open.discard(index)
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
        group.working -= set(group.done)
        if group.not_before == HELD:
            group.not_before = now
        if group.verdict is not None:
            self.end(group, group.verdict)
        else:
            self._judge_if_full(group)

    # ---- the trainer's position

    def taken(self, now: float, before: int) -> None:
        """The trainer's cursor moved on from `before`: nobody works on what lies below it any more."""
        cursor = self.cursor
        taken = (
            (self.ranks.rank(g) // self.settings.batch_groups, group)
            for g, group in self.groups.items()
            if before <= g < cursor and group.phase is GroupPhase.CLOSED
        )
        self.tally.trained(now, taken)
        self.next_admission = max(self.next_admission, cursor)
        for index in [g for g in self.open if g < cursor]:
            self._drop_lease(self.groups[index])

    def measured(self, before: int, below: int) -> tuple[tuple[int, int, int], ...]:
        """Of the complete groups from `before` on and below `below`: group, passes, tries. None where nobody counts."""
        score = self.settings.pass_score
        if score is None:
            return ()
        found = (group for g in range(before, below) if (group := self.groups.get(g)) is not None)
        return tuple((group.index, *group.passes(score)) for group in found if group.phase is GroupPhase.CLOSED)

    def commit(self, group: int) -> None:
        """A checkpoint holds every group below: forget them."""
        self.committed = max(self.committed, min(group, self.cursor))
        for index in [g for g in self.groups if g < self.committed]:
            del self.groups[index]
            self.open.discard(index)

    def fell_back(self) -> None:
        """A trainer started from a checkpoint: its cursor may be lower than the last one told."""
        cursor = self.committed = self.cursor
        self.next_admission = max(self.next_admission, cursor)
        for index in [g for g in self.groups if g < cursor]:
            del self.groups[index]
            self.open.discard(index)

    def drop_what_does_not_fit(self) -> None:
        """After a fall back lower groups need the bytes: the highest complete groups are made again later."""
        for index, group in self.groups.items():
            if group.phase is GroupPhase.CLOSED and index >= self.cursor and not self.fits(index):
                group.phase = GroupPhase.OPEN
                group.done = {}
                group.release()
                self.open.add(index)
                self._emit(ReopenGroup(index))
