"""The controller's core, driven by hand: each rule as a small story with its own clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from areal.errors import BugError, ConfigError, FencedError, InfraError
from areal.ledger.state import LedgerModel
from areal.ledger.values import CloseStatus, SampleMeta
from areal.rollout.controller.core import Controller, Rebuilt
from areal.rollout.controller.decisions import (
    AdvanceLedger,
    Answer,
    CloseGroup,
    Decision,
    FloorChanged,
    GrantLease,
    JournalCursor,
    JournalTombstone,
    KeepServed,
    LeaseEvaluation,
    RecordEvaluation,
    ReopenGroup,
    Resend,
    Revoke,
    ScanLedger,
    StopWorkers,
)
from areal.rollout.controller.reports import (
    EvaluationReport,
    FailureKind,
    FailureReport,
    HeldReport,
    RefusalReport,
    SampleReport,
    ServerReport,
    TrainerReport,
    Weights,
    WorkerReport,
)
from areal.rollout.controller.settings import Settings
from areal.rollout.controller.status import idle_reason
from hypothesis import given
from hypothesis import strategies as st

B, N = 2, 2
SETTINGS = Settings(
    group_size=N,
    batch_groups=B,
    max_steps=10,
    max_staleness=1,
    max_concurrent=100,
    group_deadline_s=60.0,
    filter_zero_variance=True,
)
D = TypeVar("D")


def weights(version: int, fence: int = 1, *, rollback: bool = False) -> Weights:
    return Weights(f"{version}.f{fence}", version, fence, "path", "digest", rollback)


@dataclass
class Bench:
    """A core, a ledger model that does at once what it decides, and a journal that does so when told."""

    settings: Settings = SETTINGS
    rebuilt: Rebuilt = field(default_factory=lambda: Rebuilt(view=LedgerModel().scan()))
    journalling: bool = True
    ledger: LedgerModel = field(default_factory=LedgerModel)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.core = Controller(self.settings, self.rebuilt, self.now)
        self.seen: list[Decision] = []
        self.unwritten: list[JournalTombstone | JournalCursor] = []
        self.tickets = 100
        self.run()

    def run(self) -> list[Decision]:
        """Carry out everything that is decided, and what follows from it."""
        new: list[Decision] = []
        while decisions := self.core.decide(self.now):
            new += decisions
            for decision in decisions:
                self._carry(decision)
        self.seen += new
        return new

    def _carry(self, decision: Decision) -> None:
        match decision:
            case JournalTombstone() | JournalCursor():
                self.unwritten.append(decision)
                if self.journalling:
                    self.write()
            case CloseGroup(epoch, group, outcome, indices, short):
                answer = self.ledger.close(1, group, outcome, N, len(indices) if short else None)
                missing = answer.missing if answer.status is CloseStatus.MISSING else ()
                self.core.closed(self.now, epoch, group, answer.outcome or outcome, missing)
            case ScanLedger(ticket, epoch):
                self.core.scanned(self.now, ticket, epoch, self.ledger.scan())
            case AdvanceLedger(cursor, fence):
                self.ledger.advance(1, cursor, fence or None)
            case ReopenGroup(group):
                self.ledger.reopen(1, group)

    def write(self) -> None:
        """The journal is on disk."""
        entries, self.unwritten = self.unwritten, []
        for entry in entries:
            if isinstance(entry, JournalTombstone):
                self.core.journalled(entry.group, entry.reason)
            else:
                self.core.cursor_journalled(entry.ticket)

    def all(self, kind: type[D]) -> list[D]:
        return [decision for decision in self.seen if isinstance(decision, kind)]

    # ---- peers

    def worker(
        self, name: str = "w", *, capacity: int = 100, incarnation: str = "1", **report: object
    ) -> list[Decision]:
        self.core.worker(self.now, WorkerReport(name, incarnation, capacity, **report))  # type: ignore[arg-type]
        return self.run()

    def server(self, version: int, name: str = "s", **report: object) -> list[Decision]:
        values = {"ready": version >= 0, **report}
        self.core.server(ServerReport(name, "1", "a:1", f"{version}.f1", version, **values))  # type: ignore[arg-type]
        return self.run()

    def done(self, group: int, rewards: Iterable[float] = (0.0, 1.0), *, version: int = 0, eta: int = 1) -> None:
        reports = []
        for index, reward in enumerate(rewards):
            meta = SampleMeta(1, reward, version, version, eta, 1, False, 0)
            self.ledger.add_sample(group, index, b"x", meta)
            reports.append(SampleReport(group, index, reward, version, version, eta))
        self.worker(done=tuple(reports))

    def ask(self, call: str, *arguments: object, **named: object) -> Answer | None:
        self.tickets += 1
        getattr(self.core, call)(self.tickets, *arguments, **named)
        self.run()
        return next((a for a in self.all(Answer) if a.ticket == self.tickets), None)

    def later(self, seconds: float) -> list[Decision]:
        """Time passes while every peer beats."""
        passed: list[Decision] = []
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.25)
            for worker in list(self.core.crew.workers.values()):
                self.core.worker(self.now, WorkerReport(worker.worker_id, worker.incarnation, worker.capacity))
            for server in list(self.core.fleet.servers.values()):
                progress = server.report.progress + 1
                self.core.server(replace(server.report, progress=progress, tokens_total=progress))
            self.core.tick(self.now)
            passed += self.run()
        return passed

    def trained(self, steps: int) -> None:
        """A trainer attaches and takes this many batches of two complete groups, in order."""
        self.ask("attach", 1, 0, 0)
        for step in range(steps):
            for group in (2 * step, 2 * step + 1):
                self.done(group, version=step)
            assert self.ask("advance", 1, 2 * step + 2, step) == Answer(self.tickets)
            self.ask("publish", 1, weights(step + 1))
            self.server(step + 1)


def started(settings: Settings = SETTINGS, **bench: object) -> Bench:
    """A bench with version 0 on a server and one worker."""
    made = Bench(settings, **bench)  # type: ignore[arg-type]
    made.ask("publish", 1, weights(0))
    made.server(0)
    made.worker()
    return made


def leased(bench: Bench) -> list[int]:
    return [grant.group for grant in bench.all(GrantLease)]


# ---- admission


def test_admission_is_dense_and_bounded_by_the_version_that_servers_hold() -> None:
    bench = started()
    assert leased(bench) == [0, 1, 2, 3]
    bench.ask("publish", 1, weights(1))
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
    assert "no weights are published" in idle_reason(bench.core)
    bench.ask("publish", 1, weights(0))
    bench.worker()
    assert not leased(bench)
    assert "no generation server is ready" in idle_reason(bench.core)
    bench.server(-1)
    assert not leased(bench)
    bench.server(0)
    assert leased(bench) == [0, 1, 2, 3]


def test_the_byte_budget_closes_the_gate_and_asks_for_a_checkpoint() -> None:
    bench = started(replace(SETTINGS, bytes_per_group=10, budget_bytes=40, max_staleness=9))
    assert leased(bench) == [0, 1, 2, 3]
    assert "byte budget is 100% full" in idle_reason(bench.core)
    assert not bench.core.desk.checkpoint_now
    bench.ask("attach", 1, 0, 0)
    bench.done(0)
    bench.done(1)
    bench.ask("advance", 1, 2, 0)
    assert bench.core.desk.checkpoint_now
    bench.core.trainer(TrainerReport(1, 1, 2, 2))
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


def test_equal_rewards_are_kept_when_the_job_masks() -> None:
    bench = started(replace(SETTINGS, filter_zero_variance=False))
    bench.done(0, (1.0, 1.0))
    assert bench.ledger.closed == {0: "complete"}


def test_a_users_failure_ends_the_group_with_its_traceback() -> None:
    bench = started()
    bench.worker(failures=(FailureReport(1, 0, 1, FailureKind.EXCEPTION, "KeyError: 'x'"),))
    (tombstone,) = bench.all(JournalTombstone)
    assert (tombstone.group, tombstone.reason) == (1, "rejected")
    assert "KeyError" in tombstone.detail
    assert Revoke("w", 1) in bench.seen


def test_an_infrastructure_failure_is_tried_again_with_the_next_attempt() -> None:
    bench = started()
    bench.worker(failures=(FailureReport(0, 1, 1, FailureKind.INFRA, "connection refused"),))
    assert leased(bench) == [0, 1, 2, 3]
    bench.later(0.5)
    again = bench.all(GrantLease)[-1]
    assert (again.group, again.attempt, again.missing) == (0, 2, (1,))
    assert not bench.all(JournalTombstone)


def test_only_patience_and_many_tries_together_end_a_group_for_infrastructure() -> None:
    bench = started(replace(SETTINGS, infra_tries=3, infra_patience_s=30.0, group_deadline_s=1e6))
    for attempt in range(1, 9):
        bench.worker(failures=(FailureReport(0, 1, attempt, FailureKind.INFRA, "gone"),))
        bench.later(8.0)
        if bench.now < 30.0:
            assert not bench.all(JournalTombstone)
    assert [t.reason for t in bench.all(JournalTombstone)] == ["infra"]


def test_a_sample_that_the_ledger_lost_is_made_again() -> None:
    bench = started()
    report = [SampleReport(0, i, float(i), 0, 0, 1) for i in range(N)]
    bench.ledger.add_sample(0, 0, b"x", SampleMeta(1, 0.0, 0, 0, 1, 1, False, 0))
    bench.worker(done=tuple(report))
    bench.later(3.0)
    assert bench.all(GrantLease)[-1].missing == (1,)


def test_a_deadline_runs_only_while_a_server_makes_tokens_and_keeps_whole_samples() -> None:
    settings = replace(SETTINGS, group_size=3, group_deadline_s=5.0, max_concurrent=2)
    bench = started(settings)
    for index in range(2):
        bench.ledger.add_sample(0, index, b"x", SampleMeta(1, float(index), 0, 0, 1, 1, False, 0))
    bench.worker(done=tuple(SampleReport(0, i, float(i), 0, 0, 1) for i in range(2)))
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
    assert bench.core.stalled.startswith("Filtered: 3 groups")
    admitted = bench.core.book.next_admission
    bench.run()
    assert bench.core.book.next_admission == admitted
    bench.done(3)
    assert not bench.core.stalled


# ---- η and floors


def test_a_floor_loosens_when_a_lower_group_is_tombstoned() -> None:
    bench = started(replace(SETTINGS, max_staleness=1))
    assert [grant.floor for grant in bench.all(GrantLease)] == [-1, -1, 0, 0]
    bench.done(0, (1.0, 1.0))
    assert FloorChanged("w", 2, -1) in bench.seen


def test_a_group_keeps_the_eta_of_its_first_surviving_token() -> None:
    bench = started()
    bench.ledger.add_sample(3, 0, b"x", SampleMeta(1, 0.0, 0, 0, 1, 1, False, 0))
    bench.worker(done=(SampleReport(3, 0, 0.0, 0, 0, 1),))
    bench.ask("set_hot", max_staleness=4)
    bench.worker(incarnation="2", held=())
    again = {grant.group: grant for grant in bench.all(GrantLease) if grant.attempt == 2}
    assert (again[3].max_staleness, again[3].floor) == (1, 0)
    assert (again[2].max_staleness, again[2].floor) == (4, -3)


def test_groups_that_wait_for_a_version_hold_no_slot_and_give_up_their_place() -> None:
    bench = started(replace(SETTINGS, max_staleness=0, max_concurrent=2))
    bench.trained(2)
    bench.worker(capacity=2)
    assert bench.core.found.in_work == 2
    bench.ledger.commit(1, 4)
    bench.core.trainer(TrainerReport(1, 2, 4, 4))
    bench.ledger.recover(2, 0)
    bench.ask("attach", 2, 0, 0)
    bench.ask("publish", 2, weights(0, 2, rollback=True))
    bench.server(0)
    bench.worker(capacity=2)
    assert bench.core.found.waiting_for_version >= 2
    assert leased(bench)[-2:] == [0, 1]
    assert {decision.group for decision in bench.all(Revoke)} >= {4, 5}


def test_a_hot_eta_that_can_never_be_met_is_refused() -> None:
    bench = started(replace(SETTINGS, max_staleness=2, publish_interval=3))
    answer = bench.ask("set_hot", max_staleness=1)
    assert answer is not None
    assert isinstance(answer.error, ConfigError)
    assert bench.core.settings.max_staleness == 2


def test_lowering_max_steps_ends_what_lies_beyond() -> None:
    bench = started()
    bench.ask("set_hot", max_steps=1)
    assert [(t.group, t.reason) for t in bench.all(JournalTombstone)] == [(2, "ended"), (3, "ended")]
    bench.ask("set_hot", max_steps=2)
    assert leased(bench)[-2:] == [4, 5]


# ---- workers and servers


def test_a_dead_workers_groups_are_leased_to_another_after_a_scan() -> None:
    bench = started()
    bench.ledger.add_sample(0, 0, b"x", SampleMeta(1, 0.0, 0, 0, 1, 1, False, 0))  # stored, but never told
    dead = bench.core.crew.workers.pop("w")
    bench.worker("v")
    bench.core.crew.workers["w"] = dead
    for _ in range(6):
        bench.now += 0.5
        bench.core.worker(bench.now, WorkerReport("v", "1", 100))
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
    held = tuple(HeldReport(group, 1, (0, 1), 1, True) for group in (0, 1, 2))
    bench.worker(held=held)
    again = [grant.group for grant in bench.all(GrantLease) if grant.attempt > 1]
    assert again == [3]


def test_a_restarted_controller_adopts_what_workers_hold_and_waits_for_the_rest() -> None:
    bench = Bench(rebuilt=Rebuilt(view=LedgerModel().scan(), served=weights(0)))
    bench.server(0)
    bench.worker(held=(HeldReport(2, 3, (1,), 1, True), HeldReport(0, 1, (0, 1), 1, True)))
    assert 1 not in leased(bench)
    bench.later(3.0)
    assert 1 in leased(bench)
    assert [grant.missing for grant in bench.all(GrantLease) if grant.group == 2] == [(0,)]


def test_weights_that_every_server_refused_three_times_are_a_named_stall() -> None:
    bench = started()
    bench.ask("publish", 1, weights(1))
    bench.server(0, refused=RefusalReport("1.f1", 2, "tensor w: checksum"))
    assert not bench.core.stalled
    bench.server(0, refused=RefusalReport("1.f1", 3, "tensor w: checksum"))
    assert "1.f1" in bench.core.stalled
    assert "tensor w" in bench.core.stalled
    bench.server(1)
    assert not bench.core.stalled


# ---- the trainer


def test_a_cursor_is_acknowledged_only_when_it_is_in_the_journal() -> None:
    bench = started()
    bench.ask("attach", 1, 0, 0)
    bench.done(0)
    bench.done(1)
    bench.journalling = False
    assert bench.ask("advance", 1, 2, 0) is None
    bench.write()
    bench.run()
    assert bench.all(Answer)[-1] == Answer(bench.tickets)
    assert bench.ask("advance", 1, 2, 0) == Answer(bench.tickets)


def test_a_batch_that_changed_while_it_was_taken_is_refused() -> None:
    bench = started()
    bench.ask("attach", 1, 0, 0)
    bench.done(0)
    bench.done(1, (1.0, 1.0))
    answer = bench.ask("advance", 1, 2, 0)
    assert answer is not None
    assert isinstance(answer.error, InfraError)
    bench.done(2)
    assert bench.ask("advance", 1, 3, 0) == Answer(bench.tickets)


def test_an_old_trainer_is_fenced_and_a_broken_checkpoint_is_a_bug() -> None:
    bench = started()
    bench.ask("attach", 2, 0, 0)
    for call, arguments in (("attach", (1, 0, 0)), ("advance", (1, 2, 0)), ("publish", (1, weights(1)))):
        answer = bench.ask(call, *arguments)
        assert answer is not None
        assert isinstance(answer.error, FencedError)
    broken = bench.ask("attach", 3, 3, 1)
    assert broken is not None
    assert isinstance(broken.error, BugError)


def test_nothing_below_the_cursor_is_worked_on_and_a_fall_back_makes_it_again() -> None:
    bench = started()
    bench.trained(2)
    bench.ledger = LedgerModel()
    bench.ledger.recover(1, 0, 4)
    bench.core.ledger_restarted()
    bench.run()
    bench.later(5.0)
    assert Resend() in bench.seen
    assert all(grant.group >= 4 for grant in bench.all(GrantLease) if grant.attempt > 1)
    bench.ledger.recover(2, 0)
    assert bench.ask("attach", 2, 0, 0) == Answer(bench.tickets)
    bench.later(5.0)
    assert {grant.group for grant in bench.all(GrantLease)[-8:]} >= {0, 1, 2, 3}


def test_poison_is_the_one_tombstone_of_a_complete_group() -> None:
    bench = started()
    bench.ask("attach", 1, 0, 0)
    bench.done(0)
    assert bench.ask("propose", 1, 0, "poison", "three crashes") == Answer(bench.tickets)
    assert bench.ledger.closed == {0: "poison"}
    assert bench.ask("propose", 1, 0, "poison", "") == Answer(bench.tickets)
    assert bench.ask("propose", 1, 1, "filtered", "") == Answer(bench.tickets, accepted=False)


def test_published_versions_only_go_on() -> None:
    bench = started()
    for policy, accepted in ((weights(2), True), (weights(1), False), (weights(2), True), (weights(1, 2), True)):
        assert bench.ask("publish", policy.fence, policy) == Answer(bench.tickets, accepted=accepted)
    assert [kept.weights.policy_id for kept in bench.all(KeepServed)] == ["0.f1", "2.f1", "1.f2"]


def test_a_ledger_that_forgot_the_trainers_position_is_read_again() -> None:
    bench = started()
    bench.trained(2)
    bench.ledger.commit(1, 4)
    before = bench.ledger.fork()
    bench.ledger.recover(2, 0)
    bench.ask("attach", 2, 0, 0)
    bench.ledger = before  # the tail with the trainer's recover is lost
    bench.core.ledger_restarted()
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
        bench.worker(incarnation="2", evaluated=(EvaluationReport("0.f1", row, score, 0, row),))
    (record,) = bench.all(RecordEvaluation)
    assert (record.mean, record.rows, record.oldest_version, record.newest_version) == (0.5, 3, 0, 2)
    bench.ask("publish", 1, weights(1))
    bench.ask("publish", 1, weights(2))
    bench.server(2)
    assert bench.all(LeaseEvaluation)[-1].evaluation_id == "2.f1"


def test_a_row_without_a_score_is_tried_again_only_for_infrastructure() -> None:
    bench = started(replace(SETTINGS, evaluation_interval=2, evaluation_rows=2))
    bench.worker(
        evaluated=(EvaluationReport("0.f1", 0, 0.0, -1, -1, "infra"), EvaluationReport("0.f1", 1, 0, 0, 0, "user"))
    )
    bench.later(1.0)
    assert [row.row for row in bench.all(LeaseEvaluation)] == [0, 1, 0]
    bench.worker(evaluated=(EvaluationReport("0.f1", 0, 1.0, 0, 0),))
    (record,) = bench.all(RecordEvaluation)
    assert (record.rows, record.mean, record.failed_rows) == (1, 1.0, 1)


def test_the_run_ends_after_the_last_evaluation_with_nothing_left_open() -> None:
    settings = replace(SETTINGS, max_steps=1, evaluation_interval=5, evaluation_rows=1, evaluation_at_start=False)
    bench = started(settings)
    bench.ask("attach", 1, 0, 0)
    bench.done(0)
    bench.done(1)
    bench.ask("advance", 1, 2, 0)
    bench.ask("publish", 1, weights(1))
    bench.core.trainer(TrainerReport(1, 1, 2, 2, finished=True))
    bench.run()
    assert not bench.core.done
    bench.server(1)
    assert bench.all(LeaseEvaluation)[-1] == LeaseEvaluation("w", "1.f1", 0, 1)
    bench.worker(evaluated=(EvaluationReport("1.f1", 0, 1.0, 1, 1),))
    assert bench.core.done
    assert StopWorkers() in bench.seen
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
            assert ledger.closed[group] == "filtered"
