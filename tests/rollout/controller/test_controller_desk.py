"""The trainer's desk at its bounds: who is heard, what a commit and a fall back move, which proposals count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.errors import BugError, ConfigError, FencedError, InfraError
from areal.rollout.controller.decisions import CallAnswer, CloseGroup, JournalTombstone, JournalTrainer, ScanLedger
from areal.rollout.controller.groups import GroupVerdict
from areal.rollout.controller.inputs import (
    AdvanceTrainer,
    AttachTrainer,
    EntryJournalled,
    LedgerRestarted,
    LedgerScanned,
    ProposeTombstone,
    PublishWeights,
    SetHotFields,
    TrainerBeat,
    TrainerReport,
)
from areal.rollout.controller.settings import MOST_CONCURRENT, MOST_STALENESS, MOST_STEPS
from controller_bench import SETTINGS, Bench, leased, started, weights


def error_of(answer: CallAnswer | None) -> type[Exception] | None:
    assert answer is not None
    assert answer.accepted is (answer.error is None)
    return type(answer.error) if answer.error else None


def with_trainer(**settings: object) -> Bench:
    bench = started(replace(SETTINGS, **settings))  # type: ignore[arg-type]
    bench.ask(AttachTrainer(3, 0))
    return bench


def test_an_advance_counts_of_the_fence_that_attached_alone() -> None:
    bench = with_trainer()
    bench.done(0)
    bench.done(1)
    assert error_of(bench.ask(AdvanceTrainer(2, 0, 2))) is FencedError
    assert error_of(bench.ask(AdvanceTrainer(4, 0, 2))) is InfraError
    assert (bench.core.desk.step, bench.core.book.order.chosen) == (0, 1)
    assert error_of(bench.ask(AdvanceTrainer(3, 0, 2))) is None
    assert bench.core.desk.step == 1


def test_an_advance_told_again_is_answered_and_moves_nothing() -> None:
    bench = with_trainer(max_steps=1)
    bench.done(0)
    bench.done(1)
    for _ in range(2):
        assert error_of(bench.ask(AdvanceTrainer(3, 0, 2))) is None
    assert error_of(bench.ask(AdvanceTrainer(3, 1, 2))) is InfraError, "no such batch is chosen"
    assert bench.core.desk.step == 1


@pytest.mark.parametrize(("step", "groups"), [(0, 1), (0, 3), (1, 2)])
def test_an_advance_that_is_not_the_batch_chosen_is_refused(step: int, groups: int) -> None:
    bench = with_trainer()
    for group in range(3):
        bench.done(group)
    assert error_of(bench.ask(AdvanceTrainer(3, step, groups))) is InfraError
    assert bench.core.desk.step == 0


def test_a_batch_that_is_not_in_the_journal_is_refused() -> None:
    bench = with_trainer()
    bench.journalling = False
    bench.done(0)
    bench.done(1)
    assert bench.core.book.order.batches == [(0, 1)]
    assert error_of(bench.ask(AdvanceTrainer(3, 0, 2))) is InfraError
    bench.write()
    bench.run()
    assert bench.ledger.batches == {0: (0, 1)}
    assert error_of(bench.ask(AdvanceTrainer(3, 0, 2))) is None


def test_a_batch_of_which_a_group_ends_is_taken_again_without_it() -> None:
    bench = with_trainer()
    bench.done(0)
    bench.done(1)
    bench.journalling = False
    assert bench.ask(ProposeTombstone(3, 1, "poison", "")) is None
    assert error_of(bench.ask(AdvanceTrainer(3, 0, 2))) is InfraError
    bench.write()
    bench.run()
    assert error_of(bench.ask(AdvanceTrainer(3, 0, 2))) is InfraError
    assert [(taken.group, taken.outcome) for taken in bench.ledger.take(3, 0)] == [(0, "complete"), (1, "poison")]
    assert error_of(bench.ask(AdvanceTrainer(3, 0, 1))) is None


def test_a_checkpoint_beyond_what_is_chosen_is_a_bug_and_moves_nothing() -> None:
    bench = with_trainer()
    bench.done(0)
    bench.done(1)
    assert error_of(bench.ask(AttachTrainer(4, 2))) is BugError
    assert bench.core.desk.fence == 3
    assert error_of(bench.ask(AttachTrainer(2, 0))) is FencedError
    assert error_of(bench.ask(AttachTrainer(3, 0))) is None, "the same trainer asks again"
    assert error_of(bench.ask(AttachTrainer(4, 1))) is None
    order = bench.core.book.order
    assert (bench.core.desk.fence, bench.core.desk.step, order.committed, order.low) == (4, 1, 1, 2)


def test_the_next_batch_is_chosen_while_the_trainer_has_the_one_before() -> None:
    bench = with_trainer()
    for group in range(4):
        bench.done(group)
    order = bench.core.book.order
    assert order.batches == [(0, 1)]
    bench.ask(AdvanceTrainer(3, 0, 2))
    assert order.batches == [(0, 1), (2, 3)]


def test_a_trainer_that_attaches_is_not_finished_and_is_answered_after_a_scan() -> None:
    bench = started()
    bench.core.desk.finished = True
    scans = len(bench.all(ScanLedger))
    bench.journalling = False
    assert bench.ask(AttachTrainer(1, 0)) is None
    assert (bench.core.desk.finished, bench.core.desk.attaching) == (False, True)
    assert len(bench.all(ScanLedger)) == scans, "its position is not on disk yet"
    bench.write()
    bench.run()
    assert len(bench.all(ScanLedger)) == scans + 1
    assert (bench.all(CallAnswer)[-1], bench.core.desk.attaching) == (CallAnswer(bench.tickets), False)


class Deaf(Bench):
    """A ledger that answers no scan and no close by itself."""

    def _carry(self, decision: object) -> None:
        if not isinstance(decision, ScanLedger | CloseGroup):
            super()._carry(decision)  # type: ignore[arg-type]

    def scanned(self, ticket: int, epoch: int = 0) -> None:
        self.take(LedgerScanned(ticket, epoch, self.ledger.scan()))


def test_an_attach_waits_for_a_scan_of_its_own_and_for_the_tombstones_that_it_closes() -> None:
    bench = Deaf()
    bench.core.book.admit()
    bench.core.book.end(bench.core.book.groups[0], GroupVerdict("filtered"))
    bench.run()
    bench.core.book.scan()
    assert bench.ask(AttachTrainer(1, 0)) is None
    (earlier, own) = [scan.ticket for scan in bench.all(ScanLedger)]
    bench.scanned(earlier)
    assert bench.core.desk.attaching, "it was asked before the trainer came"
    bench.scanned(own, epoch=7)
    assert bench.core.desk.attaching, "an answer of another epoch"
    bench.scanned(own)
    assert not bench.core.desk.attaching
    bench.run()
    assert bench.all(CallAnswer)[-1] == CallAnswer(bench.tickets)


def test_a_scan_asked_before_the_ledger_lost_data_answers_no_attach() -> None:
    bench = Deaf()
    bench.ask(AttachTrainer(1, 0))
    (own,) = [scan.ticket for scan in bench.all(ScanLedger)]
    bench.take(LedgerRestarted())
    tickets = [scan.ticket for scan in bench.all(ScanLedger)]
    assert [scan.epoch for scan in bench.all(ScanLedger)] == [0, 1, 1]
    bench.scanned(own, epoch=1)
    assert bench.core.desk.attaching
    bench.scanned(tickets[-1], epoch=1)
    assert not bench.core.desk.attaching


def test_a_position_that_is_still_being_written_is_not_scanned_for_when_the_ledger_restarts() -> None:
    bench = started(journalling=False)
    bench.ask(AttachTrainer(1, 0))
    scans = len(bench.all(ScanLedger))
    bench.take(LedgerRestarted())
    assert len(bench.all(ScanLedger)) == scans + 1, "the comparison alone"
    bench.take(EntryJournalled(JournalTrainer(bench.tickets, 1, 0)))
    assert len(bench.all(ScanLedger)) == scans + 2


# ---- proposals


@pytest.mark.parametrize(
    ("fence", "group", "reason", "accepted"),
    [(3, 2, "poison", True), (3, 2, "ended", True), (3, 2, "filtered", False), (3, 1, "poison", False),
     (3, 99, "poison", False)],
)  # fmt: skip
def test_which_proposals_count(fence: int, group: int, reason: str, accepted: bool) -> None:
    bench = with_trainer()
    for number in range(3):
        bench.done(number)
    bench.ask(AdvanceTrainer(3, 0, 2))
    assert bench.ask(ProposeTombstone(fence, group, reason, "")) == CallAnswer(bench.tickets, accepted=accepted)
    assert [stone.group for stone in bench.all(JournalTombstone)] == ([group] if accepted else [])


@pytest.mark.parametrize("fence", [2, 4])
def test_a_proposal_of_another_fence_is_refused(fence: int) -> None:
    bench = with_trainer()
    bench.done(0)
    assert error_of(bench.ask(ProposeTombstone(fence, 0, "poison", ""))) is FencedError


def test_two_that_propose_one_group_are_both_answered_and_it_ends_once() -> None:
    bench = with_trainer()
    bench.done(0)
    bench.journalling = False
    first = bench.tickets + 1
    assert bench.ask(ProposeTombstone(3, 0, "poison", "")) is None
    assert bench.ask(ProposeTombstone(3, 0, "poison", "")) is None
    assert len(bench.all(JournalTombstone)) == 1
    bench.write()
    bench.run()
    assert [answer.ticket for answer in bench.all(CallAnswer) if answer.ticket >= first] == [first, first + 1]


def test_a_scan_answers_no_proposal_whose_tombstone_is_not_in_the_journal() -> None:
    bench = with_trainer()
    bench.done(0)
    bench.journalling = False
    assert bench.ask(ProposeTombstone(3, 0, "poison", "")) is None
    asked = bench.tickets
    bench.core.desk.scanned(bench.core.book.scan(), [])
    bench.run()
    assert asked not in [answer.ticket for answer in bench.all(CallAnswer)]
    bench.write()
    bench.run()
    assert asked in [answer.ticket for answer in bench.all(CallAnswer)]


def test_an_attach_is_answered_with_the_last_tombstone_that_the_ledger_lacked() -> None:
    bench = Deaf()
    assert bench.ask(AttachTrainer(3, 0)) is None
    bench.core.desk.scanned(bench.all(ScanLedger)[-1].ticket, [0, 1])
    bench.core.desk.closed(0)
    assert bench.core.desk.attaching
    bench.core.desk.closed(1)
    assert not bench.core.desk.attaching
    bench.run()
    assert bench.all(CallAnswer)[-1] == CallAnswer(bench.tickets)


def test_a_proposal_waits_for_a_tombstone_that_is_being_written_into_the_ledger_again() -> None:
    bench = with_trainer()
    bench.done(0)
    bench.journalling = False
    assert bench.ask(ProposeTombstone(3, 0, "poison", "")) is None
    bench.core.book.order.tombstones.add(0, "poison")
    bench.core.desk.scanned(1, [0])
    assert not [one for one in bench.core.decide(bench.now) if isinstance(one, CallAnswer)]
    bench.core.desk.scanned(2, [])
    assert [one.ticket for one in bench.core.decide(bench.now) if isinstance(one, CallAnswer)] == [bench.tickets]


def test_before_a_trainer_is_heard_nobody_wants_the_cards_or_gave_them_back() -> None:
    desk = started().core.desk
    assert (desk.given_back, desk.wants_cards, desk.finished, desk.attaching) == (0, False, False, False)


def test_a_group_on_its_way_into_the_ledger_takes_no_proposal() -> None:
    bench = Deaf()
    bench.ask(PublishWeights(1, weights(0)))
    bench.server(0)
    bench.worker()
    bench.core.desk._position.fence = 3
    bench.done(0)
    assert bench.ask(ProposeTombstone(3, 0, "poison", "")) == CallAnswer(bench.tickets, accepted=False)


# ---- beats and bytes


def beat(bench: Bench, fence: int, committed: int, *, finished: bool = False, progress: int = 0) -> None:
    bench.take(TrainerBeat(TrainerReport(fence, 1, committed, finished, progress)))


def test_a_beat_of_another_fence_commits_and_finishes_nothing() -> None:
    bench = with_trainer()
    bench.done(0)
    bench.done(1)
    bench.ask(AdvanceTrainer(3, 0, 2))
    for fence in (2, 4):
        beat(bench, fence, 2, finished=True)
        assert (bench.core.book.order.committed, bench.core.desk.finished) == (0, False)
    assert bench.core.desk.health(0.0) is None
    beat(bench, 3, 1)
    assert (bench.core.book.order.committed, bench.core.desk.health(0.0) is not None) == (1, True)
    beat(bench, 3, 0)
    assert bench.core.book.order.committed == 1
    beat(bench, 3, 2, finished=True)
    assert (bench.core.book.order.committed, bench.core.desk.finished) == (1, True), "no more than what is chosen"
    beat(bench, 3, 1)
    assert not bench.core.desk.finished


@pytest.mark.parametrize(("budget", "wanted"), [(50, True), (60, False)])
def test_a_checkpoint_is_asked_for_when_four_fifths_of_the_bytes_are_reserved(budget: int, wanted: bool) -> None:
    bench = with_trainer(bytes_per_group=10, budget_bytes=budget, max_staleness=1)
    bench.done(0)
    bench.done(1)
    assert len(bench.core.book.groups) == 4
    assert not bench.core.desk.checkpoint_now, "nothing to commit"
    bench.ask(AdvanceTrainer(3, 0, 2))
    assert bench.core.desk.checkpoint_now is wanted
    bench.core.book.commit(1)
    assert not bench.core.desk.checkpoint_now


def test_a_fall_back_makes_only_what_the_trainer_needs_again() -> None:
    bench = started()
    bench.trained(2)
    bench.ledger.commit(1, 2)
    beat(bench, 1, 2)
    assert bench.core.book.order.committed == 2
    bench.ledger.recover(2, 1)
    bench.seen.clear()
    assert bench.ask(AttachTrainer(2, 1)) == CallAnswer(bench.tickets)
    bench.later(0.5)
    assert (bench.core.book.order.committed, bench.core.desk.step) == (1, 1)
    assert [group for group in leased(bench) if group < 4] == [2, 3]


# ---- hot fields


@pytest.mark.parametrize(
    ("field", "value", "fine"),
    [
        ("max_steps", 0, False), ("max_steps", 1, True),
        ("max_steps", MOST_STEPS, True), ("max_steps", MOST_STEPS + 1, False),
        ("max_staleness", 0, True),
        ("max_staleness", MOST_STALENESS, True), ("max_staleness", MOST_STALENESS + 1, False),
        ("max_concurrent", 0, False), ("max_concurrent", 1, True),
        ("max_concurrent", MOST_CONCURRENT, True), ("max_concurrent", MOST_CONCURRENT + 1, False),
    ],
)  # fmt: skip
def test_hot_values_hold_up_to_their_bounds(field: str, value: int, fine: bool) -> None:
    bench = Bench()
    assert error_of(bench.ask(SetHotFields(**{field: value}))) is (None if fine else ConfigError)
    assert (getattr(bench.core.settings, field) == value) is fine


@pytest.mark.parametrize(("eta", "fine"), [(1, False), (2, True)])
def test_an_eta_below_the_interval_of_publishing_is_refused(eta: int, fine: bool) -> None:
    bench = Bench(replace(SETTINGS, max_staleness=4, publish_interval=3))
    answer = bench.ask(SetHotFields(max_staleness=eta))
    assert error_of(answer) is (None if fine else ConfigError)
    if not fine:
        assert answer is not None
        assert answer.error is not None
        assert answer.error.fix == "set ahead and maxStaleness to 2 or more"
