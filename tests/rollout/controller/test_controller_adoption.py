"""Who may be adopted, and what a group becomes when it is compared with the ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.ledger.values import COMPLETE
from areal.rollout.contract.values import GroupInHand, SampleDone
from areal.rollout.controller.decisions import (
    AdvanceLedger,
    AssignBatch,
    CloseGroup,
    JournalTombstone,
    ReopenGroup,
    Revoke,
)
from areal.rollout.controller.groups import HELD, GroupPhase, GroupVerdict
from controller_bench import SETTINGS
from controller_shelf import NOW, Shelf, View, figures

# ---- adoption


def adopted(shelf: Shelf, group: int, worker: str = "w", **held: object) -> bool:
    values = {"attempt": 3, "indices": (0, 1), "max_staleness": 4, "has_tokens": True, "floor": 0, **held}
    return shelf.book.adopt(NOW, worker, GroupInHand(group, **values))  # type: ignore[arg-type]


def test_who_may_be_adopted() -> None:
    shelf = Shelf(tombstones={1: "filtered"})
    groups = shelf.admitted(5)  # 2 to 6
    for group in groups[:2]:
        shelf.closed(group)
    shelf.took(*groups[:2])
    assert not adopted(shelf, 2), "the trainer has it"
    assert not adopted(shelf, 1), "tombstoned"
    assert adopted(shelf, 4)
    assert adopted(shelf, 4), "says so again"
    assert not adopted(shelf, 4, "v"), "another worker's"
    shelf.closed(shelf.book.groups[5])
    assert not adopted(shelf, 5), "complete"
    assert not adopted(shelf, 6, floor=-5), "too old when its turn comes"
    assert shelf.book.groups[4].worker == "w"


def test_what_is_adopted_keeps_its_floor_and_attempt_and_makes_what_is_missing() -> None:
    shelf = Shelf(replace(SETTINGS, max_staleness=1))
    assert adopted(shelf, 0, indices=(0,), floor=3)
    group = shelf.book.groups[0]
    assert (group.floor, group.staleness_bound, group.due, shelf.order.due) == (3, 4, 7, {7: 1})
    shelf.book.sample(SampleDone(0, 1, 1.0, 3, 3, 4))
    group.not_before = NOW + 9.0
    assert adopted(shelf, 0)
    assert (group.worker, group.working, group.attempt, group.not_before) == ("w", {0}, 3, NOW)
    group.not_before = NOW - 5.0
    assert adopted(shelf, 0, attempt=1)
    assert (group.attempt, group.not_before) == (3, NOW - 5.0)
    group.not_before = HELD
    assert adopted(shelf, 0)
    assert group.not_before == NOW


def test_groups_up_to_an_adopted_one_exist_and_wait_for_who_may_hold_them() -> None:
    shelf = Shelf(replace(SETTINGS, adopt_grace_s=2.0))
    assert adopted(shelf, 3)
    assert (sorted(shelf.book.groups), shelf.book.next_admission) == ([0, 1, 2, 3], 4)
    assert [shelf.book.groups[index].not_before for index in range(4)] == [NOW + 2.0] * 3 + [NOW]
    assert adopted(shelf, 2, "v")


@pytest.mark.parametrize(("most", "bound"), [(100, 1024), (2000, 2000)])
def test_so_many_unknown_groups_are_believed_in_all(most: int, bound: int) -> None:
    shelf = Shelf(replace(SETTINGS, max_concurrent=most))
    assert not adopted(shelf, bound)
    assert adopted(shelf, bound - 2)
    assert shelf.book.next_admission == bound - 1
    assert adopted(shelf, bound - 1)
    assert not adopted(shelf, bound), "claims add up"
    assert adopted(shelf, 5, "v")
    shelf.admitted(1)
    assert adopted(shelf, bound, "v"), "a group that exists is no claim"


# ---- comparing with the ledger


def compared(shelf: Shelf, view: View, *, lost: bool = False, grace_s: float = 2.0) -> list[int]:
    shelf.said.clear()
    return shelf.book.reconcile(NOW, view, lost=lost, grace_s=grace_s)


def test_what_the_ledger_holds_beyond_what_is_known_was_admitted() -> None:
    shelf = Shelf()
    assert compared(shelf, View(closed={1: COMPLETE}, samples={1: {0: figures()}, 3: {1: figures()}})) == []
    assert shelf.book.next_admission == 4
    assert shelf.said == []
    assert [shelf.book.groups[index].phase for index in range(4)] == [
        GroupPhase.OPEN, GroupPhase.CLOSED, GroupPhase.OPEN, GroupPhase.OPEN,
    ]  # fmt: skip
    assert [shelf.book.groups[index].not_before for index in (0, 2, 3)] == [NOW + 2.0] * 3
    assert (sorted(shelf.book.groups[3].done), shelf.book.open) == ([1], {0, 2, 3})
    assert shelf.order.due == {1: 2}, "what others granted is due by the age of its samples"


def test_tombstones_that_the_ledger_has_otherwise_are_closed_again() -> None:
    shelf = Shelf(tombstones={1: "filtered", 2: "ended", 3: "rejected"})
    assert compared(shelf, View(closed={1: "filtered", 2: COMPLETE}, samples={2: {0: figures()}})) == [2, 3]
    assert shelf.said == [CloseGroup(0, 2, "ended"), CloseGroup(0, 3, "rejected")]
    shelf.order.low = 3
    assert compared(shelf, View()) == [3], "what lies below the watermark has ended"
    assert shelf.said[0] == AdvanceLedger(3)


def test_batches_that_the_ledger_lacks_or_freed_too_early_are_told_again() -> None:
    shelf = Shelf(batches=[(0, 1), (2, 4), (3, 5)])
    shelf.book.fell_back(1)
    assert shelf.order.low == 2
    compared(shelf, View(committed=1, low=5, batches={2: (3, 5)}, closed={5: "trained"}))
    assert shelf.said[:2] == [AssignBatch(1, (2, 4)), AssignBatch(2, (3, 5))]
    assert sorted(shelf.book.open) == [2, 3, 4, 5]
    assert [shelf.book.groups[group].due for group in (2, 3, 4, 5)] == [1, 2, 1, 2]
    assert not shelf.order.waiting


def test_a_batch_told_again_frees_no_less_than_before() -> None:
    """Assigning it moves the ledger's watermark back to its first group."""
    shelf = Shelf(tombstones={1: "filtered"}, batches=[(0, 3)])
    shelf.admitted(4)
    shelf.book.commit(1)
    assert shelf.order.low == 2
    compared(shelf, View(low=2, closed={1: "filtered"}))
    assert shelf.said[:2] == [AssignBatch(0, (0, 3)), AdvanceLedger(2)]


def test_a_group_of_two_bounds_is_due_by_its_oldest_sample_under_the_tighter_one() -> None:
    shelf = Shelf(replace(SETTINGS, group_size=3))
    compared(shelf, View(samples={0: {0: figures(oldest=3, eta=1), 1: figures(oldest=0, eta=5)}}))
    group = shelf.book.groups[0]
    assert (group.due, group.floor, group.staleness_bound) == (4, 3, 1)


def test_a_tombstone_that_the_ledger_confirms_is_forgotten() -> None:
    shelf = Shelf()
    (group,) = shelf.admitted(1)
    shelf.book.end(group, GroupVerdict("filtered"))
    shelf.book.journalled(NOW, 0, "filtered")
    assert compared(shelf, View(closed={0: "filtered"})) == []
    assert shelf.book.groups == {}


def test_a_group_that_the_ledger_holds_complete_without_samples_is_opened_again() -> None:
    shelf = Shelf()
    group = shelf.closed(shelf.admitted(1)[0])
    compared(shelf, View(closed={0: COMPLETE}))
    assert shelf.said[0] == ReopenGroup(0)
    assert (group.phase, group.done, group.not_before) == (GroupPhase.OPEN, {}, NOW + SETTINGS.resend_grace_s)


def test_what_the_trainer_took_is_not_made_again_though_the_ledger_lost_it() -> None:
    shelf = Shelf()
    groups = [shelf.closed(group) for group in shelf.admitted(2)]
    shelf.took(*groups)
    compared(shelf, View(batches={0: (0, 1)}), lost=True)
    assert (shelf.said, shelf.book.open) == ([], set())
    assert [group.phase for group in groups] == [GroupPhase.CLOSED] * 2


def test_a_tombstone_of_the_ledger_alone_is_journalled() -> None:
    shelf = Shelf()
    compared(shelf, View(closed={0: "poison"}))
    assert JournalTombstone(0, "poison", "found in the ledger") in shelf.said


def test_a_complete_group_of_the_ledger_is_complete_whoever_works_on_it() -> None:
    shelf = Shelf()
    first, second = shelf.admitted(2)
    shelf.held(first)
    first.verdict = GroupVerdict("rejected")
    shelf.book.end(second, GroupVerdict("filtered"))
    stored = {0: figures(0.5), 1: figures(1.0)}
    compared(shelf, View(closed={0: COMPLETE, 1: COMPLETE}, samples={0: stored, 1: stored}))
    assert Revoke("w", 0) in shelf.said
    assert (first.phase, first.done, first.verdict, first.worker) == (GroupPhase.CLOSED, stored, None, "")
    assert second.phase is GroupPhase.DECIDED, "its tombstone is on its way to the journal"
    assert shelf.book.open == set()


def test_a_close_on_its_way_is_asked_again_only_when_the_ledger_lost_data() -> None:
    shelf = Shelf()
    (group,) = shelf.admitted(1)
    for index in range(2):
        shelf.book.sample(SampleDone(0, index, float(index), 0, 0, 1))
    view = View(samples={0: {0: figures(), 1: figures(1.0)}})
    compared(shelf, view)
    assert shelf.said == []
    shelf.book.lost_data()
    compared(shelf, view, lost=True)
    assert shelf.said == [CloseGroup(1, 0, COMPLETE, (0, 1))]
    assert group.phase is GroupPhase.CLOSING


@pytest.mark.parametrize(("lost", "kept"), [(False, [0, 1]), (True, [1])])
def test_what_an_open_group_has_is_what_the_ledger_has_after_a_loss_and_more_without_one(
    lost: bool, kept: list[int]
) -> None:
    shelf = Shelf(replace(SETTINGS, group_size=3))
    (group,) = shelf.admitted(1)
    shelf.book.sample(SampleDone(0, 0, 1.0, 0, 0, 1))
    shelf.held(group, working=(1, 2))
    group.not_before = HELD
    compared(shelf, View(samples={0: {1: figures()}}), lost=lost)
    assert (sorted(group.done), group.working, group.not_before) == (kept, {2}, NOW)
    group.not_before = NOW + 8.0
    compared(shelf, View(samples={0: {1: figures()}}), lost=lost)
    assert group.not_before == NOW + 8.0


def test_a_verdict_that_was_held_back_counts_after_a_fall_back() -> None:
    shelf = Shelf()
    first, second = (shelf.closed(group) for group in shelf.admitted(2))
    shelf.took(first, second)
    shelf.book.end(first, GroupVerdict("rejected", "late"))
    assert (shelf.said, first.phase) == ([], GroupPhase.CLOSED)
    shelf.position.step = 0
    shelf.book.fell_back(0)
    compared(shelf, View(batches={0: (0, 1)}, samples={1: {0: figures(0.0), 1: figures(1.0)}}))
    assert shelf.said == [JournalTombstone(0, "rejected", "late"), CloseGroup(0, 1, COMPLETE, (0, 1))]
    assert second.phase is GroupPhase.CLOSING


def test_ending_what_is_too_much_takes_the_least_urgent_first_complete_or_not() -> None:
    shelf = Shelf(tombstones={0: "filtered"})
    groups = shelf.admitted(4)  # 1 to 4
    shelf.order.grant(groups[0], 5, 1)
    shelf.closed(groups[2])
    shelf.book.end_beyond(2, GroupVerdict("ended"))
    assert shelf.said == [JournalTombstone(4, "ended", ""), JournalTombstone(1, "ended", "")]
    shelf.said.clear()
    shelf.book.end_beyond(2, GroupVerdict("ended"))
    assert shelf.said == [], "they are on their way"
    shelf.book.end_all(GroupVerdict("ended"))
    assert [entry.group for entry in shelf.said if isinstance(entry, JournalTombstone)] == [2, 3]
