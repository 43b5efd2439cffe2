"""The trainer's core answers what to take, train, publish and save."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from areal.errors import BugError
from areal.ledger.consumer import Batch, Consumer, ConsumerPolicy, StalenessViolation, TrainerState, check_spans
from areal.ledger.evidence import (
    Attempt,
    Evidence,
    EvidenceEntry,
    EvidenceLog,
    Exit,
    Precaution,
    exited,
    precaution,
    read,
)
from areal.ledger.state import LedgerModel
from areal.ledger.values import COMPLETE, TakenGroup
from areal.v1 import common_pb2 as common
from ledger_samples import meta, payload

POLICY = ConsumerPolicy(batch_groups=2, group_size=2, max_steps=4, publish_interval=2, checkpoint_interval=2)


def taken(group: int, outcome: str = COMPLETE, *, oldest: int = 0, staleness: int = 2) -> TakenGroup:
    if outcome != COMPLETE:
        return TakenGroup(group, outcome)
    metas = tuple(meta(oldest=oldest, staleness=staleness) for _ in range(2))
    return TakenGroup(group, outcome, (payload(group, 0), payload(group, 1)), (0, 1), metas)


def step(consumer: Consumer) -> Batch:
    """Trains one batch."""
    wanted = consumer.want()
    assert wanted is not None
    version = consumer.version
    batch = consumer.offer([taken(2 * wanted, oldest=version), taken(2 * wanted + 1, oldest=version)])
    assert batch is not None
    assert consumer.accept(batch, consumer.policy.max_steps)
    consumer.trained(batch)
    return batch


def test_a_batch_is_what_was_chosen_less_what_has_ended() -> None:
    consumer = Consumer(1, TrainerState(), POLICY)
    assert consumer.want() == 0
    batch = consumer.offer([taken(3), taken(1, "poison")])
    assert batch is not None
    assert [g.group for g in batch.groups] == [3]
    assert consumer.want() is None
    assert consumer.state == TrainerState()
    consumer.trained(batch)
    assert (consumer.state, consumer.want()) == (TrainerState(1), 1)


def test_a_batch_of_which_nothing_is_left_is_a_step_that_changes_nothing() -> None:
    consumer = Consumer(1, TrainerState(), POLICY)
    batch = consumer.offer([taken(0, "poison"), taken(1, "poison")])
    assert batch == Batch(0, (), None)
    consumer.trained(batch)
    assert (consumer.state, consumer.want()) == (TrainerState(1), 1)


def test_a_batch_is_not_taken_while_a_group_of_it_is_made_again() -> None:
    model = LedgerModel()
    for group in (0, 1):
        for index in (0, 1):
            model.add_sample(group, index, payload(group, index), meta())
        model.close(1, group, COMPLETE, 2)
    model.assign(1, 0, (0, 1))
    assert [group.group for group in model.take(1, 0)] == [0, 1]
    model.reopen(1, 1)
    assert model.take(1, 0) == []


@pytest.mark.parametrize("groups", [[1], [0, 1, 2], [1, 1]])
def test_what_is_no_whole_batch_is_a_bug(groups: list[int]) -> None:
    with pytest.raises(BugError, match="has the batch"):
        Consumer(1, TrainerState(), POLICY).offer([taken(g) for g in groups])


def test_a_group_with_a_sample_twice_is_a_bug() -> None:
    with pytest.raises(BugError, match="complete with samples"):
        Consumer(1, TrainerState(), POLICY).offer([replace(taken(0), indices=(1, 1)), taken(1)])


def test_the_staleness_bound_is_the_groups_own() -> None:
    consumer = Consumer(1, TrainerState(3), POLICY)
    with pytest.raises(StalenessViolation, match="version 1") as caught:
        consumer.offer([taken(6, oldest=1, staleness=2), taken(7, oldest=1, staleness=1)])
    assert (caught.value.group, caught.value.step) == (7, 3)
    assert consumer.want() == 3
    batch = consumer.offer([taken(6, oldest=1, staleness=2), taken(7, oldest=3, staleness=0)])
    assert batch is not None
    assert batch.oldest_version == 1


@pytest.mark.parametrize(("oldest", "fine"), [(3, True), (4, False)])
def test_a_token_older_than_the_ledger_says_stops_the_step(oldest: int, fine: bool) -> None:
    spans = [common.Span(start=0, end=1, policy_id="5.f1"), common.Span(start=1, end=2, policy_id="3.f1")]
    sample = common.Sample(sequences=[common.TokenSequence(spans=spans)])
    group = taken(7, oldest=oldest)
    samples = [sample] * len(group.metas)
    if fine:
        check_spans(group, samples)
    else:
        with pytest.raises(BugError, match="group 7 holds a token of version 3"):
            check_spans(group, samples)


def test_the_ages_of_a_group_are_counted_by_token_with_the_last_step_for_each() -> None:
    def sample(*spans: tuple[int, int, str]) -> common.Sample:
        made = [common.Span(start=start, end=end, policy_id=policy) for start, end, policy in spans]
        return common.Sample(sequences=[common.TokenSequence(spans=made)])

    metas = (meta(oldest=3, staleness=1), meta(oldest=2, staleness=4))
    group = TakenGroup(7, COMPLETE, (b"", b""), (0, 1), metas)
    young, old = sample((0, 10, "5.f1"), (10, 30, "3.f1")), sample((0, 5, "2.f1"), (5, 5, "1.f1"))
    assert check_spans(group, [young, old]) == (35, 10 * 5 + 20 * 3 + 5 * 2, 2, 4, 4)
    assert check_spans(group, [sample(), sample()]) == ()


def test_a_sample_that_the_ledger_says_nothing_of_stops_the_step() -> None:
    group = taken(7)
    with pytest.raises(ValueError, match="longer"):
        check_spans(group, [common.Sample()] * (len(group.metas) + 1))


def test_a_run_publishes_every_interval_and_the_final_version() -> None:
    consumer = Consumer(1, TrainerState(), replace(POLICY, max_steps=3))
    published = []
    while True:
        if consumer.publish_due():
            published.append(consumer.version)
            consumer.published()
        if consumer.finished:
            break
        step(consumer)
    assert published == [0, 2, 3]
    assert not consumer.publish_due()


def test_a_replaying_trainer_publishes_nothing_until_it_passes_the_served_version() -> None:
    consumer = Consumer(2, TrainerState(2), replace(POLICY, max_steps=9, publish_interval=1), served_version=4)
    due = []
    for _ in range(4):
        due.append((consumer.version, consumer.publish_due()))
        step(consumer)
    assert due == [(2, False), (3, False), (4, False), (5, True)]


def test_the_final_version_is_published_again_under_a_new_fence() -> None:
    consumer = Consumer(2, TrainerState(4), POLICY, served_version=4)
    assert consumer.finished
    assert consumer.publish_due()
    consumer.published()
    assert not consumer.publish_due()


def test_checkpoints_come_by_interval_on_request_and_at_the_end() -> None:
    consumer = Consumer(1, TrainerState(), replace(POLICY, max_steps=3))
    assert not consumer.checkpoint_due(requested=True)
    step(consumer)
    assert (consumer.checkpoint_due(), consumer.checkpoint_due(requested=True)) == (False, True)
    step(consumer)
    assert consumer.checkpoint_due()
    consumer.committed(consumer.state)
    assert not consumer.checkpoint_due(requested=True)
    step(consumer)
    assert consumer.checkpoint_due()
    assert consumer.committed_state.step == 2


def test_a_run_can_be_shortened_to_what_is_trained_and_lengthened_again() -> None:
    consumer = Consumer(1, TrainerState(), POLICY)
    step(consumer)
    consumer.offer([taken(2, oldest=1), taken(3, oldest=1)])
    consumer.set_max_steps(0)
    assert (consumer.policy.max_steps, consumer.finished, consumer.want()) == (1, True, None)
    consumer.set_max_steps(3)
    assert consumer.want() == 1


def test_an_acknowledged_batch_is_trained_even_when_the_run_is_shortened() -> None:
    consumer = Consumer(1, TrainerState(), POLICY)
    batch = consumer.offer([taken(0), taken(1)])
    assert batch is not None
    assert consumer.accept(batch, 4)
    consumer.set_max_steps(0)
    consumer.trained(batch)
    assert (consumer.version, consumer.policy.max_steps, consumer.finished) == (1, 1, True)


def test_a_batch_beyond_the_shortened_end_is_dropped() -> None:
    consumer = Consumer(1, TrainerState(), POLICY)
    batch = consumer.offer([taken(0), taken(1)])
    assert batch is not None
    assert not consumer.accept(batch, 0)
    assert consumer.finished
    with pytest.raises(BugError, match="not the one offered"):
        consumer.trained(batch)


def test_a_dropped_batch_is_taken_again() -> None:
    consumer = Consumer(1, TrainerState(), POLICY)
    batch = consumer.offer([taken(0), taken(1)])
    consumer.drop()
    assert consumer.want() == 0
    assert consumer.offer([taken(0), taken(1)]) == batch


def attempts(count: int, groups: dict[int, int], first: int = 1) -> list[Attempt]:
    return [Attempt(5, fence, groups) for fence in range(first, first + count)]


def failed(count: int, code: int = 70, error: str = "ValueError") -> list[Exit]:
    return [Exit(fence, code, error) for fence in range(1, count + 1)]


@pytest.mark.parametrize(("crashes", "divisor", "tombstone"), [(1, 1, None), (2, 1, None), (3, 2, None), (4, 2, 11)])
def test_a_step_that_crashes_again_and_again_costs_its_largest_group(
    crashes: int, divisor: int, tombstone: int | None
) -> None:
    evidence = Evidence(attempts=attempts(crashes, {10: 50, 11: 70, 12: 60}), exits=failed(crashes))
    found = precaution(evidence, 4)
    assert (found.step, found.crashes) == (5, crashes)
    assert (found.micro_batch_divisor, found.tombstone) == (divisor, tombstone)


@pytest.mark.parametrize(
    ("code", "error", "counted"),
    [
        (-signal.SIGKILL, "", False),  # preempted, or the machine's memory was full
        (-signal.SIGTERM, "", False),
        (143, "", False),
        (75, "DistError", False),  # another rank, or the store, went away
        (75, "OutOfMemoryError", True),  # this batch did not fit on the device
        (70, "ValueError", True),
        (1, "", True),
        (-signal.SIGSEGV, "", True),
        (-signal.SIGABRT, "", True),
    ],
)
def test_only_a_trainers_own_failures_give_up_a_group(code: int, error: str, counted: bool) -> None:
    evidence = Evidence(attempts=attempts(4, {10: 50, 11: 70}), exits=failed(4, code, error))
    assert precaution(evidence, 5).tombstone == (11 if counted else None)


def test_a_trainer_that_was_lost_with_its_node_says_nothing_about_its_batch() -> None:
    assert precaution(Evidence(attempts=attempts(9, {10: 50})), 5) == Precaution(5, 0)
    mixed = Evidence(attempts=attempts(9, {10: 50}), exits=failed(3))
    assert precaution(mixed, 5) == Precaution(5, 3, micro_batch_divisor=2)


def test_an_exit_is_kept_with_its_code(tmp_path: Path) -> None:
    log = EvidenceLog(tmp_path, 3)
    log.start(0, 2, 4)
    log.attempt(0, {0: 10})
    log.close()
    exited(tmp_path, Exit(3, 75, "OutOfMemoryError"), "rank-1")
    exited(tmp_path, Exit(3, -9), "launcher")
    found = read(tmp_path)
    assert sorted(found.exits, key=lambda one: one.code) == [Exit(3, -9), Exit(3, 75, "OutOfMemoryError")]
    assert (found.problems, len(found.attempts)) == ([], 1)


def test_without_the_poisonous_group_crashes_count_from_one() -> None:
    evidence = Evidence(
        attempts=attempts(4, {10: 50, 11: 70}) + attempts(1, {10: 50, 13: 20}, first=5), exits=failed(5)
    )
    assert precaution(evidence, 4).crashes == 1


def test_a_trained_step_is_no_crash() -> None:
    evidence = Evidence(attempts=attempts(3, {10: 50}), exits=failed(3), entries=[EvidenceEntry(5, 3, "trained", ())])
    assert precaution(evidence, 4).crashes == 0
    assert precaution(Evidence(), 0).crashes == 0


def test_crashes_below_the_checkpoint_are_history() -> None:
    assert precaution(Evidence(attempts=attempts(4, {10: 50}), exits=failed(4)), 6).tombstone is None


# ---- bounds


def test_a_job_that_was_shortened_below_its_checkpoint_is_as_long_as_the_checkpoint() -> None:
    consumer = Consumer(1, TrainerState(3), replace(POLICY, max_steps=2))
    assert (consumer.policy.max_steps, consumer.finished, consumer.want()) == (3, True, None)
    assert Consumer(1, TrainerState(3), replace(POLICY, max_steps=5)).policy.max_steps == 5


def test_nothing_is_taken_over_while_a_batch_is_in_work_or_when_all_is_trained() -> None:
    consumer = Consumer(1, TrainerState(), POLICY)
    assert consumer.offer([]) is None
    batch = consumer.offer([taken(0), taken(1)])
    assert batch is not None
    assert consumer.offer([taken(2), taken(3)]) is None
    consumer.trained(batch)
    assert consumer.want() == 1
    done = Consumer(1, TrainerState(4), POLICY)
    assert done.offer([taken(8), taken(9)]) is None


@pytest.mark.parametrize(("oldest", "told"), [((0, 1), 0), ((1, 0), 0), ((1, 1), 1)])
def test_a_batch_tells_its_oldest_token_in_whatever_order_it_comes(oldest: tuple[int, int], told: int) -> None:
    consumer = Consumer(1, TrainerState(), POLICY)
    batch = consumer.offer([taken(group, oldest=version) for group, version in enumerate(oldest)])
    assert batch is not None
    assert batch.oldest_version == told
    consumer.trained(batch)
    following = consumer.offer([taken(2, oldest=3), taken(3, oldest=2)])
    assert following is not None
    assert following.oldest_version == 2, "of this batch alone"


def test_a_batch_without_any_token_has_no_oldest() -> None:
    batch = Consumer(1, TrainerState(), POLICY).offer([taken(0), taken(1)], ages=lambda group: ())
    assert batch is not None
    assert batch.oldest_version is None


@pytest.mark.parametrize(("max_steps", "trains"), [(0, False), (1, True), (2, True)])
def test_a_batch_is_trained_when_the_run_is_one_step_longer_than_its_own(max_steps: int, trains: bool) -> None:
    consumer = Consumer(1, TrainerState(), POLICY)
    batch = consumer.offer([taken(0), taken(1)])
    assert batch is not None
    assert consumer.accept(batch, max_steps) is trains
    assert consumer.policy.max_steps == max_steps
    assert consumer.want() is None  # it is in work, or the run is over


def test_a_batch_that_was_dropped_is_not_accepted_and_the_new_length_counts() -> None:
    consumer = Consumer(1, TrainerState(), POLICY)
    batch = consumer.offer([taken(0), taken(1)])
    assert batch is not None
    consumer.drop()
    assert not consumer.accept(batch, 2)
    assert consumer.policy.max_steps == 2


def test_a_batch_that_is_only_offered_does_not_lengthen_the_run() -> None:
    consumer = Consumer(1, TrainerState(), POLICY)
    assert consumer.offer([taken(0), taken(1)]) is not None
    consumer.set_max_steps(0)
    assert (consumer.policy.max_steps, consumer.finished) == (0, True)
    consumer.set_max_steps(4)
    assert consumer.want() == 0, "what was taken is forgotten"


@pytest.mark.parametrize(
    ("indices", "fine"), [((0, 1), True), ((1, 0), True), ((0, 2), False), ((0, -1), False), ((1,), True)]
)
def test_a_group_holds_samples_of_its_own_size(indices: tuple[int, ...], fine: bool) -> None:
    group = taken(0)
    group = replace(group, indices=indices, payloads=group.payloads[: len(indices)], metas=group.metas[: len(indices)])
    consumer = Consumer(1, TrainerState(), POLICY)
    if fine:
        assert consumer.offer([group, taken(1)]) is not None
    else:
        with pytest.raises(BugError, match="of 2"):
            consumer.offer([group, taken(1)])


def test_a_complete_group_without_samples_is_a_bug() -> None:
    with pytest.raises(BugError, match="complete with samples"):
        Consumer(1, TrainerState(), POLICY).offer([TakenGroup(0, COMPLETE), taken(1)])


def test_versions_below_the_served_one_are_due_nowhere_and_above_it_by_their_interval() -> None:
    policy = replace(POLICY, max_steps=9, publish_interval=2)
    at = {step: Consumer(2, TrainerState(step), policy, served_version=3) for step in range(2, 7)}
    assert {step: consumer.publish_due() for step, consumer in at.items()} == {
        2: False, 3: False, 4: True, 5: False, 6: True,
    }  # fmt: skip
    assert Consumer(1, TrainerState(3), policy).publish_due(), "nothing is served: whatever version it is"
    consumer = at[4]
    consumer.published(2)
    assert consumer.publish_due(), "the controller serves what it served"
    consumer.published(4)
    assert (consumer.served_version, consumer.publish_due()) == (4, False)
    consumer.published(3)
    assert consumer.served_version == 4, "never backwards"


def test_a_final_version_that_another_served_is_published_all_the_same() -> None:
    consumer = Consumer(2, TrainerState(4), POLICY, served_version=9)
    consumer.published(9)
    assert consumer.publish_due()
    consumer.published(4)
    assert not consumer.publish_due()


def test_a_version_published_before_the_end_was_known_is_published_as_the_final_one() -> None:
    consumer = Consumer(1, TrainerState(), POLICY)
    step(consumer)
    consumer.published()
    consumer.set_max_steps(1)
    assert consumer.finished
    assert consumer.publish_due()


def test_a_checkpoint_of_an_older_state_frees_nothing() -> None:
    consumer = Consumer(1, TrainerState(), POLICY)
    step(consumer)
    older = consumer.state
    step(consumer)
    consumer.committed(consumer.state)
    consumer.committed(older)
    assert consumer.committed_state == TrainerState(2)
    assert not consumer.checkpoint_due(requested=True)
