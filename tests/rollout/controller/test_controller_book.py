"""The book of groups by itself: bounds of bytes, commits and deadlines, lost epochs, leases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.ledger.gate import WaitingGroup, choose
from areal.ledger.values import COMPLETE
from areal.rollout.contract.values import FailureKind, SampleDone, SampleFailure
from areal.rollout.controller.decisions import (
    AdvanceLedger,
    CloseGroup,
    JournalTombstone,
    ReopenGroup,
    Revoke,
    ScanLedger,
)
from areal.rollout.controller.groups import HELD, GroupPhase, GroupVerdict
from areal.rollout.controller.settings import retry_pause_s
from controller_bench import SETTINGS
from controller_shelf import NOW, Shelf
from hypothesis import given, settings
from hypothesis import strategies as st

# ---- bytes


def test_the_byte_budget_counts_groups_that_have_not_ended() -> None:
    shelf = Shelf(replace(SETTINGS, bytes_per_group=10, budget_bytes=45), tombstones={1: "filtered"})
    book = shelf.book
    assert (book.capacity, book.next_admission, len(book.groups)) == (4, 2, 0)
    groups = shelf.admitted(3)
    assert (len(book.groups), book.holding) == (3, 3)
    for group in groups[:2]:
        shelf.closed(group)
    shelf.took(*groups[:2])
    assert book.holding == 3, "until a checkpoint holds them"
    book.commit(1)
    assert (shelf.order.committed, len(book.groups), book.holding) == (1, 1, 1)


def test_what_does_not_fit_after_a_fall_back_is_made_again_later() -> None:
    shelf = Shelf(replace(SETTINGS, bytes_per_group=10, budget_bytes=40, max_staleness=9))
    groups = [shelf.closed(group) for group in shelf.admitted(6)]
    shelf.book.drop_what_does_not_fit(NOW)
    assert shelf.said == [ReopenGroup(5), ReopenGroup(4)]
    assert [group.phase for group in groups] == [GroupPhase.CLOSED] * 4 + [GroupPhase.OPEN] * 2
    assert (groups[4].done, groups[4].worker, groups[4].due, shelf.book.open) == ({}, "", None, {4, 5})
    assert [len(group.done) for group in groups[:4]] == [2] * 4


def test_a_group_that_is_too_old_for_every_step_is_taken_from_its_worker_and_made_anew() -> None:
    shelf = Shelf()
    first, second, old = shelf.admitted(3)
    shelf.took(shelf.closed(first), shelf.closed(second))
    shelf.order.grant(shelf.held(old), -1, 0)
    shelf.book.choose(NOW)
    assert shelf.said == [Revoke("w", 2), ReopenGroup(2)]
    assert (old.worker, old.due, old.phase) == ("", None, GroupPhase.OPEN)


def test_what_fits_with_room_to_spare_is_not_made_again() -> None:
    shelf = Shelf(replace(SETTINGS, bytes_per_group=10, budget_bytes=100, max_staleness=9))
    groups = [shelf.closed(group) for group in shelf.admitted(3)]
    shelf.book.drop_what_does_not_fit(NOW)
    assert shelf.said == []
    assert [group.phase for group in groups] == [GroupPhase.CLOSED] * 3


def test_what_is_chosen_and_an_open_group_stay_when_bytes_are_short() -> None:
    shelf = Shelf(replace(SETTINGS, bytes_per_group=10, budget_bytes=10))
    first, second, third = shelf.admitted(3)
    shelf.closed(first)
    shelf.closed(second)
    shelf.took(first, second)
    shelf.held(third)
    shelf.book.drop_what_does_not_fit(NOW)
    assert shelf.said == []


# ---- the trainer's position


def test_a_commit_forgets_its_batches_and_raises_the_watermark_over_what_has_ended() -> None:
    shelf = Shelf()
    groups = [shelf.closed(group) for group in shelf.admitted(5)]
    shelf.took(groups[1], groups[2])
    shelf.book.commit(1)
    assert (shelf.order.low, sorted(shelf.book.groups), shelf.said) == (0, [0, 3, 4], [])
    shelf.took(groups[0], groups[4])
    shelf.book.commit(2)
    assert (shelf.order.low, sorted(shelf.book.groups)) == (3, [3])
    assert shelf.said == [AdvanceLedger(3)]
    shelf.book.commit(1)
    assert shelf.order.committed == 2, "never back"


def test_a_fall_back_lowers_the_watermark_to_what_is_made_again() -> None:
    shelf = Shelf()
    groups = [shelf.closed(group) for group in shelf.admitted(6)]
    shelf.took(groups[1], groups[4])
    shelf.took(groups[0], groups[2])
    shelf.book.commit(2)
    assert shelf.order.low == 3
    shelf.position.step = 1
    shelf.book.fell_back(1)
    assert (shelf.order.committed, shelf.order.low, sorted(shelf.book.groups)) == (1, 0, [3, 5])
    assert shelf.order.batches == [(1, 4), (0, 2)], "batches stay"


def test_what_the_trainer_took_loses_its_workers_and_counts_once() -> None:
    shelf = Shelf()
    groups = shelf.admitted(3)
    for group in groups[:2]:
        shelf.closed(group)
    shelf.held(groups[2])
    shelf.order.assign(groups[:2])
    shelf.book.took(NOW, 0)
    assert [(life.group, life.step) for life in shelf.book.tally.lives] == [(0, 0), (1, 0)]
    assert (shelf.said, groups[2].worker) == ([], "w")


def test_live_unsettled_and_waiting_groups_are_those_that_the_trainer_did_not_take() -> None:
    shelf = Shelf()
    groups = shelf.admitted(6)
    for group in (groups[0], groups[2]):
        shelf.closed(group)
    for group in (groups[1], groups[3]):
        shelf.book.end(group, GroupVerdict("rejected"))
    shelf.order.grant(groups[4], 7, 1)
    assert sorted(group.index for group in shelf.book.live()) == [4, 5]
    assert groups[5].by_urgency() < groups[4].by_urgency()
    assert (shelf.book.waiting_complete(), shelf.book.unsettled()) == (2, 2)
    shelf.took(groups[0], groups[2])
    assert shelf.book.waiting_complete() == 0
    shelf.book.journalled(NOW, 3, "rejected")
    assert shelf.book.unsettled() == 2, "the ledger was told, and did not answer"


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


@pytest.mark.parametrize("whole", [0, 1, 2])
def test_at_its_deadline_a_group_closes_with_two_whole_samples_and_ends_with_fewer(whole: int) -> None:
    shelf = Shelf(replace(SETTINGS, group_size=4, group_deadline_s=5.0))
    (group,) = shelf.admitted(1)
    for index in range(whole):
        shelf.book.sample(SampleDone(0, index, float(index), 0, 0, 1))
    group.spent_s = 5.0
    shelf.book.spent(group)
    if whole == 2:
        assert shelf.said == [CloseGroup(0, 0, COMPLETE, (0, 1), True)]
    else:
        (tombstone,) = shelf.said
        assert isinstance(tombstone, JournalTombstone)
        assert (tombstone.reason, tombstone.detail) == ("deadline", f"{whole} samples in 5 s")


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
    shelf.book.spent(group)
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
    shelf.book.journalled(NOW, 0, "rejected")
    assert not shelf.order.waiting
    assert not shelf.order.due
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


# ---- batches

_PHASES = [*[GroupPhase.CLOSED] * 6, *GroupPhase]  # most are complete


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 9), st.sampled_from(_PHASES)), min_size=3, max_size=9),
    st.integers(1, 3),
    st.integers(0, 1),
    st.booleans(),
)
@settings(max_examples=400)
def test_a_batch_is_what_the_law_says_of_all_groups_at_once(
    drawn: list[tuple[int | None, GroupPhase]], batch: int, bound: int, by_index: bool
) -> None:
    job = replace(SETTINGS, batch_groups=batch, max_staleness=bound, admission_order=by_index, max_steps=99)
    shelf = Shelf(job)
    law = []
    for due, phase in drawn:
        group = shelf.book.admit()
        shelf.order.set_due(group, 0 if due is None and phase is GroupPhase.CLOSED else due)
        group.phase = phase
        if phase is not GroupPhase.OPEN:
            shelf.book.open.discard(group.index)
        if group.due is not None or by_index:
            law.append(WaitingGroup(group.index, 999 if group.due is None else group.due, phase is GroupPhase.CLOSED))
    expected = choose(law, 0, batch, by_index=by_index or bound > 0)
    assert shelf.order.pick(shelf.book.groups, shelf.order.waiting - shelf.book.open) == expected


def test_a_group_is_too_old_once_the_step_that_it_was_due_at_is_chosen() -> None:
    shelf = Shelf(replace(SETTINGS, max_staleness=9))
    now, late, open_ended = shelf.admitted(3)
    shelf.order.set_due(now, shelf.order.chosen)
    shelf.order.set_due(late, shelf.order.chosen - 1)
    shelf.order.set_due(open_ended, None)
    assert shelf.order.too_old(shelf.book.groups) == [late]
    shelf.order.set_due(late, shelf.order.chosen + 1)
    assert shelf.order.too_old(shelf.book.groups) == []
