"""The controller's core, driven by hand: workers, servers, the trainer, evaluation, rebuilding."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.errors import BugError, FencedError, InfraError, Kind
from areal.ledger.state import LedgerModel
from areal.ledger.values import SampleMeta
from areal.rollout.contract.values import EvaluationAnswer, FailureKind, GroupInHand, WorkerReport
from areal.rollout.controller.core import Rebuilt
from areal.rollout.controller.decisions import (
    CallAnswer,
    GrantLease,
    JournalTombstone,
    KeepServed,
    LeaseEvaluation,
    Notice,
    RecordEvaluation,
    Revoke,
    ScanLedger,
    WantWeights,
)
from areal.rollout.controller.evaluation import Evaluations
from areal.rollout.controller.inputs import (
    AdvanceTrainer,
    AttachTrainer,
    KeptOnDisk,
    LedgerRestarted,
    ProposeTombstone,
    PublishWeights,
    RefusalReport,
    SetHotFields,
    TrainerBeat,
    TrainerReport,
    WorkerBeat,
)
from areal.rollout.controller.service import rollout_status
from areal.rollout.controller.settings import TrainPosition
from controller_bench import SETTINGS, Bench, N, leased, started, weights
from hypothesis import given
from hypothesis import strategies as st

# ---- workers and servers


def test_a_dead_workers_groups_are_leased_to_another_after_a_scan() -> None:
    bench = started()
    bench.ledger.add_sample(0, 0, b"x", SampleMeta(1, 0.0, 0, 0, 1, 1, False, 0))  # stored, but never told
    dead = bench.core.crew.workers.pop("w")
    bench.worker("v")
    bench.core.crew.workers["w"] = dead
    for _ in range(6):
        bench.now += 0.5
        bench.core.take(WorkerBeat(WorkerReport("v", "1", 100)), bench.now)
        bench.server(0)
        bench.core.tick(bench.now)
        bench.run()
    assert len(bench.all(ScanLedger)) == 1
    again = {grant.group: grant for grant in bench.all(GrantLease) if grant.worker == "v"}
    assert set(again) == {0, 1, 2, 3}
    assert again[0].missing == (1,)
    assert bench.now <= 3.0


def test_our_own_lateness_kills_nobody() -> None:
    bench = started()
    bench.now += 60.0
    bench.core.tick(bench.now)
    bench.run()
    assert not bench.all(Revoke)
    assert bench.core.fleet.newest_version == 0


def test_a_worker_that_comes_back_keeps_what_it_holds() -> None:
    bench = started()
    held = tuple(GroupInHand(group, 1, (0, 1), 1, True) for group in (0, 1, 2))
    bench.worker(held=held)
    again = [grant.group for grant in bench.all(GrantLease) if grant.attempt > 1]
    assert again == [3]


def test_a_restarted_controller_adopts_what_workers_hold_and_waits_for_the_rest() -> None:
    bench = Bench(rebuilt=Rebuilt(view=LedgerModel().scan(), served=weights(0)))
    bench.server(0)
    bench.worker(held=(GroupInHand(2, 3, (1,), 1, True), GroupInHand(0, 1, (0, 1), 1, True)))
    assert 1 not in leased(bench)
    bench.later(3.0)
    assert 1 in leased(bench)
    assert [grant.missing for grant in bench.all(GrantLease) if grant.group == 2] == [(0,)]


def test_weights_that_every_server_refused_three_times_are_a_named_stall() -> None:
    bench = started()
    bench.ask(PublishWeights(1, weights(1)))
    bench.server(0, refused=RefusalReport("1.f1", 2, "tensor w: checksum"))
    assert not bench.core.stalled
    bench.server(0, refused=RefusalReport("1.f1", 3, "tensor w: checksum"))
    assert "1.f1" in bench.core.stalled
    assert bench.core.stalled_by is Kind.INFRA
    assert "tensor w" in bench.core.stalled
    bench.server(1)
    assert not bench.core.stalled


# ---- the trainer


def test_a_batch_that_changed_while_it_was_taken_is_refused() -> None:
    bench = started()
    bench.ask(AttachTrainer(1, 0))
    bench.done(0)
    bench.done(1, (1.0, 1.0))
    answer = bench.ask(AdvanceTrainer(1, 0, 2))
    assert answer is not None
    assert isinstance(answer.error, InfraError)
    bench.done(2)
    assert bench.ask(AdvanceTrainer(1, 0, 2)) == CallAnswer(bench.tickets)


def test_an_old_trainer_is_fenced_and_a_broken_checkpoint_is_a_bug() -> None:
    bench = started()
    bench.ask(AttachTrainer(2, 0))
    for call in (AttachTrainer(1, 0), AdvanceTrainer(1, 0, 2), PublishWeights(1, weights(1))):
        answer = bench.ask(call)
        assert answer is not None
        assert isinstance(answer.error, FencedError)
    broken = bench.ask(AttachTrainer(3, 1))
    assert broken is not None
    assert isinstance(broken.error, BugError)


def test_nothing_below_the_cursor_is_worked_on_and_a_fall_back_makes_it_again() -> None:
    bench = started()
    bench.trained(2)
    bench.ledger = LedgerModel()
    bench.ledger.recover(1, 0)
    bench.core.take(LedgerRestarted(), bench.now)
    bench.run()
    bench.later(5.0)
    assert Notice.RESEND in bench.seen
    assert all(grant.group >= 4 for grant in bench.all(GrantLease) if grant.attempt > 1)
    bench.ledger.recover(2, 0)
    assert bench.ask(AttachTrainer(2, 0)) == CallAnswer(bench.tickets)
    bench.later(5.0)
    assert {grant.group for grant in bench.all(GrantLease)[-8:]} >= {0, 1, 2, 3}


def test_poison_is_the_one_tombstone_of_a_complete_group() -> None:
    bench = started()
    bench.ask(AttachTrainer(1, 0))
    bench.done(0)
    assert bench.ask(ProposeTombstone(1, 0, "poison", "three crashes")) == CallAnswer(bench.tickets)
    assert bench.ledger.closed == {0: "poison"}
    assert bench.ask(ProposeTombstone(1, 0, "poison", "")) == CallAnswer(bench.tickets)
    assert bench.ask(ProposeTombstone(1, 1, "filtered", "")) == CallAnswer(bench.tickets, accepted=False)


def test_published_versions_only_go_on() -> None:
    bench = started()
    for policy, accepted in ((weights(2), True), (weights(1), False), (weights(2), True), (weights(1, 2), True)):
        assert bench.ask(PublishWeights(policy.fence, policy)) == CallAnswer(bench.tickets, accepted=accepted)
    assert [kept.weights.policy_id for kept in bench.all(KeepServed)] == ["0.f1", "2.f1", "1.f2"]


def test_nobody_hears_of_weights_or_hot_fields_before_they_are_on_disk_and_calls_keep_their_order() -> None:
    bench = started()
    bench.keeping = False
    assert bench.ask(PublishWeights(1, weights(1))) is None
    assert bench.ask(SetHotFields(max_steps=7)) is None
    assert bench.ask(PublishWeights(1, weights(1))) is None
    assert bench.ask(AttachTrainer(2, 0)) is None
    status = rollout_status("job", bench.core, [])
    assert (status.served_policy_id, status.max_steps) == ("0.f1", SETTINGS.max_steps)
    assert bench.core.desk.fence == 0
    wanted = bench.all(WantWeights)
    bench.take(KeptOnDisk())
    assert bench.all(WantWeights) == [*wanted, WantWeights(weights(1))]
    assert bench.core.max_steps == SETTINGS.max_steps
    bench.take(KeptOnDisk())
    assert bench.core.max_steps == 7
    assert bench.core.desk.fence == 2
    first = bench.tickets - 3
    assert [answer for answer in bench.all(CallAnswer) if answer.ticket >= first] == [
        CallAnswer(ticket) for ticket in range(first, bench.tickets + 1)
    ]


def test_a_ledger_that_forgot_the_trainers_position_is_read_again() -> None:
    bench = started()
    bench.trained(2)
    bench.ledger.commit(1, 4)
    before = bench.ledger.fork()
    bench.ledger.recover(2, 0)
    bench.ask(AttachTrainer(2, 0))
    bench.ledger = before  # the tail with the trainer's recover is lost
    bench.core.take(LedgerRestarted(), bench.now)
    bench.run()
    grants = len(bench.all(GrantLease))
    bench.later(1.0)
    assert not [grant for grant in bench.all(GrantLease)[grants:] if grant.group < 4]
    bench.ledger.recover(2, 0)
    bench.later(4.0)
    assert {grant.group for grant in bench.all(GrantLease)[grants:]} >= {0, 1, 2, 3}


# ---- evaluation and the end


def test_evaluation_runs_beside_the_gate_and_survives_its_worker() -> None:
    settings = replace(SETTINGS, evaluation_interval=2, evaluation_rows=3, evaluation_concurrent=2, max_concurrent=1)
    bench = started(settings)
    rows = bench.all(LeaseEvaluation)
    assert [(row.evaluation_id, row.row, row.floor) for row in rows] == [("0.f1", 0, 0), ("0.f1", 1, 0)]
    bench.worker(incarnation="2", held=())
    assert len(bench.all(LeaseEvaluation)) == 4
    for row, score in ((0, 1.0), (1, 0.0), (2, 0.5)):
        bench.worker(incarnation="2", evaluated=(EvaluationAnswer("0.f1", row, score, 0, row),))
    (record,) = bench.all(RecordEvaluation)
    assert (record.mean, record.rows, record.oldest_version, record.newest_version) == (0.5, 3, 0, 2)
    bench.ask(PublishWeights(1, weights(1)))
    bench.ask(PublishWeights(1, weights(2)))
    bench.server(2)
    assert bench.all(LeaseEvaluation)[-1].evaluation_id == "2.f1"


@pytest.mark.parametrize(("wrong", "mean"), [(True, 0.5), (False, 1.0)])
def test_a_row_without_a_score_is_tried_again_only_for_infrastructure(wrong: bool, mean: float) -> None:
    settings = replace(SETTINGS, evaluation_interval=2, evaluation_rows=2, evaluation_failed_are_wrong=wrong)
    bench = started(settings)
    infra = EvaluationAnswer("0.f1", 0, kind=FailureKind.INFRA)
    bench.worker(evaluated=(infra, EvaluationAnswer("0.f1", 1, kind=FailureKind.EXCEPTION)))
    bench.later(1.0)
    assert [row.row for row in bench.all(LeaseEvaluation)] == [0, 1, 0]
    bench.worker(evaluated=(EvaluationAnswer("0.f1", 0, 1.0, 0, 0),))
    (record,) = bench.all(RecordEvaluation)
    assert (record.rows, record.mean, record.failed_rows) == (1, mean, 1), "a row that failed is told"
    assert bench.core.evaluations.ended_rows == 2


def test_a_trainer_that_restarts_during_an_evaluation_does_not_begin_it_again() -> None:
    settings = replace(SETTINGS, evaluation_interval=5, evaluation_rows=3, max_steps=1)
    bench = started(settings)
    first = replace(weights(5), content_digest="ab" * 32)
    bench.ask(PublishWeights(1, first))
    bench.server(5)
    name = f"5.{'ab' * 8}"
    bench.worker(evaluated=tuple(EvaluationAnswer("0.f1", row, 0.0, 0, 0) for row in range(3)))
    bench.worker(evaluated=(EvaluationAnswer(name, 0, 1.0, 5, 5),))
    bench.ask(AttachTrainer(2, 0))
    again = replace(weights(5, 2), content_digest=first.content_digest)
    bench.ask(PublishWeights(2, again))
    bench.worker(evaluated=(EvaluationAnswer(name, 1, 1.0, 5, 5), EvaluationAnswer(name, 2, 1.0, 5, 5)))
    leases = [(row.evaluation_id, row.row) for row in bench.all(LeaseEvaluation) if row.floor == 5]
    assert leases == [(name, 0), (name, 1), (name, 2)]
    assert [(record.policy_id, record.rows) for record in bench.all(RecordEvaluation)] == [("0.f1", 3), ("5.f1", 3)]
    assert bench.core.evaluations.final(again)
    assert Evaluations(TrainPosition(settings, 2, 0, 0), [name], print).final(again)
    trained_anew = replace(again, content_digest="cd" * 32)
    assert not bench.core.evaluations.final(trained_anew)


def test_the_run_ends_after_the_last_evaluation_with_nothing_left_open() -> None:
    settings = replace(SETTINGS, max_steps=1, evaluation_interval=5, evaluation_rows=1, evaluation_at_start=False)
    bench = started(settings)
    bench.ask(AttachTrainer(1, 0))
    bench.done(0)
    bench.done(1)
    bench.ask(AdvanceTrainer(1, 0, 2))
    bench.ask(PublishWeights(1, weights(1)))
    bench.core.take(TrainerBeat(TrainerReport(1, 1, 1, finished=True)), bench.now)
    bench.run()
    assert not bench.core.done
    bench.server(1)
    assert bench.all(LeaseEvaluation)[-1] == LeaseEvaluation("w", "1.f1", 0, 1)
    bench.worker(evaluated=(EvaluationAnswer("1.f1", 0, 1.0, 1, 1),))
    assert bench.core.done
    assert Notice.STOP_WORKERS in bench.seen
    ended = {t.group for t in bench.all(JournalTombstone) if t.reason == "ended"}
    assert ended == set(range(2, bench.core.book.next_admission))


# ---- rebuilt


@given(st.lists(st.sampled_from(["complete", "partial", "filtered", "unknown"]), min_size=1, max_size=12))
def test_a_rebuilt_core_agrees_with_the_ledger_and_the_journal(states: list[str]) -> None:
    ledger, tombstones, settings = LedgerModel(), {}, replace(SETTINGS, max_staleness=9)
    for group, state in enumerate(states):
        for index in range({"complete": N, "partial": 1}.get(state, 0)):
            ledger.add_sample(group, index, b"x", SampleMeta(1, float(index), 0, 0, 9, 1, False, 0))
        if state == "complete":
            ledger.close(1, group, "complete", N)
        if state == "filtered":
            tombstones[group] = "filtered"
    bench = Bench(
        rebuilt=Rebuilt(view=ledger.scan(), tombstones=tombstones, served=weights(0)), ledger=ledger, settings=settings
    )
    bench.server(0)
    bench.worker(held=())
    bench.later(3.0)
    known = [group for group, state in enumerate(states) if state != "unknown"]
    for group, state in enumerate(states[: max(known, default=-1) + 1]):
        grants = [grant.missing for grant in bench.all(GrantLease) if grant.group == group]
        assert grants == {"partial": [(1,)], "unknown": [(0, 1)]}.get(state, [])
        if state == "filtered":
            assert ledger.closed.get(group, "filtered") == "filtered"
            assert group in ledger.closed or group < ledger.low


def test_a_process_that_takes_a_workers_name_keeps_what_it_holds() -> None:
    bench = started()
    bench.done(0)
    held = GroupInHand(1, 1, (0, 1), 1, False)
    orders = bench.worker(incarnation="2", held=(held,))
    assert not [order for order in orders if isinstance(order, Revoke) and order.group == 1]
    assert bench.core.book.groups[1].worker == "w"
