"""The book of groups by itself: bounds of bytes, commits and deadlines, lost epochs, leases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.ledger.values import COMPLETE
from areal.rollout.contract.values import FailureKind, SampleDone, SampleFailure
from areal.rollout.controller.decisions import CloseGroup, JournalTombstone, ReopenGroup, Revoke, ScanLedger
from areal.rollout.controller.groups import HELD, GroupPhase, GroupVerdict
from areal.rollout.controller.settings import retry_pause_s
from controller_bench import SETTINGS
from controller_shelf import NOW, Shelf

# ---- bytes


def test_the_byte_budget_reaches_so_many_groups_beyond_the_commit_tombstones_not_counted() -> None:
    shelf = Shelf(replace(SETTINGS, bytes_per_group=10, budget_bytes=45), tombstones={1: "filtered"})
    book = shelf.book
    assert book.capacity == 4
    assert [index for index in range(8) if book.fits(index)] == [0, 1, 2, 3, 4]
    assert (book.next_admission, book.next_rank, book.reserved) == (2, 1, 1)
    shelf.admitted(3)
    assert (book.next_rank, book.reserved) == (4, 4)
    shelf.position.cursor = 3
    book.commit(3)
    assert (book.committed, book.reserved) == (3, 2)
    assert [index for index in range(3, 9) if book.fits(index)] == [3, 4, 5, 6]


def test_what_does_not_fit_after_a_fall_back_is_made_again_later() -> None:
    shelf = Shelf(replace(SETTINGS, bytes_per_group=10, budget_bytes=40, max_staleness=9))
    groups = [shelf.closed(group) for group in shelf.admitted(6)]
    shelf.book.drop_what_does_not_fit()
    assert shelf.said == [ReopenGroup(4), ReopenGroup(5)]
    assert [group.phase for group in groups] == [GroupPhase.CLOSED] * 4 + [GroupPhase.OPEN] * 2
    assert (groups[4].done, groups[4].worker, shelf.book.open) == ({}, "", {4, 5})
    assert [len(group.done) for group in groups[:4]] == [2] * 4


def test_an_open_group_that_does_not_fit_and_what_the_trainer_took_are_left_as_they_are() -> None:
    shelf = Shelf(replace(SETTINGS, bytes_per_group=10, budget_bytes=10))
    first, second, third = shelf.admitted(3)
    shelf.closed(second)
    shelf.held(third)
    shelf.position.cursor = 2
    shelf.book.drop_what_does_not_fit()
    assert shelf.said == []
    assert (first.phase, second.phase, third.worker) == (GroupPhase.OPEN, GroupPhase.CLOSED, "w")


# ---- commits and cursors


def test_a_commit_forgets_what_lies_below_never_beyond_the_cursor_and_never_back() -> None:
    shelf = Shelf()
    shelf.admitted(6)
    shelf.position.cursor = 4
    shelf.book.commit(6)
    assert (shelf.book.committed, sorted(shelf.book.groups), shelf.book.open) == (4, [4, 5], {4, 5})
    shelf.book.commit(2)
    assert shelf.book.committed == 4


def test_a_fall_back_moves_commit_and_cursor_together_and_keeps_what_lies_above() -> None:
    shelf = Shelf()
    shelf.admitted(6)
    shelf.position.cursor = 4
    shelf.book.commit(4)
    shelf.position.cursor = 2
    shelf.book.fell_back()
    assert (shelf.book.committed, shelf.book.next_admission) == (2, 6)
    assert sorted(shelf.book.groups) == [4, 5], "2 and 3 were forgotten: a scan makes them anew"
    shelf.position.cursor = 5
    shelf.book.fell_back()
    assert (shelf.book.committed, sorted(shelf.book.groups), shelf.book.open) == (5, [5], {5})
    shelf.position.cursor = 9
    shelf.book.fell_back()
    assert (shelf.book.next_admission, shelf.book.groups) == (9, {})


def test_what_the_trainer_took_loses_its_workers_and_counts_once() -> None:
    shelf = Shelf()
    groups = shelf.admitted(5)
    for group in (*groups[:2], groups[3]):
        shelf.closed(group)
    shelf.held(groups[2])
    shelf.held(groups[4])
    shelf.position.cursor = 4
    shelf.book.taken(NOW, before=1)
    assert [(life.group, life.step) for life in shelf.book.tally.lives] == [(1, 0), (3, 1)]
    assert shelf.said == [Revoke("w", 2)]
    assert (groups[2].worker, groups[4].worker) == ("", "w")
    shelf.position.cursor = 9
    shelf.book.taken(NOW, before=4)
    assert shelf.book.next_admission == 9


def test_live_unsettled_and_waiting_groups_are_those_at_or_above_the_cursor() -> None:
    shelf = Shelf()
    groups = shelf.admitted(6)
    for group in (groups[0], groups[2]):
        shelf.closed(group)
    for group in (groups[1], groups[3]):
        shelf.book.end(group, GroupVerdict("rejected"))
    assert [group.index for group in shelf.book.live()] == [4, 5]
    assert (shelf.book.waiting_complete(), shelf.book.unsettled()) == (2, 2)
    shelf.position.cursor = 2
    assert (shelf.book.waiting_complete(), shelf.book.unsettled()) == (1, 1)
    shelf.book.journalled(NOW, 3, "rejected")
    assert shelf.book.unsettled() == 1, "the ledger was told, and did not answer"
    shelf.position.cursor = 5
    assert [group.index for group in shelf.book.live()] == [5]


def test_a_verdict_below_the_cursor_is_held_back() -> None:
    shelf = Shelf()
    group = shelf.held(shelf.admitted(1)[0])
    shelf.position.cursor = 1
    shelf.book.end(group, GroupVerdict("rejected", "too late"))
    assert (shelf.said, group.phase, group.worker) == ([], GroupPhase.OPEN, "w")
    assert group.verdict == GroupVerdict("rejected", "too late")
    shelf.position.cursor = 0
    shelf.book.end(group, group.verdict)
    assert shelf.said == [Revoke("w", 0), JournalTombstone(0, "rejected", "too late")]
    assert (group.phase, shelf.book.open) == (GroupPhase.DECIDED, set())


# ---- samples and deadlines


def test_a_sample_counts_once_and_only_of_an_open_group_and_of_its_size() -> None:
    shelf = Shelf()
    (group,) = shelf.admitted(1)
    shelf.held(group)
    group.infra_tries = 3
    shelf.book.sample(SampleDone(7, 0, 1.0, 0, 0, 1))
    shelf.book.sample(SampleDone(0, 2, 1.0, 0, 0, 1))
    assert (group.done, group.infra_tries) == ({}, 3)
    shelf.book.sample(SampleDone(0, 1, 1.0, 0, 0, 1))
    shelf.book.sample(SampleDone(0, 1, 0.0, 0, 0, 1))
    assert ({index: done.reward for index, done in group.done.items()}, group.working) == ({1: 1.0}, {0})
    assert (group.infra_tries, shelf.book.tally.ends["complete"]) == (0, 1)
    shelf.book.sample(SampleDone(0, 0, 0.0, 0, 0, 1))
    assert shelf.said == [CloseGroup(0, 0, COMPLETE, (0, 1))], "nothing was in work any more: nothing to revoke"
    shelf.book.sample(SampleDone(0, 0, 5.0, 0, 0, 1))
    assert shelf.book.tally.ends["complete"] == 2


def test_a_group_that_the_trainer_took_is_not_closed_by_a_late_sample() -> None:
    shelf = Shelf()
    shelf.admitted(1)
    shelf.position.cursor = 1
    for index in range(2):
        shelf.book.sample(SampleDone(0, index, float(index), 0, 0, 1))
    assert shelf.said == []


@pytest.mark.parametrize(("seconds", "ends"), [(4.9, False), (5.0, True), (5.1, True)])
@pytest.mark.parametrize("whole", [0, 1, 2])
def test_at_its_deadline_a_group_closes_with_two_whole_samples_and_ends_with_fewer(
    seconds: float, ends: bool, whole: int
) -> None:
    shelf = Shelf(replace(SETTINGS, group_size=4, group_deadline_s=5.0))
    (group,) = shelf.admitted(1)
    for index in range(whole):
        shelf.book.sample(SampleDone(0, index, float(index), 0, 0, 1))
    shelf.book.spend(group, 2.0)
    shelf.book.spend(group, seconds - 2.0)
    if not ends:
        assert (shelf.said, group.phase) == ([], GroupPhase.OPEN)
    elif whole == 2:
        assert shelf.said == [CloseGroup(0, 0, COMPLETE, (0, 1), True)]
    else:
        (tombstone,) = shelf.said
        assert isinstance(tombstone, JournalTombstone)
        assert (tombstone.reason, tombstone.detail) == ("deadline", f"{whole} samples in {seconds:.0f} s")


def failed(index: int = 0, kind: FailureKind = FailureKind.INFRA) -> SampleFailure:
    return SampleFailure(0, index, 1, kind, "gone")


def test_a_group_is_given_up_for_infrastructure_at_its_last_try_once_patience_is_over() -> None:
    shelf = Shelf(replace(SETTINGS, infra_tries=3, infra_patience_s=30.0))
    (group,) = shelf.admitted(1)
    for now in (NOW, NOW + 40.0):
        shelf.book.failure(now, "w", failed())
    assert (group.phase, group.infra_tries, group.infra_since) == (GroupPhase.OPEN, 2, NOW)
    shelf.book.failure(NOW + 41.0, "w", failed())
    assert shelf.said == [JournalTombstone(0, "infra", failed().detail)]


@pytest.mark.parametrize(("seconds", "ends"), [(29.9, False), (30.0, True)])
def test_many_tries_within_patience_end_no_group(seconds: float, ends: bool) -> None:
    shelf = Shelf(replace(SETTINGS, infra_tries=3, infra_patience_s=30.0))
    (group,) = shelf.admitted(1)
    for now in (NOW, NOW + 1.0, NOW + 2.0, NOW + seconds):
        shelf.book.failure(now, "w", failed())
    assert (group.phase is GroupPhase.DECIDED) is ends


def test_a_failed_sample_is_tried_again_later_where_it_was_and_after_some_tries_anywhere() -> None:
    shelf = Shelf()
    (group,) = shelf.admitted(1)
    shelf.held(group)
    shelf.book.failure(NOW, "w", failed(0))
    assert (group.worker, group.working, group.tried_by) == ("w", {1}, "w"), "the other sample is still in work"
    assert group.not_before == NOW + retry_pause_s(0)
    shelf.book.failure(NOW, "w", failed(1))
    assert (group.worker, group.working, group.not_before) == ("", set(), NOW + retry_pause_s(1))
    shelf.book.failure(NOW, "w", failed(0))
    assert group.tried_by == "w"
    shelf.book.failure(NOW, "w", failed(0))
    assert (group.tried_by, group.not_before) == ("", NOW + retry_pause_s(3))


def test_a_strangers_failure_counts_only_of_a_group_that_nobody_holds() -> None:
    shelf = Shelf()
    group = shelf.held(shelf.admitted(1)[0], "w")
    shelf.book.failure(NOW, "v", failed(kind=FailureKind.EXCEPTION))
    assert (shelf.said, group.phase, not shelf.book.tally.ends) == ([], GroupPhase.OPEN, True)
    group.release()
    shelf.book.failure(NOW, "v", failed(kind=FailureKind.EXCEPTION))
    (tombstone,) = shelf.said
    assert isinstance(tombstone, JournalTombstone)
    assert tombstone.reason == "rejected"
    assert group.verdict is not None
    assert not group.verdict.chosen
    shelf.book.failure(NOW, "v", failed(kind=FailureKind.EXCEPTION))
    assert shelf.said == [tombstone], "it has ended"


def test_a_group_that_the_workflow_turned_down_did_not_fail() -> None:
    shelf = Shelf()
    (group,) = shelf.admitted(1)
    shelf.book.failure(NOW, "w", failed(kind=FailureKind.REJECTED))
    assert group.verdict is not None
    assert group.verdict.chosen


# ---- epochs


def test_an_answer_of_a_lost_epoch_changes_nothing() -> None:
    shelf = Shelf()
    (group,) = shelf.admitted(1)
    for index in range(2):
        shelf.book.sample(SampleDone(0, index, float(index), 0, 0, 1))
    shelf.book.lost_data()
    shelf.book.closed(NOW, 0, 0, COMPLETE, ())
    assert (group.phase, shelf.book.epoch) == (GroupPhase.CLOSING, 1)
    shelf.book.closed(NOW, 1, 7, COMPLETE, ())
    shelf.book.closed(NOW, 1, 0, COMPLETE, ())
    assert (group.phase, group.closed_at) == (GroupPhase.CLOSED, NOW)
    assert shelf.book.tally.closed["complete"] == 1
    shelf.book.closed(NOW, 1, 0, COMPLETE, ())
    assert shelf.book.tally.closed["complete"] == 1, "answered twice"


def test_scans_are_numbered_and_name_the_epoch_they_ask_about() -> None:
    shelf = Shelf()
    assert shelf.book.scan() == 1
    shelf.book.lost_data()
    assert shelf.book.scan() == 2
    assert shelf.said == [ScanLedger(1, 0), ScanLedger(2, 1)]


def test_samples_that_the_ledger_misses_at_a_close_are_made_again_after_a_grace() -> None:
    shelf = Shelf(replace(SETTINGS, group_size=3, group_deadline_s=5.0, resend_grace_s=2.5))
    (group,) = shelf.admitted(1)
    for index in range(2):
        shelf.book.sample(SampleDone(0, index, float(index), 0, 0, 1))
    shelf.held(group, working=(2,))
    shelf.book.spend(group, 5.0)
    assert group.short
    shelf.book.closed(NOW, 0, 0, "", (1, 2))
    assert (group.phase, group.short, sorted(group.done), group.not_before) == (GroupPhase.OPEN, False, [0], NOW + 2.5)
    assert (group.worker, group.working, shelf.book.open) == ("", set(), {0})


def test_a_group_that_the_ledger_closed_otherwise_is_journalled_so() -> None:
    shelf = Shelf()
    (group,) = shelf.admitted(1)
    for index in range(2):
        shelf.book.sample(SampleDone(0, index, float(index), 0, 0, 1))
    shelf.said.clear()
    shelf.book.closed(NOW, 0, 0, "poison", ())
    assert shelf.said == [JournalTombstone(0, "poison", "found in the ledger")]
    assert (group.phase, shelf.book.tally.closed["complete"]) == (GroupPhase.DECIDED, 0)


@pytest.mark.parametrize("outcome", [COMPLETE, "filtered"])
def test_a_tombstone_that_the_ledger_holds_complete_is_opened_and_closed_again(outcome: str) -> None:
    shelf = Shelf()
    (group,) = shelf.admitted(1)
    shelf.book.end(group, GroupVerdict("filtered"))
    shelf.book.journalled(NOW, 0, "filtered")
    assert shelf.said[-1] == CloseGroup(0, 0, "filtered")
    shelf.said.clear()
    shelf.book.closed(NOW, 0, 0, outcome, ())
    again = [ReopenGroup(0), CloseGroup(0, 0, "filtered")]
    assert (shelf.said, 0 in shelf.book.groups) == ((again, True) if outcome == COMPLETE else ([], False))


def test_a_tombstone_counts_once_however_often_the_journal_tells_it() -> None:
    shelf = Shelf()
    (group,) = shelf.admitted(1)
    shelf.book.end(group, GroupVerdict("rejected", "KeyError"))
    shelf.book.journalled(NOW, 0, "rejected")
    assert shelf.book.ranks_changed
    shelf.book.ranks_changed = False
    shelf.book.journalled(NOW, 0, "rejected")
    assert not shelf.book.ranks_changed
    assert (shelf.book.tally.closed["tombstoned"], group.phase) == (1, GroupPhase.CLOSING)
    shelf.book.journalled(NOW, 5, "ended")
    assert shelf.said[-1] == CloseGroup(0, 5, "ended"), "of a group that another controller knew"


# ---- leases


def test_a_lost_worker_loses_its_own_groups_but_those_it_keeps() -> None:
    shelf = Shelf()
    groups = shelf.admitted(4)
    for group, worker in zip(groups, ("w", "v", "w", "w"), strict=True):
        shelf.held(group, worker, working=(1,))
    assert shelf.book.orphan("w", keep=(2,)) == 2
    assert shelf.said == [Revoke("w", 0), Revoke("w", 3)]
    assert [(group.worker, group.not_before == HELD) for group in groups] == [
        ("", True), ("v", False), ("w", False), ("", True),
    ]  # fmt: skip
    assert shelf.book.tally.ends["infra"] == 2
    assert shelf.book.orphan("w", keep=(2,)) == 0
    shelf.said.clear()
    assert shelf.book.orphan("v", revoke=False) == 1
    assert (shelf.said, groups[1].worker) == ([], "")


def test_a_group_is_given_back_by_its_holder_alone_and_waits_a_little() -> None:
    shelf = Shelf()
    group = shelf.held(shelf.admitted(1)[0])
    shelf.book.given_back(NOW, "v", 0)
    shelf.book.given_back(NOW, "w", 5)
    assert group.worker == "w"
    group.not_before = NOW + 50.0
    shelf.book.given_back(NOW, "w", 0)
    assert (group.worker, group.not_before) == ("", NOW + 50.0)
    shelf.held(group)
    group.not_before = 0.0
    shelf.book.given_back(NOW, "w", 0)
    assert group.not_before == NOW + retry_pause_s(0)


def test_nobody_works_on_groups_below_those_the_ledger_takes() -> None:
    shelf = Shelf()
    groups = [shelf.held(group) for group in shelf.admitted(3)]
    shelf.closed(groups[0])
    shelf.book.refuse_below(2)
    assert (shelf.said, shelf.book.refused_below) == ([Revoke("w", 1)], 2)
    assert [group.worker for group in groups] == ["", "", "w"]


def test_who_works_on_nothing_needs_no_revoke() -> None:
    shelf = Shelf()
    group = shelf.held(shelf.admitted(1)[0], working=())
    shelf.book.refuse_below(1)
    assert (shelf.said, group.worker) == ([], "")
