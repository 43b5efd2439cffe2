"""Traces: which groups are chosen, how spans find their parents, and that a collector that is away costs nothing."""

from __future__ import annotations

import logging
import sys
import threading

import numpy as np
import pytest
from areal.distribution import install
from areal.ledger.values import NewSample, SampleMeta
from areal.observe import otlp
from areal.observe.metrics import RoleMetrics
from areal.observe.traces import NO_TRACES, Span, Traces
from areal.rollout.contract.values import FailureKind
from areal.rollout.controller.gauges import trace_life
from areal.rollout.controller.tally import GroupLife
from areal.rollout.worker.runner import EpisodeResult, Key
from areal.rollout.worker.storing import trace_episode, trace_stored
from areal.v1 import record_pb2 as record
from areal.workflow.episode import Episode, Sequence
from areal_trainer.spans import StepSpans
from prometheus_client.openmetrics.exposition import generate_latest


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def emit(self, span: Span) -> None:
        self.spans.append(span)

    def close(self) -> None:
        pass

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def _traces(share: float = 1.0) -> tuple[Traces, Kept]:
    sink = Kept()
    return Traces("run-1", share, sink), sink


def test_every_process_of_a_run_chooses_the_same_groups_and_knows_their_ids():
    (one, _), (other, _) = _traces(0.1), _traces(0.1)
    chosen = [group for group in range(10_000) if one.wants(group)]
    assert chosen == [group for group in range(10_000) if other.wants(group)]
    assert 850 < len(chosen) < 1_150
    assert one.group(7) == other.group(7) != Traces("run-2").group(7)
    assert one.sample(7, 0, 1).trace == one.group(7).trace
    assert len({one.sample(7, i, a).span for i in range(8) for a in range(3)} | {one.group(7).span}) == 25


def test_without_a_sink_no_group_is_wanted():
    assert not NO_TRACES.on
    assert not any(NO_TRACES.wants(group) for group in range(100))
    assert NO_TRACES.exemplar(1) is None
    NO_TRACES.emit("x", 0.0, 1.0)
    NO_TRACES.close()


def test_an_episode_s_calls_and_what_lies_between_them_are_below_its_sample():
    traces, sink = _traces()
    moments = [
        record.Moment(what="generate", turn=0, began=10.0, ended=11.0),
        record.Moment(what="generate", turn=1, began=13.0, ended=14.0),
        record.Moment(what="score", turn=2, began=14.0, ended=14.5),
    ]
    sequence = Sequence(np.arange(3), np.zeros(3), np.ones(3, "u1"), (), 0.5)
    trace_episode(traces, Key(4, 2), 1, EpisodeResult(Episode([sequence]), moments=moments, began=9.0), 15.0)
    own = traces.sample(4, 2, 1)
    (sample,) = sink.named("sample")
    assert (sample.own, sample.parent, sample.began, sample.ended) == (own, traces.group(4), 9.0, 15.0)
    assert sample.attributes["areal.reward"] == 0.5
    (tools,) = sink.named("tools")
    assert (tools.began, tools.ended, tools.parent) == (11.0, 13.0, own)
    assert [span.parent for span in sink.named("generate")] == [own, own]
    meta = SampleMeta(1, 0.5, 0, 0, 1, tokens=3, truncated=False, xxh3=1)
    trace_stored(traces, [NewSample(4, 2, b"1234", meta)], 15.0, 15.1)
    (stored,) = sink.named("store")
    assert (stored.parent, stored.attributes["areal.bytes"]) == (own, 4)


def test_a_failure_is_an_error_and_an_evaluation_no_part_of_a_group_s_life():
    traces, sink = _traces()
    ending = EpisodeResult(kind=FailureKind.INFRA, message="the server is gone")
    trace_episode(traces, Key(4, 2, "3.f1"), 1, ending, 15.0)
    assert sink.spans == []
    trace_episode(traces, Key(4, 2), 1, ending, 15.0)
    (sample,) = sink.spans
    assert (sample.error, sample.attributes["areal.outcome"], sample.began) == ("the server is gone", "infra", 15.0)


def test_a_group_s_trace_ends_with_a_link_to_the_version_that_holds_its_gradient():
    traces, sink = _traces()
    now = [100.0]
    spans = StepSpans(traces, lambda: now[0])
    spans.spent("take", 0.1)
    spans.spent("wait", 3.0)
    now[0] = 101.0
    spans.spent("take", 1.0)
    now[0] = 104.0
    spans.spent("train", 3.0)
    spans.trained(6, [12, 13], learned=True)
    spans.publishing("7.f1")
    now[0] = 105.0
    spans.published("7.f1")
    steps = sink.named("step")
    assert [(span.parent, span.began, span.ended) for span in steps] == [
        (traces.group(12), 100.0, 104.0), (traces.group(13), 100.0, 104.0),
    ]  # fmt: skip
    assert {(span.name, span.began, span.ended) for span in sink.spans if span.parent == steps[0].own} == {
        ("take", 100.0, 101.0), ("train", 101.0, 104.0),
    }  # fmt: skip
    (version,) = sink.named("version")
    assert (version.own, version.links) == (traces.policy("7.f1"), [traces.group(12), traces.group(13)])
    assert [(span.parent, span.links) for span in sink.named("publish")] == [
        (traces.group(12), [traces.policy("7.f1")]), (traces.group(13), [traces.policy("7.f1")]),
    ]  # fmt: skip
    spans.trained(7, [14], learned=True)
    assert len(sink.named("step")) == 2, "a batch without phases was reported before"


def test_a_tombstoned_group_has_a_root_and_its_lease():
    traces, sink = _traces()
    trace_life(traces, GroupLife(3, leased_at=10.0, closed_at=15.0, ended_at=15.0, attempts=2, reason="rejected"))
    assert [span.name for span in sink.spans] == ["group", "lease"]
    root, lease = sink.spans
    assert (root.own, root.attributes["areal.outcome"], lease.parent) == (traces.group(3), "rejected", root.own)


def test_a_histogram_names_the_trace_of_what_it_observed():
    traces, _ = _traces()
    metrics = RoleMetrics("controller", "job")
    metrics.histogram("areal_rollout_duration_seconds").observe(2.0, traces.exemplar(5))
    shown = generate_latest(metrics.registry).decode()
    assert f'# {{trace_id="{traces.group(5).trace_id}"}} 2.0' in shown


def test_traces_are_off_unless_the_job_or_the_environment_names_a_collector(monkeypatch: pytest.MonkeyPatch):
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_SAMPLER_ARG"):
        monkeypatch.delenv(name, raising=False)
    assert otlp.open_traces("uid", "worker-0", "job", None, 1.0) is NO_TRACES
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    assert otlp.open_traces("uid", "worker-0", "job", None, None) is NO_TRACES
    assert otlp.open_traces("uid", "worker-0", "job", None, 0.5).on


def test_a_missing_package_turns_traces_off_with_what_to_install(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with caplog.at_level(logging.WARNING):
        assert otlp.open_traces("uid", "worker-0", "job", "http://127.0.0.1:9", 1.0) is NO_TRACES
    assert install("traces") in caplog.text


def test_a_collector_that_is_away_holds_up_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    traces = otlp.open_traces("uid", "worker-0", "job", "http://127.0.0.1:9", 1.0)
    for group in range(5_000):
        traces.emit("group", 1.0, 2.0, own=traces.group(group))
    closing = threading.Thread(target=traces.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
