"""One pass of leasing: who gets a place, who gives one up, and what is counted."""

from __future__ import annotations

from dataclasses import replace

from areal.ledger.values import COMPLETE
from areal.rollout.contract.values import WorkerReport, WorkReport
from areal.rollout.controller.decisions import GrantLease, Notice, Revoke
from areal.rollout.controller.fleet import Crew
from areal.rollout.controller.groups import GroupPhase, GroupVerdict
from areal.rollout.controller.leasing import AdmissionRound, lease
from areal.rollout.controller.streak import FAILED_TO_PAUSE
from controller_bench import SETTINGS
from controller_shelf import NOW, Shelf, View, figures


def passed(shelf: Shelf, *, newest: int = 0, admit: int = 0, **places: int) -> AdmissionRound:
    """A pass with servers of versions 0 to `newest`, and workers with so many places."""
    crew = Crew()
    for name, capacity in places.items():
        crew.beat(NOW, WorkerReport(name, "1", capacity, WorkReport()))
    shelf.said.clear()
    return lease(shelf.book, crew, range(newest + 1), 10, NOW, admit=admit, emit=shelf.said.append)


def test_a_group_in_work_gives_its_place_to_no_other() -> None:
    shelf = Shelf()
    _, *others = shelf.admitted(3)
    for group in others:
        shelf.held(group)
    told = passed(shelf, w=2)
    assert shelf.said == []
    assert (told.in_work, told.waiting) == (2, 1)


def test_the_least_urgent_that_waits_for_a_version_gives_its_place_within_the_pass() -> None:
    shelf = Shelf()
    urgent, *parked = shelf.admitted(3)
    for group in parked:
        shelf.order.grant(shelf.held(group), 1, 1)
    told = passed(shelf, w=2)
    assert shelf.said == [Revoke("w", 2), GrantLease("w", 0, 1, (0, 1), 0, 1, SETTINGS.group_deadline_s)]
    assert (parked[1].worker, parked[1].working, parked[0].worker, urgent.worker) == ("", set(), "w", "w")
    assert told.in_work == 1


def test_a_place_is_taken_from_who_is_less_urgent_alone() -> None:
    shelf = Shelf()
    first, middle, last = shelf.admitted(3)
    shelf.order.grant(shelf.held(first), 1, 0)
    shelf.order.grant(shelf.held(last), 1, 1)
    passed(shelf, w=2)
    assert [one for one in shelf.said if isinstance(one, Revoke)] == [Revoke("w", 2)]
    middle.release()
    passed(shelf, w=1)
    assert (shelf.said, first.worker) == ([], "w"), "the one that is left is more urgent"


def test_the_only_one_that_waits_for_a_version_gives_its_place_too() -> None:
    shelf = Shelf()
    _, parked = shelf.admitted(2)
    shelf.order.grant(shelf.held(parked), 1, 1)
    passed(shelf, w=1)
    assert Revoke("w", 1) in shelf.said


def test_without_a_version_there_is_no_room() -> None:
    told = passed(Shelf(), newest=-1, admit=3, w=9)
    assert (told.room, told.in_work, told.waiting) == (0, 0, 0)


def test_groups_beyond_the_most_at_once_wait_and_are_counted() -> None:
    shelf = Shelf(replace(SETTINGS, max_concurrent=1))
    first, *_ = shelf.admitted(4)
    shelf.held(first)
    told = passed(shelf, w=9)
    assert shelf.said == []
    assert (told.in_work, told.waiting) == (1, 3)


def test_what_is_admitted_counts_against_the_groups_that_are_tried_after_a_pause() -> None:
    shelf = Shelf(replace(SETTINGS, max_staleness=9))
    shelf.admitted(1)
    streak = shelf.book.streak
    for _ in range(FAILED_TO_PAUSE):
        streak.ended(NOW - 60.0, GroupVerdict("rejected", "KeyError"))
    before = streak.admissible(NOW, 0, 100)
    passed(shelf, admit=3, w=9)
    assert sum(isinstance(one, GrantLease) for one in shelf.said) == 1 + 3
    assert (before, streak.admissible(NOW, 0, 100)) == (16, 13)


def test_a_chosen_group_that_nothing_is_left_of_is_made_by_any_version_that_its_step_allows() -> None:
    """Its own bound was 1, the job's is 3 now; it is trained in step 1."""
    settings = replace(SETTINGS, resend_grace_s=0.0)
    shelf = Shelf(settings)
    groups = [shelf.closed(group) for group in shelf.admitted(4)]
    shelf.order.assign(groups[:2])
    shelf.order.assign(groups[2:])
    shelf.order.written = 2
    shelf.book.lost_data()
    shelf.book.reconcile(NOW, View(batches={0: (0, 1), 1: (2, 3)}), lost=True, grace_s=0.0)
    shelf.position.settings = replace(settings, max_staleness=3)
    passed(shelf, w=9)
    grants = [one for one in shelf.said if isinstance(one, GrantLease)]
    assert [(one.group, one.floor, one.max_staleness) for one in grants] == [
        (0, -3, 3), (1, -3, 3), (2, -2, 3), (3, -2, 3),
    ]  # fmt: skip


def test_a_full_byte_budget_admits_nothing() -> None:
    shelf = Shelf(replace(SETTINGS, bytes_per_group=10, budget_bytes=30, max_staleness=9))
    for group in shelf.admitted(3):
        shelf.held(group)
    told = passed(shelf, admit=3, w=9)
    assert (told.room_bytes, shelf.book.next_admission, shelf.said) == (0, 3, [])


def test_a_group_counts_its_time_from_its_first_lease() -> None:
    shelf = Shelf()
    new, known = shelf.admitted(2)
    known.leased_at = NOW - 5.0
    passed(shelf, w=9)
    assert (new.leased_at, known.leased_at) == (NOW, NOW - 5.0)


def test_groups_of_rows_with_long_answers_are_leased_first_and_new_rows_before_them() -> None:
    """Rows 0 to 3, each answered once by answers of 1, 9, 5 and 3 tokens; rows 4 and 5 are new."""
    shelf = Shelf(replace(SETTINGS, max_staleness=9, batch_groups=6))
    shelf.book._place = lambda group: f"rows.jsonl, line {group if group < 4 else (group - 4) % 6}"
    for group, tokens in zip(shelf.admitted(4), (1, 9, 5, 3), strict=True):
        group.done = {i: replace(figures(), tokens=tokens) for i in range(2)}
        group.phase = GroupPhase.CLOSING
        shelf.book.closed(NOW, shelf.book.epoch, group.index, COMPLETE, ())
    passed(shelf, admit=6, w=9)
    grants = [one.group for one in shelf.said if isinstance(one, GrantLease)]
    assert grants == [8, 9, 5, 6, 7, 4]
    assert shelf.book.expected_tokens(4) == 1.0


def test_complete_groups_that_are_due_with_the_next_batch_are_certain_to_be_in_it() -> None:
    shelf = Shelf(replace(SETTINGS, batch_groups=3))
    now, later, open_, again = shelf.admitted(4)
    for group, oldest in ((now, -1), (later, 0), (again, -1)):
        group.done = {i: figures(oldest=oldest) for i in range(2)}
        group.phase = GroupPhase.CLOSING
        shelf.book.closed(NOW, shelf.book.epoch, group.index, COMPLETE, ())
    assert shelf.order.certain(shelf.book.groups) == [now.index, again.index], "due at step 0; the other may be in 1"
    assert shelf.said.count(Notice.TRAINER_NEWS) == 2, "the trainer hears of each at once"
    assert open_.index in shelf.order.waiting
    shelf.book._reopen(again, NOW)
    assert shelf.order.certain(shelf.book.groups) == [now.index], "its samples are lost"


def test_a_lease_tells_the_time_that_its_group_has_left() -> None:
    shelf = Shelf()
    (group,) = shelf.admitted(1)
    group.spent_s = 20.0
    passed(shelf, w=1)
    assert [one.deadline_s for one in shelf.said if isinstance(one, GrantLease)] == [SETTINGS.group_deadline_s - 20.0]
    group.release()
    group.spent_s = SETTINGS.group_deadline_s + 1
    passed(shelf, w=1)
    assert [one.deadline_s for one in shelf.said if isinstance(one, GrantLease)] == [0.0]


def test_what_a_pass_admits_is_in_work_and_takes_room() -> None:
    shelf = Shelf(replace(SETTINGS, max_concurrent=4, max_staleness=3))
    told = passed(shelf, newest=3, admit=3, w=9)
    assert len([one for one in shelf.said if isinstance(one, GrantLease)]) == 3
    assert (told.in_work, told.waiting, told.room) == (3, 0, 1)


def test_a_floor_leaves_time_for_the_place_in_admission_order_and_for_no_other() -> None:
    versions, before = range(6), 3 * SETTINGS.batch_groups
    deadline, admission = (
        Shelf(replace(SETTINGS, admission_order=by_index)).order.floor_for(versions, before)
        for by_index in (False, True)
    )
    assert (deadline, admission) == (0, 3 - SETTINGS.max_staleness)
