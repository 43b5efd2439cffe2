"""Lease assignment: one pass over the open groups, lowest first, then admission of new ones.

Owns the rules of the gate as they meet workers: `may_sample` is asked at every lease with the current rank; a group
that waits for a version holds no slot, and gives up its place at a worker when a lower group needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from areal.ledger.gate import GatePolicy, Window, may_sample, room
from areal.ledger.gate import floor as floor_of
from areal.rollout.controller.book import Book
from areal.rollout.controller.crew import Crew, Seats
from areal.rollout.controller.decisions import Decision, FloorChanged, GrantLease, Revoke
from areal.rollout.controller.groups import PromptGroup


@dataclass(frozen=True, slots=True)
class AdmissionRound:
    """Counts of one round of leasing and admission, for status and metrics."""

    in_work: int  # groups leased and not waiting for a version
    waiting: int  # eligible groups without a worker
    room: int  # what the gate would still admit
    room_bytes: int


def lease(
    book: Book,
    crew: Crew,
    newest: int | None,
    max_steps: int,
    now: float,
    *,
    admit: int,
    emit: Callable[[Decision], None],
) -> AdmissionRound:
    """Grant what can be granted now and admit at most `admit` groups. `newest` is Vmax, None without a server."""
    settings = book.settings
    groups = book.live()
    held = Counter([group.worker for group in groups if group.worker])
    seats = Seats(crew.live(), held)
    stuck = groups if newest is None else _too_young(book, groups, newest)
    stuck_indices = {group.index for group in stuck}
    parked = [group for group in stuck if group.worker]  # lowest first
    in_work = sum(1 for group in groups if group.worker and group.index not in stuck_indices)
    waiting, group_size = 0, settings.group_size
    for group in groups:
        missing = group.unassigned(group_size)
        if not missing or group.index in stuck_indices or group.index < book.refused_below:
            continue
        if not book.fits(group.index):
            break
        if now < group.not_before:
            waiting += not group.worker
            continue
        if not group.worker:
            if in_work >= settings.max_concurrent:
                waiting += 1
                continue
            worker = seats.take(group.tried_by) or _make_place(group, parked, seats, emit)
            if worker is None:
                waiting += 1
                continue
            group.worker = worker
            in_work += 1
        elif group.worker not in seats:
            continue
        _grant(book, group, missing, now, emit)
    gate, by_bytes = _rooms(book, newest, max_steps, in_work + waiting)
    before = book.next_admission
    for _ in range(min(gate, by_bytes, seats.free, admit) if newest is not None else 0):
        group = book.admit()
        if not may_sample(book.floor(group), newest or 0):
            break
        worker = seats.take()
        assert worker is not None
        group.worker = worker
        in_work += 1
        _grant(book, group, group.unassigned(settings.group_size), now, emit)
    if book.next_admission != before:
        book.streak.admitted(book.next_admission - before)
        gate, by_bytes = _rooms(book, newest, max_steps, in_work + waiting)
    return AdmissionRound(in_work, waiting, gate, by_bytes)


def _too_young(book: Book, groups: list[PromptGroup], newest: int) -> list[PromptGroup]:
    """The groups for which no server is new enough. This runs for every open group after every input."""
    batch_groups, eta = book.settings.batch_groups, book.settings.max_staleness
    beyond = [group for group in groups if not may_sample(floor_of(group.index, batch_groups, group.eta(eta)), newest)]
    return [group for group in beyond if not may_sample(book.floor(group), newest)]  # a rank is at most its index


def _rooms(book: Book, newest: int | None, max_steps: int, leased: int) -> tuple[int, int]:
    """Groups that the gate would admit, and groups that fit into the byte budget."""
    settings = book.settings
    policy = GatePolicy(settings.batch_groups, settings.max_staleness, max_steps, settings.max_concurrent)
    gate = room(Window(book.next_rank, leased, newest), policy) if newest is not None else 0
    return gate, max(0, book.capacity - book.reserved)


def _make_place(
    group: PromptGroup, parked: list[PromptGroup], seats: Seats, emit: Callable[[Decision], None]
) -> str | None:
    """Take the place of the highest group that waits for a version: what it waits for may need this group first."""
    while parked and parked[-1].index > group.index:
        other = parked.pop()
        if other.worker in seats:
            emit(Revoke(other.worker, other.index))
            worker = other.worker
            other.release()
            return worker
    return None


def _grant(
    book: Book, group: PromptGroup, missing: tuple[int, ...], now: float, emit: Callable[[Decision], None]
) -> None:
    settings = book.settings
    group.staleness_bound = group.eta(settings.max_staleness) if group.done or group.working else settings.max_staleness
    group.attempt += 1
    group.working.update(missing)
    group.told_floor = book.floor(group)
    group.leased_at = group.leased_at or now
    left = max(0.0, settings.group_deadline_s - group.spent_s)
    emit(GrantLease(group.worker, group.index, group.attempt, missing, group.told_floor, group.staleness_bound, left))


def loosen(book: Book, emit: Callable[[Decision], None]) -> None:
    """Tell workers the floors that fell since they were told."""
    for group in book.live():
        if not group.worker:
            continue
        floor = book.floor(group)
        if floor < group.told_floor:
            group.told_floor = floor
            emit(FloorChanged(group.worker, group.index, floor))
