"""Who may be adopted, and what a group becomes when it is compared with the ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.ledger.values import COMPLETE
from areal.rollout.contract.values import GroupInHand, SampleDone
from areal.rollout.controller.decisions import AdvanceLedger, CloseGroup, JournalTombstone, ReopenGroup, Revoke
from areal.rollout.controller.groups import HELD, GroupPhase, GroupVerdict
from controller_bench import SETTINGS
from controller_shelf import NOW, Shelf, View, figures

# ---- adoption


def adopted(shelf: Shelf, group: int, worker: str = "w", **held: object) -> bool:
    values = {"attempt": 3, "indices": (0, 1), "max_staleness": 4, "has_tokens": True, **held}
    return shelf.book.adopt(NOW, worker, GroupInHand(group, **values))  # type: ignore[arg-type]


def test_who_may_be_adopted() -> None:
    shelf = Shelf(tombstones={1: "filtered"})
    shelf.admitted(4)  # 2, 3, 4, 5
    shelf.position.cursor = 3
    assert not adopted(shelf, 2), "below the cursor"
    assert not adopted(shelf, 1), "tombstoned"
    assert adopted(shelf, 3), "at the cursor"
    assert adopted(shelf, 3), "says so again"
    assert not adopted(shelf, 3, "v"), "another worker's"
    shelf.closed(shelf.book.groups[4])
    assert not adopted(shelf, 4), "complete"
    shelf.position.cursor = 0
    assert not adopted(shelf, 1), "tombstoned, above the cursor"
    assert shelf.book.groups[3].worker == "w"


def test_what_is_adopted_keeps_its_eta_and_attempt_and_makes_what_is_missing() -> None:
    shelf = Shelf(replace(SETTINGS, max_staleness=1))
    (group,) = shelf.admitted(1)
    shelf.book.sample(SampleDone(0, 1, 1.0, 0, 0, 4))
    group.not_before = NOW + 9.0
    assert adopted(shelf, 0)
    assert (group.worker, group.working, group.attempt, group.staleness_bound) == ("w", {0}, 3, 4)
    assert (group.has_tokens, group.told_floor, group.not_before) == (True, -4, NOW)
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
    shelf.position.fence = 7
    assert compared(shelf, View(closed={1: COMPLETE}, samples={1: {0: figures()}, 3: {1: figures()}})) == []
    assert shelf.book.next_admission == 4
    assert shelf.said == [AdvanceLedger(0, 7)]
    assert [shelf.book.groups[index].phase for index in range(4)] == [
        GroupPhase.OPEN, GroupPhase.CLOSED, GroupPhase.OPEN, GroupPhase.OPEN,
    ]  # fmt: skip
    assert [shelf.book.groups[index].not_before for index in (0, 2, 3)] == [NOW + 2.0] * 3
    assert (sorted(shelf.book.groups[3].done), shelf.book.open) == ([1], {0, 2, 3})
    shelf.position.cursor = 6
    compared(shelf, View())
    assert shelf.book.next_admission == 6


def test_tombstones_that_the_ledger_has_otherwise_are_closed_again() -> None:
    shelf = Shelf(tombstones={0: "filtered", 1: "ended", 2: "rejected"})
    assert compared(shelf, View(closed={0: "filtered", 1: COMPLETE}, samples={1: {0: figures()}})) == [1, 2]
    assert shelf.said == [CloseGroup(0, 1, "ended"), CloseGroup(0, 2, "rejected"), AdvanceLedger(0, 0)]
    shelf.position.cursor = 2
    assert compared(shelf, View()) == [2], "what lies below the cursor is nobody's business"


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
    assert shelf.said == [AdvanceLedger(0, 0)]
    shelf.book.lost_data()
    compared(shelf, view, lost=True)
    assert shelf.said == [CloseGroup(1, 0, COMPLETE, (0, 1)), AdvanceLedger(0, 0)]
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


def test_a_verdict_that_was_held_back_counts_after_a_fall_back_and_a_full_group_closes() -> None:
    shelf = Shelf()
    first, second = shelf.admitted(2)
    shelf.position.cursor = 1
    shelf.book.end(first, GroupVerdict("rejected", "late"))
    shelf.position.cursor = 0
    compared(shelf, View(samples={1: {0: figures(0.0), 1: figures(1.0)}}))
    assert shelf.said == [
        JournalTombstone(0, "rejected", "late"), CloseGroup(0, 1, COMPLETE, (0, 1)), AdvanceLedger(0, 0),
    ]  # fmt: skip
    assert second.phase is GroupPhase.CLOSING


def test_ending_what_lies_beyond_a_rank_spares_what_is_complete_unless_it_is_told() -> None:
    shelf = Shelf(tombstones={0: "filtered"})
    groups = shelf.admitted(4)  # 1 to 4, ranks 0 to 3
    shelf.closed(groups[2])
    verdict = GroupVerdict("ended")
    shelf.book.end_beyond(2, verdict, complete=False)
    assert shelf.said == [JournalTombstone(4, "ended", "")]
    shelf.said.clear()
    shelf.position.cursor = 2
    shelf.book.end_beyond(0, verdict, complete=True)
    assert shelf.said == [JournalTombstone(2, "ended", ""), JournalTombstone(3, "ended", "")]
