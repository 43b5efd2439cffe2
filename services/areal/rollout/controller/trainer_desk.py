"""The trainer's calls: attach, advance, publish, propose; and its heartbeats with what it committed and finished.

Owns the living trainer's fence and step, and the calls that wait for an answer. Promises: an attach is answered only
when it is in the journal and the ledger agrees; a batch of which a group has ended since it was taken is refused, so
that it is taken again; nothing that a trainer of an older fence says changes anything.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from areal.errors import BugError, FencedError, InfraError
from areal.ledger.values import REPLACES_COMPLETE
from areal.net.heartbeat import Detector, Health
from areal.rollout.controller.book import Book
from areal.rollout.controller.decisions import CallAnswer, Decision, JournalTrainer, KeepServed, WantWeights
from areal.rollout.controller.fleet import ServerFleet
from areal.rollout.controller.groups import GroupPhase, GroupVerdict
from areal.rollout.controller.inputs import (
    AdvanceTrainer,
    AttachTrainer,
    ProposeTombstone,
    PublishWeights,
    TrainerReport,
)
from areal.rollout.controller.settings import CHECKPOINT_SHARE, TrainPosition


@dataclass(frozen=True, slots=True)
class _Journalling:
    """The position is on its way to disk."""


@dataclass(frozen=True, slots=True)
class _Scanning:
    """The ledger is being read."""

    ticket: int


@dataclass(frozen=True, slots=True)
class _Closing:
    """Tombstones that the scan missed are on their way into the ledger."""

    groups: frozenset[int]


_Attaching: TypeAlias = _Journalling | _Scanning | _Closing


class TrainerDesk:
    """What the controller owes the trainer."""

    def __init__(
        self, position: TrainPosition, book: Book, fleet: ServerFleet, emit: Callable[[Decision], None]
    ) -> None:
        self._position = position
        self._book = book
        self._fleet = fleet
        self._emit = emit
        self.finished = False
        self.given_back = 0  # of shared cards: the newest turn after which the trainer gave them back
        self.wants_cards = False
        self.detector: Detector | None = None
        self._attaches: dict[int, _Attaching] = {}  # by ticket
        self._proposals: dict[int, list[int]] = {}  # group → tickets

    @property
    def fence(self) -> int:
        """Of the trainer that attached last."""
        return self._position.fence

    @property
    def step(self) -> int:
        """Version that the trainer holds, or will hold when the acknowledged batch is trained."""
        return self._position.step

    @property
    def batch_whole(self) -> bool:
        """Whether the trainer can take its next batch: it is chosen, and the ledger has all of it that is trained."""
        order, groups = self._book.order, self._book.groups
        if self.step >= order.written:
            return False
        left = [g for g in order.batches[self.step] if g not in order.tombstones]
        return all(g in groups and groups[g].phase is GroupPhase.CLOSED for g in left)

    # ---- calls

    def attach(self, call: AttachTrainer) -> None:
        """A trainer starts from a checkpoint."""
        position, book = self._position, self._book
        if call.fence < self.fence:
            self._refuse(call.ticket, self._fenced(call.fence))
            return
        if call.step > book.order.chosen:
            self._refuse(
                call.ticket, BugError(f"a checkpoint of step {call.step}, and {book.order.chosen} batches chosen")
            )
            return
        position.fence, position.step = call.fence, call.step
        self.finished, self.given_back, self.wants_cards = False, 0, False
        book.fell_back(call.step)
        self._attaches[call.ticket] = _Journalling()
        self._emit(JournalTrainer(call.ticket, call.fence, call.step))

    def advance(self, now: float, call: AdvanceTrainer) -> None:
        """The trainer took a batch, and trains it once this is answered."""
        position, book = self._position, self._book
        if call.fence < self.fence:
            self._refuse(call.ticket, self._fenced(call.fence))
            return
        if call.fence > self.fence:
            error = InfraError(f"trainer fence {call.fence} is not attached", fix="attach first")
            self._refuse(call.ticket, error)
            return
        if call.step < position.step:
            self._emit(CallAnswer(call.ticket))
            return
        if call.step >= book.order.written or not book.whole(call.step, call.groups):
            error = InfraError(f"the batch of step {call.step} changed while it was taken", fix="take it again")
            self._refuse(call.ticket, error)
            return
        position.step = call.step + 1
        book.took(now, call.step)
        self._emit(CallAnswer(call.ticket))

    def publish(self, call: PublishWeights) -> bool:
        """New weights: they are kept, then served, when they follow on the served ones. True when they do."""
        if call.fence < self.fence:
            self._refuse(call.ticket, self._fenced(call.fence))
            return False
        served = self._fleet.served
        if new := self._fleet.follow(call.weights):
            self._emit(KeepServed(call.weights))
        else:  # told again when the answer was lost
            again = served is not None and served.policy_id == call.weights.policy_id
            self._emit(CallAnswer(call.ticket, accepted=again))
        return new

    def serve(self, call: PublishWeights) -> None:
        """The weights of this call are kept: they are served from now on."""
        self._fleet.publish(call.weights)
        self._emit(WantWeights(call.weights))
        self._emit(CallAnswer(call.ticket))

    def propose(self, call: ProposeTombstone) -> None:
        """A group that can't be trained gets a tombstone, also when it is complete."""
        book, index = self._book, call.group
        if call.fence != self.fence:
            self._refuse(call.ticket, self._fenced(call.fence))
            return
        if index in book.order.tombstones:
            self._emit(CallAnswer(call.ticket))
            return
        group = book.groups.get(index)
        if (
            book.order.taken(index)
            or group is None
            or call.reason not in REPLACES_COMPLETE
            or group.phase is GroupPhase.CLOSING
        ):
            self._emit(CallAnswer(call.ticket, accepted=False))
            return
        self._proposals.setdefault(index, []).append(call.ticket)
        if group.phase is not GroupPhase.DECIDED:
            book.end(group, GroupVerdict(call.reason, call.detail))

    def beat(self, now: float, report: TrainerReport) -> None:
        """A beat; a checkpoint may have been committed, or the run finished."""
        if report.fence != self.fence:
            return
        if self.detector is None:
            self.detector = Detector(now)
        self.detector.beat(now, report.progress)
        self._position.step = max(self._position.step, min(report.step, self._book.order.chosen))
        if report.committed > self._book.order.committed:
            self._book.commit(min(report.committed, self._book.order.chosen))
        self.finished = report.finished
        self.given_back, self.wants_cards = report.turn, report.wants_cards

    def health(self, now: float) -> Health | None:
        """Of the trainer's stream; None before the first beat."""
        return self.detector.health(now) if self.detector else None

    # ---- answers to our decisions

    def journalled(self, ticket: int) -> None:
        """Where the trainer starts is on disk."""
        self._attaches[ticket] = _Scanning(self._book.scan())

    def scanned(self, scan: int, closing: list[int]) -> None:
        """The ledger was compared; `closing` tombstones are on their way into it."""
        # A Redis that lost its tail lacks tombstones that the journal has: a trainer that took now would train a group
        # that had ended. So an attach waits for a comparison that began after it (an earlier one may have read the
        # ledger before the loss), and then until every tombstone that was missing is written again.
        for ticket, state in self._attaches.items():
            if isinstance(state, _Closing) or (isinstance(state, _Scanning) and state.ticket <= scan):
                self._attaches[ticket] = _Closing(frozenset(closing))
        for index in [
            index for index in self._proposals if index in self._book.order.tombstones and index not in closing
        ]:
            self.closed(index)
        self._answer_attaches()

    def rescan(self) -> None:
        """The ledger lost data: scans asked for before are void."""
        for ticket, state in self._attaches.items():
            if not isinstance(state, _Journalling):
                self._attaches[ticket] = _Scanning(self._book.scan())

    def closed(self, index: int) -> None:
        """A close was answered."""
        for ticket in self._proposals.pop(index, []):
            self._emit(CallAnswer(ticket))
        for ticket, state in self._attaches.items():
            if isinstance(state, _Closing):
                self._attaches[ticket] = _Closing(state.groups - {index})
        self._answer_attaches()

    def _answer_attaches(self) -> None:
        for ticket in [ticket for ticket, state in self._attaches.items() if state == _Closing(frozenset())]:
            del self._attaches[ticket]
            self._emit(CallAnswer(ticket))

    @property
    def attaching(self) -> bool:
        """Whether a trainer waits for its attach to be answered."""
        return bool(self._attaches)

    # ---- bytes

    @property
    def checkpoint_now(self) -> bool:
        """Whether the byte budget asks for a checkpoint, which frees what it holds."""
        book = self._book
        return self._position.step > book.order.committed and len(book.groups) >= CHECKPOINT_SHARE * book.capacity

    # ---- shared pieces

    def _refuse(self, ticket: int, error: FencedError | BugError | InfraError) -> None:
        self._emit(CallAnswer(ticket, error, accepted=False))

    def _fenced(self, fence: int) -> FencedError:
        return FencedError(
            f"trainer fence {fence} is over: {self.fence}", fix="stop this trainer: a newer one is alive"
        )
