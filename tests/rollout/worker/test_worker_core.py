"""What a worker holds and owes, whatever comes in whatever order."""

from __future__ import annotations

from dataclasses import replace

from areal.ledger.values import AddOutcome, AddResult, NewSample, SampleMeta
from areal.record.episode_ends import TokenFate
from areal.rollout.contract.values import (
    EvaluationAnswer,
    EvaluationGrant,
    FailureKind,
    Grant,
    SampleDone,
    SampleFailure,
)
from areal.rollout.worker.core import EARLY_S, GroupExpiry, StartEpisode, StartEvaluation, StopGroup, WorkerCore
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.examples import examples


def grant(group=3, missing=(0, 1, 2), attempt=1, floor=0, **fields):
    values = {"group_size": 3, "max_staleness": 2, "row_json": b"{}", "deadline_s": 100.0, **fields}
    return Grant(group=group, attempt=attempt, missing=tuple(missing), floor=floor, **values)


def sample(group=3, index=0, oldest=0, attempt=1):
    meta = SampleMeta(attempt, 1.0, oldest, oldest, 2, 10, False, 77, "w")
    return NewSample(group, index, b"payload", meta)


def failure(group=3, index=0, kind=FailureKind.EXCEPTION):
    return SampleFailure(group, index, 1, kind, "it broke")


def store(core, outcome=AddOutcome.STORED, stored=None):
    for made in core.take_to_store(99):
        core.stored(made, AddResult(outcome, stored))


def no_tokens(_group):
    return False


def test_a_lease_starts_what_is_missing_and_a_second_one_only_what_is_new():
    core = WorkerCore()
    assert core.grant(grant(missing=(0, 2))) == [StartEpisode(3, 0, 1), StartEpisode(3, 2, 1)]
    assert core.grant(grant(missing=(0, 1, 2), attempt=2)) == [StartEpisode(3, 1, 2)]


def test_a_sample_is_told_as_done_only_after_the_ledger_has_it():
    core = WorkerCore()
    core.grant(grant(missing=(0,)))
    core.made(sample())
    assert core.storing
    assert core.report().done == ()
    store(core)
    assert [(done.group, done.index) for done in core.report().done] == [(3, 0)]
    assert core.report().done == ()


def test_a_duplicate_is_told_with_the_figures_that_are_stored():
    core = WorkerCore()
    core.grant(grant(missing=(0,)))
    core.made(sample())
    earlier = SampleMeta(0, 0.25, 0, 1, 2, 9, True, 5, "other")
    store(core, AddOutcome.DUPLICATE, earlier)
    assert core.report().done[0] == SampleDone.of(3, 0, earlier)
    assert core.duplicates_total == 1


def test_a_sample_of_a_finished_group_is_dropped():
    core = WorkerCore()
    core.grant(grant(missing=(0,)))
    core.made(sample())
    store(core, AddOutcome.FINISHED)
    assert core.report().done == ()
    assert core.hello(no_tokens).held == ()
    assert core.grant(grant(missing=(0,), attempt=2)) == [StartEpisode(3, 0, 2)]


def test_a_group_whose_sample_the_ledger_refused_is_given_back_when_it_is_idle():
    core = WorkerCore()
    core.grant(grant(missing=(0, 1)))
    core.made(sample())
    store(core, AddOutcome.FINISHED)
    assert core.report().released == ()
    core.made(sample(index=1))
    store(core)
    report = core.report()
    assert (report.released, [done.index for done in report.done]) == ((3,), [1])


def test_tokens_of_a_sample_are_this_workers_until_the_ledger_has_it_and_counted_once():
    core = WorkerCore()
    core.grant(grant(missing=(0, 1, 2)))
    for index in range(3):
        core.made(sampled(index, 10 + index))
    assert core.unstored_tokens == 33
    first, second, _ = core.take_to_store(99)
    core.stored(first, AddResult(AddOutcome.STORED))
    core.stored(second, AddResult(AddOutcome.FINISHED))
    assert (core.unstored_tokens, core.token_fates) == (12, {TokenFate.ABORTED: 11})
    core.resend()
    core.stored(first, AddResult(AddOutcome.FINISHED))  # trained meanwhile: the controller counted it
    core.commit(4)
    assert (core.unstored_tokens, core.token_fates) == (0, {TokenFate.ABORTED: 23})


def test_tokens_of_a_sample_that_waits_for_the_ledger_and_becomes_too_old_are_stale():
    core = WorkerCore()
    core.grant(grant(missing=(0,)))
    core.made(sampled(0, 10))
    core.grant(grant(missing=(0,), attempt=2, floor=2))
    assert (core.unstored_tokens, core.token_fates) == (0, {TokenFate.STALE: 10})


def sampled(index: int, tokens: int) -> NewSample:
    made = sample(index=index)
    return replace(made, meta=replace(made.meta, sampled=tokens))


def test_a_sample_that_is_missed_again_is_stored_again_not_made_again():
    core = WorkerCore()
    core.grant(grant(missing=(0,)))
    core.made(sample())
    store(core)
    core.report()
    assert core.grant(grant(missing=(0,), attempt=2)) == []
    store(core)
    assert len(core.report().done) == 1


def test_a_sample_that_became_too_old_is_made_again():
    core = WorkerCore()
    core.grant(grant(missing=(0,)))
    core.made(sample(oldest=1))
    store(core)
    assert core.grant(grant(missing=(0,), attempt=2, floor=2)) == [StartEpisode(3, 0, 2)]


def test_revoking_stops_work_and_keeps_what_was_made():
    core = WorkerCore()
    core.grant(grant())
    core.made(sample(index=0))
    assert core.revoke(3) == [StopGroup(3)]
    assert core.revoke(3) == []
    core.made(sample(index=1))  # ended at the same moment: nobody waits for it
    store(core)
    core.resend()
    assert [made.index for made in core.take_to_store(99)] == [0]


def test_committed_groups_are_forgotten():
    core = WorkerCore()
    for group in (3, 4):
        core.grant(grant(group, missing=(0,)))
        core.made(sample(group))
    store(core)
    core.commit(4)
    assert sorted(core.samples) == [4]
    core.resend()
    assert [made.group for made in core.take_to_store(99)] == [4]


def test_a_new_stream_hears_everything_again():
    core = WorkerCore()
    core.grant(grant(missing=(0, 1, 2)))
    core.grant(grant(4, missing=(0,)))
    core.made(sample(index=0))
    store(core)
    core.made(sample(index=1))
    core.failed(failure(4, 0))
    core.report()
    hello = core.hello(lambda group: group == 3)
    assert [(done.group, done.index) for done in hello.done] == [(3, 0)]
    assert [(held.group, held.indices, held.has_tokens) for held in hello.held] == [(3, (1, 2), True)]
    assert [item.group for item in hello.failures] == [4]
    assert core.report().done == ()


def test_a_failure_is_told_until_the_sample_is_asked_for_again_or_the_group_is_over():
    core = WorkerCore()
    core.grant(grant(missing=(0,)))
    core.failed(failure())
    assert len(core.report().failures) == 1
    assert len(core.hello(no_tokens).failures) == 1
    core.grant(grant(missing=(0,), attempt=2))
    assert core.hello(no_tokens).failures == ()
    core.failed(failure())
    core.revoke(3)
    assert core.hello(no_tokens).failures == ()


def test_what_the_ledger_could_not_take_waits():
    core = WorkerCore()
    core.grant(grant(missing=(0,)))
    core.made(sample())
    core.not_stored(core.take_to_store(99))
    assert core.storing
    assert core.hello(no_tokens).held[0].indices == (0,)


def test_a_groups_time_runs_only_while_a_server_may_serve_it():
    core = WorkerCore()
    core.grant(grant(floor=5))
    core.tick(0.0, lambda floor: True)
    assert core.tick(1000.0, lambda floor: False) == []
    assert core.tick(1050.0, lambda floor: floor == 5) == []
    assert core.tick(1101.0, lambda floor: True) == [GroupExpiry(3, (0, 1, 2), False)]


def test_late_samples_complete_a_group_that_has_two_whole_ones():
    core = WorkerCore()
    core.grant(grant(missing=(0, 1), group_size=4))
    core.tick(0.0, lambda _: True)
    assert core.tick(100.0 - EARLY_S, lambda _: True) == [GroupExpiry(3, (0, 1), True)]


def test_the_floor_of_the_newest_lease_counts():
    core = WorkerCore()
    core.grant(grant(floor=4))
    core.grant(grant(floor=5))
    assert core.groups[3].grant.floor == 5


def test_orders_of_an_older_controller_are_not_heard():
    core = WorkerCore()
    assert core.hears(2)
    assert not core.hears(1)
    assert core.hears(2)


def test_draining_gives_every_group_back():
    core = WorkerCore()
    core.grant(grant(3))
    core.grant(grant(4))
    assert core.release() == [StopGroup(3), StopGroup(4)]
    assert core.report().released == (3, 4)
    assert core.report().released == ()


def test_an_evaluation_row_is_run_once_and_told_again():
    core = WorkerCore()
    row = EvaluationGrant("3.f1", 7, 3, b"{}")
    assert core.grant_evaluation(row) == [StartEvaluation(row)]
    assert core.grant_evaluation(row) == []
    core.evaluated(EvaluationAnswer("3.f1", 7, 0.5, 3, 4))
    assert len(core.report().evaluated) == 1
    assert core.grant_evaluation(row) == []
    assert len(core.report().evaluated) == 1
    assert len(core.hello(no_tokens).evaluated) == 1


def test_an_evaluation_row_lost_to_infrastructure_is_run_again():
    core = WorkerCore()
    row = EvaluationGrant("3.f1", 7, 3, b"{}")
    core.grant_evaluation(row)
    core.evaluated(EvaluationAnswer("3.f1", 7, kind=FailureKind.INFRA))
    assert core.grant_evaluation(row) == [StartEvaluation(row)]


class Life(RuleBasedStateMachine):
    """A controller that loses streams, a ledger that loses data, episodes that end in any way."""

    groups = st.integers(0, 4)
    indices = st.integers(0, 2)

    def __init__(self):
        super().__init__()
        self.core = WorkerCore()
        self.running = set()
        self.ledger = set()
        self.told = set()
        self.attempt = 0

    def do(self, actions):
        for action in actions:
            if isinstance(action, StartEpisode):
                key = (action.group, action.index)
                assert key not in self.running, "an episode was started twice"
                self.running.add(key)
            elif isinstance(action, StopGroup):
                self.running = {key for key in self.running if key[0] != action.group}

    @rule(group=groups)
    def lease(self, group):
        if group >= self.core.committed:
            self.attempt += 1
            missing = [i for i in range(3) if (group, i) not in self.ledger]
            self.do(self.core.grant(grant(group, missing, self.attempt)))

    @rule(group=groups)
    def revoke(self, group):
        self.do(self.core.revoke(group))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), well=st.booleans())
    def end(self, data, well):
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(key)
        if well:
            self.core.made(sample(*key))
        else:
            self.core.failed(failure(*key))

    @rule(outcome=st.sampled_from(["stored", "away"]))
    def write(self, outcome):
        batch = self.core.take_to_store(2)
        if outcome == "away":
            self.core.not_stored(batch)
            return
        for made in batch:
            known = (made.group, made.index) in self.ledger
            self.ledger.add((made.group, made.index))
            self.core.stored(made, AddResult(AddOutcome.DUPLICATE if known else AddOutcome.STORED, made.meta))

    @rule()
    def report(self):
        self.told |= {(done.group, done.index) for done in self.core.report().done}

    @rule()
    def new_stream(self):
        self.told = {(done.group, done.index) for done in self.core.hello(no_tokens).done}

    @rule(keep=st.sets(st.tuples(groups, indices)))
    def ledger_restarts(self, keep):
        self.ledger &= keep
        self.told = set()
        self.core.resend()

    @rule(group=groups)
    def commit(self, group):
        if group > self.core.committed:
            self.core.commit(group)
            self.ledger = {key for key in self.ledger if key[0] >= group}
            self.told = {key for key in self.told if key[0] >= group}

    @invariant()
    def running_is_what_the_core_waits_for(self):
        waited = {(group, i) for group, held in self.core.groups.items() for i in held.working}
        assert waited == self.running

    @invariant()
    def nothing_is_told_that_the_ledger_does_not_have(self):
        assert self.told <= self.ledger

    def teardown(self):
        """Once faults end, everything made and not committed gets into the ledger and is told."""
        kept = {(group, i) for group, made in self.core.samples.items() for i in made}
        while self.core.storing:
            self.write("stored")
        self.new_stream()
        assert kept <= self.ledger
        assert kept <= self.told
        super().teardown()


Life.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestLife = Life.TestCase
