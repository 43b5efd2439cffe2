"""The controller's core, driven by hand: admission, groups, η and floors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.errors import ConfigError
from areal.ledger.values import SampleMeta
from areal.observe.live import Idle, IdleCause
from areal.rollout.contract.values import FailureKind, SampleDone, SampleFailure
from areal.rollout.controller.decisions import CloseGroup, GrantLease, JournalTombstone, KeepHot, Revoke
from areal.rollout.controller.groups import PromptGroup
from areal.rollout.controller.inputs import (
    AdvanceTrainer,
    AttachTrainer,
    PublishWeights,
    SetHotFields,
    TrainerBeat,
    TrainerReport,
)
from areal.rollout.controller.service import rollout_status
from controller_bench import SETTINGS, Bench, N, leased, started, weights

# ---- admission


def test_admission_is_dense_and_bounded_by_the_version_that_servers_hold() -> None:
    bench = started()
    assert leased(bench) == [0, 1, 2, 3]
    bench.ask(PublishWeights(1, weights(1)))
    assert leased(bench) == [0, 1, 2, 3]
    bench.server(1)
    assert leased(bench) == [0, 1, 2, 3, 4, 5]


def test_concurrency_bounds_what_is_in_work_not_what_is_complete() -> None:
    bench = started(replace(SETTINGS, max_concurrent=2))
    assert leased(bench) == [0, 1]
    bench.done(0)
    assert leased(bench) == [0, 1, 2]


def test_nothing_is_admitted_without_a_ready_server_or_a_worker() -> None:
    bench = Bench()
    assert bench.idle.cause is IdleCause.NO_WEIGHTS
    bench.ask(PublishWeights(1, weights(0)))
    bench.worker()
    assert not leased(bench)
    assert bench.idle.cause is IdleCause.NO_SERVER
    bench.server(-1)
    assert not leased(bench)
    bench.server(0)
    assert leased(bench) == [0, 1, 2, 3]


def test_the_byte_budget_closes_the_gate_and_asks_for_a_checkpoint() -> None:
    bench = started(replace(SETTINGS, bytes_per_group=10, budget_bytes=40, max_staleness=9))
    assert leased(bench) == [0, 1, 2, 3]
    assert bench.idle == Idle(IdleCause.BYTES_FULL, "the byte budget is 100% full: waiting for a checkpoint to free it")
    assert not bench.core.desk.checkpoint_now
    bench.ask(AttachTrainer(1, 0))
    bench.done(0)
    bench.done(1)
    bench.ask(AdvanceTrainer(1, 0, 2))
    assert bench.core.desk.checkpoint_now
    bench.core.take(TrainerBeat(TrainerReport(1, 1, 1)), bench.now)
    bench.run()
    assert not bench.core.desk.checkpoint_now
    assert leased(bench) == [0, 1, 2, 3, 4, 5]


# ---- groups


def test_a_full_group_closes_complete() -> None:
    bench = started()
    bench.done(0)
    assert bench.ledger.closed == {0: "complete"}
    assert not bench.all(JournalTombstone)


def test_equal_rewards_are_filtered_and_credit_comes_after_the_journal() -> None:
    bench = started(journalling=False)
    bench.done(0, (1.0, 1.0))
    assert [t.reason for t in bench.all(JournalTombstone)] == ["filtered"]
    assert bench.ledger.closed == {}
    assert leased(bench) == [0, 1, 2, 3]
    bench.write()
    bench.run()
    assert bench.ledger.closed == {0: "filtered"}
    assert leased(bench) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("whole", "same"), [((1.0, 1.0), True), ((1.0, 0.5), False), ((1.0,), True), ((), True)])
def test_a_sample_that_was_cut_off_does_not_hide_that_the_whole_ones_are_equal(
    whole: tuple[float, ...], same: bool
) -> None:
    cut = SampleMeta(1, 0.0, 0, 0, 1, 1, True, 0, masked=True)
    scored = [SampleMeta(1, reward, 0, 0, 1, 1, False, 0) for reward in whole]
    assert PromptGroup(0, done=dict(enumerate([cut, *scored]))).same_rewards() is same


def test_equal_rewards_are_kept_when_the_job_masks() -> None:
    bench = started(replace(SETTINGS, filter_zero_variance=False))
    bench.done(0, (1.0, 1.0))
    assert bench.ledger.closed == {0: "complete"}


def test_a_users_failure_ends_the_group_with_its_traceback() -> None:
    bench = started()
    bench.worker(failures=(SampleFailure(1, 0, 1, FailureKind.EXCEPTION, "KeyError: 'x'"),))
    (tombstone,) = bench.all(JournalTombstone)
    assert (tombstone.group, tombstone.reason) == (1, "rejected")
    assert "KeyError" in tombstone.detail
    assert Revoke("w", 1) in bench.seen


def test_an_infrastructure_failure_is_tried_again_with_the_next_attempt() -> None:
    bench = started()
    bench.worker(failures=(SampleFailure(0, 1, 1, FailureKind.INFRA, "connection refused"),))
    assert leased(bench) == [0, 1, 2, 3]
    bench.later(0.5)
    again = bench.all(GrantLease)[-1]
    assert (again.group, again.attempt, again.missing) == (0, 2, (1,))
    assert not bench.all(JournalTombstone)


def test_each_episode_is_counted_by_how_it_ended_and_those_of_a_dead_worker_as_infrastructures() -> None:
    bench = started()
    bench.done(0)
    bench.worker(
        failures=(
            SampleFailure(1, 0, 1, FailureKind.INFRA, "a box was lost"),
            SampleFailure(2, 0, 1, FailureKind.EXCEPTION, "KeyError"),
        )
    )
    cut = SampleDone(1, 1, 0.0, 0, 0, 1, masked=True)
    bench.worker(done=(cut, cut))
    assert bench.core.book.tally.ends == {"complete": N, "masked": 1, "infra": 1, "exception": 1}
    working = sum(len(group.working) for group in bench.core.book.live() if group.worker)
    assert working
    bench.core.book.orphan("w")
    assert bench.core.book.tally.ends["infra"] == 1 + working
    assert rollout_status("job", bench.core, []).episode_ends["infra"] == 1 + working


def test_only_patience_and_many_tries_together_end_a_group_for_infrastructure() -> None:
    bench = started(replace(SETTINGS, infra_tries=3, infra_patience_s=30.0, group_deadline_s=1e6))
    for attempt in range(1, 9):
        bench.worker(failures=(SampleFailure(0, 1, attempt, FailureKind.INFRA, "gone"),))
        bench.later(8.0)
        if bench.now < 30.0:
            assert not bench.all(JournalTombstone)
    assert [t.reason for t in bench.all(JournalTombstone)] == ["infra"]


def test_a_sample_that_the_ledger_lost_is_made_again() -> None:
    bench = started()
    report = [SampleDone(0, i, float(i), 0, 0, 1) for i in range(N)]
    bench.ledger.add_sample(0, 0, b"x", SampleMeta(1, 0.0, 0, 0, 1, 1, False, 0))
    bench.worker(done=tuple(report))
    bench.later(3.0)
    assert bench.all(GrantLease)[-1].missing == (1,)


def test_a_deadline_runs_only_while_a_server_makes_tokens_and_keeps_whole_samples() -> None:
    settings = replace(SETTINGS, group_size=3, group_deadline_s=5.0, max_concurrent=2)
    bench = started(settings)
    for index in range(2):
        bench.ledger.add_sample(0, index, b"x", SampleMeta(1, float(index), 0, 0, 1, 1, False, 0))
    bench.worker(done=tuple(SampleDone(0, i, float(i), 0, 0, 1) for i in range(2)))
    for _ in range(100):
        bench.now += 0.25
        bench.worker()
        bench.server(0)  # beats, but its progress stands still
        bench.core.tick(bench.now)
        bench.run()
    assert not bench.all(CloseGroup)
    bench.later(6.0)
    short = next(close for close in bench.all(CloseGroup) if close.group == 0)
    assert (short.outcome, short.indices, short.short) == ("complete", (0, 1), True)
    assert next((t.group, t.reason) for t in bench.all(JournalTombstone)) == (1, "deadline")


def test_nothing_but_filtered_groups_is_a_named_stall_until_one_is_complete() -> None:
    bench = started(replace(SETTINGS, max_filtered_per_step=3))
    for group in range(3):
        bench.done(group, (0.0, 0.0))
    assert bench.core.stalled == "3 groups in a row were filtered: all samples earned the same reward"
    admitted = bench.core.book.next_admission
    bench.run()
    assert bench.core.book.next_admission == admitted
    bench.done(3)
    assert not bench.core.stalled


# ---- η and floors


def test_a_group_gets_its_floor_with_its_first_lease_and_keeps_it() -> None:
    bench = started(replace(SETTINGS, max_staleness=1))
    assert [grant.floor for grant in bench.all(GrantLease)] == [0, 0, 0, 0]
    bench.trained(1)
    bench.worker(incarnation="2", held=())
    bench.later(0.5)
    again = {grant.group: grant.floor for grant in bench.all(GrantLease) if grant.attempt == 2}
    assert again == {2: 0, 3: 0, 4: 1, 5: 1}


def test_a_server_that_lags_gets_no_group_that_would_be_due_before_its_turn() -> None:
    bench = started(replace(SETTINGS, max_staleness=0))
    bench.trained(1)
    bench.server(0, "late")
    bench.server(0, "later")
    assert bench.core.fleet.versions == range(2)
    assert [grant.floor for grant in bench.all(GrantLease) if grant.group > 1] == [1, 1]


def test_a_group_keeps_the_bound_that_it_was_granted_under() -> None:
    bench = started()
    bench.ledger.add_sample(3, 0, b"x", SampleMeta(1, 0.0, 0, 0, 1, 1, False, 0))
    bench.worker(done=(SampleDone(3, 0, 0.0, 0, 0, 1),))
    bench.ask(SetHotFields(max_staleness=4))
    bench.worker(incarnation="2", held=())
    again = {grant.group: grant for grant in bench.all(GrantLease) if grant.attempt == 2}
    assert {(again[group].max_staleness, again[group].floor) for group in (2, 3)} == {(1, 0)}
    assert {grant.max_staleness for grant in bench.all(GrantLease) if grant.group > 3} == {4}


def test_batches_are_of_what_is_complete_and_wait_for_a_group_that_is_due() -> None:
    bench = started(replace(SETTINGS, max_staleness=2, ahead=1))
    bench.trained(2)  # in admission order
    bench.done(5, version=2)
    bench.done(6, version=2)
    order = bench.core.book.order
    assert order.batches[2:] == [(5, 6)], "4 is late, and due at step 3"
    bench.ask(AdvanceTrainer(1, 2, 2))
    bench.ask(PublishWeights(1, weights(3)))
    bench.server(3)
    bench.done(7, version=3)
    bench.done(8, version=3)
    assert order.chosen == 3, "it would be too old for the step after"
    said = rollout_status("job", bench.core, []).batch_waits
    assert (
        said == "step 3 waits for group 4, due at step 3 (maxStaleness 2): 0 of 2 samples are there, the rest is at w"
    )
    bench.done(4, version=1, eta=2)
    assert order.batches[3] == (4, 7)


def test_in_admission_order_nothing_overtakes() -> None:
    bench = started(replace(SETTINGS, max_staleness=2, admission_order=True))
    bench.trained(2)
    bench.done(5, version=2)
    bench.done(6, version=2)
    order = bench.core.book.order
    assert order.chosen == 2
    bench.done(4, version=2)
    assert order.batches[2] == (4, 5)


def test_a_lead_beyond_the_bound_is_refused() -> None:
    bench = started(replace(SETTINGS, max_staleness=2))
    answer = bench.ask(SetHotFields(ahead=3))
    assert answer is not None
    assert isinstance(answer.error, ConfigError)
    assert bench.ask(SetHotFields(ahead=2)) is not None
    assert bench.core.settings.lead == 2


def test_groups_that_wait_for_a_version_hold_no_slot_and_give_up_their_place() -> None:
    bench = started(replace(SETTINGS, max_staleness=0, max_concurrent=2))
    bench.trained(2)
    bench.worker(capacity=2)
    assert bench.core.last_round.in_work == 2
    bench.ledger.commit(1, 2)
    bench.core.take(TrainerBeat(TrainerReport(1, 2, 2)), bench.now)
    bench.ledger.recover(2, 0)
    bench.ask(AttachTrainer(2, 0))
    bench.ask(PublishWeights(2, weights(0, 2, rollback=True)))
    bench.server(0)
    bench.worker(capacity=2)
    assert leased(bench)[-2:] == [0, 1]
    assert {decision.group for decision in bench.all(Revoke)} >= {4, 5}


def test_a_hot_eta_that_can_never_be_met_is_refused() -> None:
    bench = started(replace(SETTINGS, max_staleness=2, publish_interval=3))
    answer = bench.ask(SetHotFields(max_staleness=1))
    assert answer is not None
    assert isinstance(answer.error, ConfigError)
    assert bench.core.settings.max_staleness == 2


def test_hot_fields_that_hold_already_are_no_change_even_when_the_run_is_over() -> None:
    bench = started()
    bench.ask(SetHotFields(max_staleness=2, max_concurrent=5))
    kept = len(bench.all(KeepHot))
    answer = bench.ask(SetHotFields(max_staleness=2, max_concurrent=5, max_steps=SETTINGS.max_steps))
    assert answer is not None
    assert answer.error is None
    assert len(bench.all(KeepHot)) == kept
    status = rollout_status("job", bench.core, [])
    assert (status.max_staleness, status.max_concurrent_rollouts) == (2, 5)
    bench.core.desk.finished = True
    again = bench.ask(SetHotFields(max_concurrent=5))
    assert again is not None
    assert again.error is None
    changed = bench.ask(SetHotFields(max_concurrent=6))
    assert changed is not None
    assert isinstance(changed.error, ConfigError)


def test_lowering_max_steps_ends_what_lies_beyond() -> None:
    bench = started()
    bench.ask(SetHotFields(max_steps=1))
    assert [(t.group, t.reason) for t in bench.all(JournalTombstone)] == [(2, "ended"), (3, "ended")]
    bench.ask(SetHotFields(max_steps=2))
    assert leased(bench)[-2:] == [4, 5]


def test_how_long_complete_groups_waited_for_the_trainer_is_measured() -> None:
    bench = started()
    bench.ask(AttachTrainer(1, 0))
    bench.done(0, version=0)
    bench.now += 5.0
    bench.done(1, version=0)
    bench.ask(AdvanceTrainer(1, 0, 2))
    assert [round(life.ended_at - life.closed_at) for life in bench.core.book.tally.lives] == [5, 0]
