"""The trainer's side: attach, advance, publish, commit, propose, finish.

Owns the living trainer's fence and the calls that wait for an answer. Promises: a cursor is acknowledged only when it
is in the journal; an advance that no longer agrees with the ranks is refused, so that what was taken is taken again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from areal.errors import BugError, FencedError, InfraError
from areal.ledger.values import REPLACES_COMPLETE
from areal.net.heartbeat import Detector, Health
from areal.rollout.controller.book import Book
from areal.rollout.controller.decisions import Answer, Decision, JournalCursor
from areal.rollout.controller.groups import Phase, Verdict
from areal.rollout.controller.reports import TrainerReport
from areal.rollout.controller.settings import CHECKPOINT_SHARE

_FOREVER_FENCED = "stop this trainer: a newer one is alive"


@dataclass(slots=True)
class _Attach:
    """An attach on its way: journal, then scan, then the closes that the scan asked for."""

    ticket: int
    scan: int = 0
    closing: set[int] = field(default_factory=set)


class TrainerDesk:
    """What the controller owes the trainer."""

    def __init__(self, book: Book, fence: int, step: int, emit: Callable[[Decision], None]) -> None:
        self._book = book
        self._emit = emit
        self.fence = fence
        self.step = step  # version that the trainer holds, or will hold when the acknowledged batch is trained
        self.finished = False
        self.detector: Detector | None = None
        self._attaches: list[_Attach] = []
        self._cursors: dict[int, int] = {}  # journalled on behalf of: ticket → 0 advance, 1 attach
        self._proposals: dict[int, list[int]] = {}  # group → tickets

    # ---- calls

    def attach(self, ticket: int, fence: int, next_group: int, step: int) -> None:
        """A trainer starts from a checkpoint. Its ledger `recover` came before."""
        book = self._book
        if fence < self.fence:
            self._refuse(ticket, FencedError(f"trainer fence {fence} is over: {self.fence}", fix=_FOREVER_FENCED))
            return
        if book.ranks.rank(next_group) != step * book.settings.batch_groups:
            self._refuse(ticket, self._broken(next_group, step))
            return
        self.fence, self.step, self.finished = fence, step, False
        book.trainer_fence = fence
        book.fall_back(next_group)
        self._attaches.append(_Attach(ticket))
        self._cursors[ticket] = 1
        self._emit(JournalCursor(ticket, fence, next_group, step))

    def advance(self, ticket: int, fence: int, next_group: int, step: int) -> None:
        """The trainer took every group below `next_group`, the last batch for `step`."""
        book = self._book
        if fence < self.fence:
            self._refuse(ticket, FencedError(f"trainer fence {fence} is over: {self.fence}", fix=_FOREVER_FENCED))
            return
        if fence > self.fence:
            self._refuse(ticket, InfraError(f"trainer fence {fence} is not attached", fix="attach first"))
            return
        if next_group <= book.cursor:
            self._emit(Answer(ticket))
            return
        if step >= max(book.settings.max_steps, self.step):
            # The run was shortened to end before this batch: the answer says so, and the batch is dropped.
            self._emit(Answer(ticket))
            return
        pending = any(
            g < next_group and group.phase is Phase.DECIDED for g, group in book.groups.items() if g >= book.cursor
        )
        if pending or book.ranks.rank(next_group) != (step + 1) * book.settings.batch_groups:
            self._refuse(
                ticket,
                InfraError(
                    f"the batch of step {step} below group {next_group} changed while it was taken",
                    fix="take it again from the position of the last step",
                ),
            )
            return
        self.step = step + 1
        book.move_cursor(next_group)
        self._cursors[ticket] = 0
        self._emit(JournalCursor(ticket, fence, next_group, step))

    def propose(self, ticket: int, fence: int, index: int, reason: str, detail: str) -> None:
        """The trainer can't train a group: a tombstone, also of a complete one."""
        book = self._book
        if fence != self.fence:
            self._refuse(ticket, FencedError(f"trainer fence {fence} is not {self.fence}", fix=_FOREVER_FENCED))
            return
        if book.ranks.reason(index) is not None:
            self._emit(Answer(ticket))
            return
        group = book.groups.get(index)
        if index < book.cursor or group is None or reason not in REPLACES_COMPLETE or group.phase is Phase.CLOSING:
            self._emit(Answer(ticket, accepted=False))
            return
        self._proposals.setdefault(index, []).append(ticket)
        if group.phase is not Phase.DECIDED:
            book.end(group, Verdict(reason, detail))

    def beat(self, now: float, report: TrainerReport) -> None:
        """A beat; a checkpoint may have been committed, or the run finished."""
        if report.fence != self.fence:
            return
        if self.detector is None:
            self.detector = Detector(now)
        self.detector.beat(now, report.progress)
        if report.committed_group > self._book.committed:
            self._book.commit(report.committed_group)
        self.finished = report.finished

    def health(self, now: float) -> Health | None:
        """Of the trainer's stream; None before the first beat."""
        return self.detector.health(now) if self.detector else None

    # ---- answers to our decisions

    def cursor_journalled(self, ticket: int) -> None:
        """The position is on disk."""
        if self._cursors.pop(ticket, 0):
            for attach in self._attaches:
                if attach.ticket == ticket:
                    attach.scan = self._book.scan()
        else:
            self._emit(Answer(ticket))

    def scanned(self, scan: int, closing: list[int]) -> None:
        """The ledger was compared; `closing` tombstones are on their way into it."""
        for attach in self._attaches:
            if attach.scan and attach.scan <= scan:
                attach.closing = set(closing)
        for index in [index for index in self._proposals if index in self._book.ranks and index not in closing]:
            self.closed(index)
        self._answer_attaches(scan)

    def rescan(self) -> None:
        """The ledger lost data: scans asked for before are void."""
        for attach in self._attaches:
            if attach.scan:
                attach.scan = self._book.scan()

    def closed(self, index: int) -> None:
        """A close was answered."""
        for ticket in self._proposals.pop(index, []):
            self._emit(Answer(ticket))
        if self._attaches:
            for attach in self._attaches:
                attach.closing.discard(index)
            self._answer_attaches(None)

    def _answer_attaches(self, scan: int | None) -> None:
        for attach in list(self._attaches):
            scanned = attach.scan < 0 or (scan is not None and 0 < attach.scan <= scan)
            if scanned:
                attach.scan = -1
                if not attach.closing:
                    self._attaches.remove(attach)
                    self._emit(Answer(attach.ticket))

    @property
    def attaching(self) -> bool:
        """Whether a trainer waits for its attach to be answered."""
        return bool(self._attaches)

    # ---- bytes

    @property
    def checkpoint_now(self) -> bool:
        """Whether the byte budget asks for a checkpoint, which frees what it holds."""
        book = self._book
        return book.cursor > book.committed and book.reserved >= CHECKPOINT_SHARE * book.capacity

    def _refuse(self, ticket: int, error: FencedError | BugError | InfraError) -> None:
        self._emit(Answer(ticket, error, accepted=False))

    def _broken(self, next_group: int, step: int) -> BugError:
        rank, batch = self._book.ranks.rank(next_group), self._book.settings.batch_groups
        return BugError(
            f"checkpoint of step {step} says next group {next_group}, whose rank is {rank}, not {step}·{batch}"
        )
