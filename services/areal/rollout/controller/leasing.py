"""Lease assignment: one pass over the open groups, the most urgent first, then admission of new ones.

Owns the rules of the gate as they meet workers: a group gets its floor with its first lease, under the law of
`ledger.gate`; a group that waits for a version holds no slot, and gives up its place at a worker when a more urgent
group needs it.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from areal.ledger.gate import GatePolicy, Window, room
from areal.rollout.controller.book import Book
from areal.rollout.controller.decisions import Decision, GrantLease, Revoke
from areal.rollout.controller.fleet import Crew, Seats
from areal.rollout.controller.groups import PromptGroup


@dataclass(frozen=True, slots=True)
class AdmissionRound:
    """Counts of one round of leasing and admission, for status and metrics."""

    in_work: int  # groups leased and not waiting for a version
    waiting: int  # eligible groups without a worker
    room: int  # what the gate would still admit
    room_bytes: int


def lease(
    book: Book, crew: Crew, versions: range, max_steps: int, now: float, *, admit: int, emit: Callable[[Decision], None]
) -> AdmissionRound:
    """Grant what can be granted now and admit at most `admit` groups, under `versions` as `ServerFleet` has them."""
    settings = book.settings
    groups, newest, size = book.live(), versions.stop - 1, settings.group_size
    held = Counter([group.worker for group in groups if group.worker])
    parked = sorted((group for group in groups if group.floor > newest and group.worker), key=PromptGroup.by_urgency)
    seats = Seats(crew.live(), held)
    in_work = held.total() - len(parked)
    order = sorted(book.order.waiting) if settings.admission_order else []
    waiting = 0
    # nearly all groups have all samples in work: no call for these
    lacking = [group for group in groups if versions and len(group.working) < size and group.unassigned(size)]
    eligible = {group.index: group for group in (*lacking, *parked) if versions}.values()  # one parked may be released
    for group in sorted(eligible, key=PromptGroup.by_urgency):
        if not (missing := group.unassigned(settings.group_size)):
            continue
        if now < group.not_before or not _may_start(book, group, versions, bisect_left(order, group.index)):
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
        _grant(group, missing, settings.group_deadline_s, now, emit)
    gate, by_bytes = _rooms(book, newest, max_steps, in_work + waiting)
    before = book.next_admission
    fresh: list[PromptGroup] = []
    for _ in range(min(gate, by_bytes, seats.free, admit) if versions else 0):
        floor = book.order.floor_for(versions, len(book.order.waiting))
        if floor is None:
            break
        group = book.admit()
        book.order.grant(group, floor, settings.max_staleness)
        fresh.append(group)
    # The longest first: answers that begin last are the short ones, and no server is left alone with a long one.
    for group in sorted(fresh, key=lambda group: -book.expected_tokens(group.index)):
        worker = seats.take()
        assert worker is not None
        group.worker = worker
        in_work += 1
        _grant(group, group.unassigned(settings.group_size), settings.group_deadline_s, now, emit)
    if book.next_admission != before:
        book.streak.admitted(book.next_admission - before)
        gate, by_bytes = _rooms(book, newest, max_steps, in_work + waiting)
    return AdmissionRound(in_work, waiting, gate, by_bytes)


def _may_start(book: Book, group: PromptGroup, versions: range, before: int) -> bool:
    """Whether a server is new enough for the group. One that nothing is left of gets the floor that it needs."""
    if group.index not in book.order.waiting and not group.working:
        bound = book.settings.max_staleness
        book.order.grant(group, (group.due or 0) - bound, bound)
    elif group.due is None:
        floor = book.order.floor_for(versions, before) if book.holding < book.capacity else None
        if floor is None:
            return False
        book.order.grant(group, floor, book.settings.max_staleness)
    return group.floor < versions.stop


def _rooms(book: Book, newest: int, max_steps: int, leased: int) -> tuple[int, int]:
    """Groups that the gate would admit, and groups that fit into the byte budget."""
    settings = book.settings
    policy = GatePolicy(settings.batch_groups, settings.lead, max_steps, settings.max_concurrent)
    gate = room(Window(book.order.chosen, len(book.order.waiting), leased, newest), policy) if newest >= 0 else 0
    return gate, max(0, book.capacity - len(book.groups))


def _make_place(
    group: PromptGroup, parked: list[PromptGroup], seats: Seats, emit: Callable[[Decision], None]
) -> str | None:
    """Take the place of the least urgent group that waits for a version: what it waits for may need this one first."""
    while parked and parked[-1].by_urgency() > group.by_urgency():
        other = parked.pop()
        if other.worker in seats:
            emit(Revoke(other.worker, other.index))
            worker = other.worker
            other.release()
            return worker
    return None


def _grant(
    group: PromptGroup, missing: tuple[int, ...], deadline_s: float, now: float, emit: Callable[[Decision], None]
) -> None:
    group.attempt += 1
    group.working.update(missing)
    group.leased_at = group.leased_at or now
    left = max(0.0, deadline_s - group.spent_s)
    emit(GrantLease(group.worker, group.index, group.attempt, missing, group.floor, group.staleness_bound, left))
