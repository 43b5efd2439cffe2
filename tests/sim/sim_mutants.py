"""Rules of the platform, each broken on purpose. A simulation that keeps quiet about one of these proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from areal.generation.core import AgentCore
from areal.ledger import gate
from areal.ledger.state import LedgerModel, TakenGroup
from areal.rollout.controller import core as controller_core
from areal.rollout.controller import leasing
from areal.rollout.controller.book import Book
from areal.rollout.controller.decisions import Answer, JournalCursor, JournalTombstone
from areal.rollout.controller.groups import Group, Phase, Verdict
from areal.rollout.controller.trainer_desk import TrainerDesk
from areal.sim.server_role import ServerRole
from areal.sim.trainer_role import TrainerRole
from areal.sim.worker_role import WorkerRole

Mutant = Callable[[pytest.MonkeyPatch], None]


def gate_uses_the_trainers_version(patch: pytest.MonkeyPatch) -> None:
    """Groups are admitted for a version that no server holds yet."""
    real = leasing.lease

    def lease(book: Book, crew: Any, newest: int | None, *rest: Any, **named: Any) -> Any:
        held = real(book, crew, newest, *rest, **{**named, "admit": False})
        if newest is None or not named["admit"]:
            return held
        return real(book, crew, max(newest, book.ranks.rank(book.cursor) // book.settings.batch_groups), *rest, **named)

    patch.setattr(controller_core, "lease", lease)


def floor_is_frozen_at_admission(patch: pytest.MonkeyPatch) -> None:
    """A floor keeps the rank that the group had when it was admitted."""
    frozen: dict[tuple[Book, int], int] = {}  # holds the books: the address of a dead one would be used again
    real = Book.floor

    def floor(self: Book, group: Group) -> int:
        return frozen.setdefault((self, group.index), real(self, group))

    patch.setattr(Book, "floor", floor)


def tombstones_below_the_cursor_are_not_held_back(patch: pytest.MonkeyPatch) -> None:
    """Work on what the trainer took goes on, and may end in a tombstone."""

    def end(self: Book, group: Group, verdict: Verdict) -> None:
        group.verdict = verdict
        self._drop_lease(group)
        group.phase = Phase.DECIDED
        self.open.discard(group.index)
        self._emit(JournalTombstone(group.index, verdict.reason, verdict.detail))

    def judge(self: Book, group: Group) -> None:
        if group.full(self.settings.group_size):
            self._close_whole(group)

    def move(self: Book, cursor: int) -> None:
        self.cursor = cursor
        self.next_admission = max(self.next_admission, cursor)

    def live(self: Book) -> Any:
        return (self.groups[g] for g in sorted(self.open))

    patch.setattr(Book, "end", end)
    patch.setattr(Book, "_judge_if_full", judge)
    patch.setattr(Book, "move_cursor", move)
    patch.setattr(Book, "live", live)


def credit_is_given_before_the_journal(patch: pytest.MonkeyPatch) -> None:
    """A tombstone counts, and the ledger hears of it, before it is on disk."""
    real = Book.end

    def end(self: Book, group: Group, verdict: Verdict) -> None:
        before = group.phase
        real(self, group, verdict)
        if group.phase is Phase.DECIDED and before is not Phase.DECIDED:
            self.journalled(group.index, verdict.reason)

    patch.setattr(Book, "end", end)


def a_group_takes_the_current_eta(patch: pytest.MonkeyPatch) -> None:
    """Samples of one group are made under whatever η is in force."""
    patch.setattr(Group, "eta", lambda self, current: current)


def take_jumps_over_gaps(patch: pytest.MonkeyPatch) -> None:
    """Closed groups are given to the trainer although a lower one is open; where a group lies is not looked at."""

    def take(self: LedgerModel, fence: int, from_group: int, max_groups: int) -> list[TakenGroup]:
        groups = sorted(g for g in self.closed if g >= from_group)[:max_groups]
        taken = []
        for position, group in enumerate(groups, from_group):
            held = sorted(self.samples.get(group, {}).items())
            payloads = tuple(payload for _, (payload, _) in held)
            metas = tuple(meta for _, (_, meta) in held)
            taken.append(TakenGroup(position, self.closed[group], payloads, tuple(i for i, _ in held), metas))
        return taken

    patch.setattr(LedgerModel, "take", take)


def an_advance_is_never_refused(patch: pytest.MonkeyPatch) -> None:
    """The trainer's cursor is believed even when the batch changed while it was taken."""

    def advance(self: TrainerDesk, ticket: int, fence: int, next_group: int, step: int) -> None:
        if next_group <= self._book.cursor:
            self._emit(Answer(ticket))
            return
        self.step = step + 1
        self._book.move_cursor(next_group)
        self._cursors[ticket] = 0
        self._emit(JournalCursor(ticket, fence, next_group, step))

    patch.setattr(TrainerDesk, "advance", advance)


def a_cursor_is_acknowledged_before_the_journal(patch: pytest.MonkeyPatch) -> None:
    """The trainer trains what a restarted controller does not know to be taken."""
    real = TrainerDesk.advance

    def advance(self: TrainerDesk, ticket: int, fence: int, next_group: int, step: int) -> None:
        real(self, ticket, fence, next_group, step)
        if self._cursors.get(ticket) == 0:
            self._emit(Answer(ticket))

    patch.setattr(TrainerDesk, "advance", advance)


def a_swapped_server_does_not_ask_for_the_floor(patch: pytest.MonkeyPatch) -> None:
    """Neither client nor agent compares the version with the floor when sampling resumes."""
    real = ServerRole.token
    patch.setattr(ServerRole, "token", lambda self, floor: real(self, -(10**6)))
    sample = WorkerRole._sample
    patch.setattr(WorkerRole, "_sample", lambda self, floor: sample(self, -(10**6)))


def the_gate_forgets_eta(patch: pytest.MonkeyPatch) -> None:
    """`may_sample` is not asked and the gate runs one step further."""
    patch.setattr(leasing, "may_sample", lambda floor, version: True)
    patch.setattr(leasing, "room", lambda window, policy: gate.room(window, policy) + policy.batch_groups)


def a_restarted_ledger_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    """After Redis lost its tail the controller goes on as if nothing had happened."""
    patch.setattr(controller_core.Controller, "ledger_restarted", lambda self: None)


def a_dead_workers_groups_stay_with_it(patch: pytest.MonkeyPatch) -> None:
    """Nobody else gets what a dead worker held."""
    patch.setattr(Book, "orphan", lambda self, worker, keep=(): 0)


def a_refused_version_is_never_tried_again(patch: pytest.MonkeyPatch) -> None:
    """A server that refused a version waits for another publication."""
    real = AgentCore.due

    def due(self: AgentCore, now: float) -> Any:
        wanted, refused = real(self, now), self.refused
        return None if wanted and refused and refused.policy == wanted.policy else wanted

    patch.setattr(AgentCore, "due", due)


def the_frontier_does_not_pass_the_cursor_after_a_loss(patch: pytest.MonkeyPatch) -> None:
    """Groups that were trained and lost are waited for."""
    patch.setattr(LedgerModel, "advance", lambda self, fence, cursor, trainer_fence=None: self.frontier)
    patch.setattr(TrainerRole, "_heal", lambda self, consumer: None)


def waiting_groups_keep_their_slots(patch: pytest.MonkeyPatch) -> None:
    """A group that waits for a version counts as being generated."""
    patch.setattr(leasing, "_make_place", lambda group, parked, seats, emit: None)


def a_ledger_without_the_trainers_position_is_believed(patch: pytest.MonkeyPatch) -> None:
    """A scan counts although the ledger lost the trainer's last `recover`."""
    patch.setattr(controller_core.Controller, "_comparable", lambda self, now, view: True)


MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        gate_uses_the_trainers_version,
        floor_is_frozen_at_admission,
        tombstones_below_the_cursor_are_not_held_back,
        credit_is_given_before_the_journal,
        a_group_takes_the_current_eta,
        take_jumps_over_gaps,
        an_advance_is_never_refused,
        a_cursor_is_acknowledged_before_the_journal,
        a_swapped_server_does_not_ask_for_the_floor,
        the_gate_forgets_eta,
        a_restarted_ledger_is_not_compared,
        a_dead_workers_groups_stay_with_it,
        a_refused_version_is_never_tried_again,
        the_frontier_does_not_pass_the_cursor_after_a_loss,
        waiting_groups_keep_their_slots,
        a_ledger_without_the_trainers_position_is_believed,
    )
}
