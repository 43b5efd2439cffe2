"""What people are told of the controller: its figures, and the one cause for which nothing is admitted."""

from __future__ import annotations

from dataclasses import replace

from areal.errors import Kind
from areal.net.status import idle_to_wire, kind_to_wire
from areal.observe.live import IdleCause
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.record.episode_ends import GENERATED, REPREFILLED, TokenFate
from areal.rollout.contract.values import FailureKind, SampleFailure
from areal.rollout.controller.gauges import Gauges, idle_of
from areal.rollout.controller.inputs import AttachTrainer, PublishWeights
from areal.rollout.controller.service import rollout_status
from areal.v1 import common_pb2 as common
from areal.v1 import rollout_pb2 as rollout
from controller_bench import SETTINGS, Bench, started, weights
from prometheus_client import generate_latest


class Shown:
    """A controller's metrics, as they are scraped."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.progress = ProgressCounter()
        self.metrics = RoleMetrics("controller", "job")
        self.gauges = Gauges(self.metrics, WaitRegistry("controller"), self.progress)

    def at(self, now: float) -> dict[str, float]:
        """Figures by name and its own labels."""
        self.gauges.show(self.bench.core, now)
        found = {}
        for line in generate_latest(self.metrics.registry).decode().splitlines():
            if line.startswith("areal_"):
                name, _, value = line.rpartition(" ")
                name, _, labels = name.partition("{")
                own = [
                    word
                    for word in labels.rstrip("}").split(",")
                    if word and word.split("=")[0] not in ("role", "rljob", "namespace")
                ]
                found[name + "".join(f" {word}" for word in sorted(own))] = float(value)
        return found


def test_figures_are_those_of_now_and_counts_grow_by_what_is_new() -> None:
    bench = started(replace(SETTINGS, bytes_per_group=10, budget_bytes=1000))
    shown = Shown(bench)
    bench.done(0)
    bench.done(1, (1.0, 1.0))
    first = shown.at(1.0)
    assert first["areal_replay_ready_groups"] == 1
    assert first["areal_replay_bytes"] == 10 * len(bench.core.book.groups)
    assert (first["areal_replay_budget_bytes"], first["areal_rollout_capacity"]) == (1000, 100)
    assert first["areal_rollouts_inflight"] == bench.core.last_round.in_work == 3
    assert first['areal_groups_total outcome="complete"'] == 1
    assert first['areal_tombstones_total reason="filtered"'] == 1
    assert first['areal_episode_ends_total end="complete"'] == 4
    bench.done(2)
    bench.worker(failures=(SampleFailure(3, 0, 1, FailureKind.EXCEPTION, "KeyError"),))
    assert shown.at(1.4) == first, "shown twice a second"
    second = shown.at(1.5)
    assert second['areal_groups_total outcome="complete"'] == 2
    assert second['areal_groups_total outcome="tombstoned"'] == 2
    assert second['areal_tombstones_total reason="rejected"'] == 1
    assert second['areal_episode_ends_total end="complete"'] == 6
    assert second["areal_replay_ready_groups"] == 2
    assert second["areal_staleness_violations_total"] == 0


def test_tokens_are_shown_by_their_fate_and_those_in_flight_apart() -> None:
    bench = started(SETTINGS)
    shown, tokens = Shown(bench), bench.core.book.tally.tokens
    tokens.told("server/s", "1", {GENERATED: 100})
    tokens.told("worker/w", "1", {TokenFate.ABORTED: 40, REPREFILLED: 7})
    first = shown.at(1.0)
    assert first['areal_generation_tokens_total fate="aborted"'] == 40
    assert first['areal_generation_tokens_total fate="served"'] == 0
    assert (first["areal_generation_tokens_in_flight"], first["areal_generation_reprefilled_tokens_total"]) == (60, 7)
    tokens.told("worker/w", "1", {TokenFate.ABORTED: 45, REPREFILLED: 9})
    second = shown.at(2.0)
    assert second['areal_generation_tokens_total fate="aborted"'] == 45
    assert (second["areal_generation_tokens_in_flight"], second["areal_generation_reprefilled_tokens_total"]) == (55, 9)
    assert rollout_status("job", bench.core, []).token_fates["aborted"] == 45


def test_groups_with_some_samples_are_partial() -> None:
    bench = started(replace(SETTINGS, group_size=2))
    bench.done(0, (1.0,))
    bench.done(1, (1.0,))
    assert Shown(bench).at(1.0)["areal_replay_partial_groups"] == 2


def test_each_cause_for_which_nothing_is_admitted_has_its_name() -> None:
    def cause(bench: Bench) -> IdleCause | None:
        idle = idle_of(bench.core)
        return idle.cause if idle else None

    assert cause(Bench()) is IdleCause.NO_WEIGHTS
    bench = Bench()
    bench.ask(PublishWeights(1, weights(0)))
    assert cause(bench) is IdleCause.NO_SERVER
    bench.server(0)
    assert cause(bench) is IdleCause.NO_WORKER
    assert cause(started()) is IdleCause.GATE_CLOSED
    assert cause(started(replace(SETTINGS, max_steps=2))) is IdleCause.ALL_ADMITTED
    assert cause(started(replace(SETTINGS, max_concurrent=4))) is IdleCause.CONCURRENCY
    assert cause(started(replace(SETTINGS, max_staleness=9, budget_bytes=3))) is IdleCause.BYTES_FULL
    roomy = started(replace(SETTINGS, max_staleness=9, max_concurrent=5))
    assert cause(roomy) is IdleCause.CONCURRENCY
    roomy.done(0)
    assert cause(roomy) is IdleCause.CONCURRENCY
    few = Bench(replace(SETTINGS, max_staleness=9))
    few.ask(PublishWeights(1, weights(0)))
    few.server(0)
    few.worker(capacity=2)
    assert cause(few) is None, "the gate has room and somebody works"
    gone = tuple(SampleFailure(0, index, 1, FailureKind.INFRA, "gone") for index in range(2))
    few.worker(capacity=2, failures=gone)
    assert cause(few) is IdleCause.NO_PLACE
    few.core.desk.finished = True
    assert cause(few) is IdleCause.LAST_EVALUATION
    few.core.done = True
    assert cause(few) is IdleCause.OVER
    stalled = started(replace(SETTINGS, max_filtered_per_step=1))
    stalled.ask(AttachTrainer(1, 0))
    stalled.done(0, (1.0, 1.0))
    assert cause(stalled) is IdleCause.STALLED


def test_the_status_says_who_works_on_what_and_what_was_and_is_being_measured() -> None:
    bench = started(replace(SETTINGS, bytes_per_group=10, budget_bytes=1000, evaluation_interval=2, evaluation_rows=3))
    bench.worker("v", capacity=0)
    recorded = [
        {"policy_id": "0.f0", "rows": 2, "failed_rows": 1, "mean": 0.5, "oldest_version": 0, "newest_version": 1},
        {"policy_id": "9.f0", "rows": 2, "mean": 0.25, "oldest_version": 9, "newest_version": 9},
    ]
    status = rollout_status("job", bench.core, recorded)
    assert [(one.worker_id, one.groups) for one in status.workers] == [("v", 0), ("w", 4)]
    assert [(one.policy_id, one.rows, one.mean) for one in status.evaluations] == [
        ("0.f0", 3, 0.5), ("9.f0", 2, 0.25), ("0.f1", 3, 0.0),
    ]  # fmt: skip
    assert [(one.oldest_version, one.newest_version) for one in status.evaluations] == [(0, 1), (9, 9), (0, 0)]
    assert (status.reserved_bytes, status.budget_bytes, status.leased, status.complete_waiting) == (40, 1000, 4, 0)
    assert (status.served_policy_id, [server.ready for server in status.fleet]) == ("0.f1", [True])
    assert status.idle_cause == idle_to_wire(IdleCause.GATE_CLOSED)
    assert status.idle_reason.startswith("the gate is closed at version 0")
    assert (status.stalled, status.stalled_by, status.finished) == ("", common.FAULT_KIND_UNSPECIFIED, False)
    quiet = Bench(replace(SETTINGS, max_staleness=9))
    quiet.ask(PublishWeights(1, weights(0)))
    quiet.server(0)
    quiet.worker(capacity=2)
    assert rollout_status("job", quiet.core, []).idle_reason == ""
    assert rollout_status("job", quiet.core, []).idle_cause == rollout.IDLE_CAUSE_UNSPECIFIED
    assert rollout_status("job", Bench().core, []).served_policy_id == ""
    stalled = started(replace(SETTINGS, max_filtered_per_step=1))
    stalled.done(0, (1.0, 1.0))
    told = rollout_status("job", stalled.core, [])
    assert (told.stalled, told.stalled_by) == (stalled.core.stalled, kind_to_wire(Kind.DATA))
