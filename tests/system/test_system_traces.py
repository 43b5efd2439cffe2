"""Traces of a whole run, received by a real OpenTelemetry collector."""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx
import pytest
from areal.observe.catalog import Scope
from areal.observe.otlp import open_traces
from areal.plan.resolved import ResolvedJob
from chart.chart_metrics import PANELS, declared, promql, selectors
from support.otel_collector import Received, collector

pytestmark = [pytest.mark.system, pytest.mark.kube_api, pytest.mark.timeout(420)]


def test_a_span_arrives_as_it_was_emitted(tmp_path: Path):
    with collector(tmp_path) as receiver:
        traces = open_traces("uid", "worker-0", "math", receiver.endpoint, 1.0)
        own = traces.sample(1, 0, 1)
        traces.emit(
            "sample", 1000.0, 1002.5, own=own, parent=traces.group(1), error="it broke", attributes={"index": 0}
        )
        traces.emit("generate", 1000.5, 1001.0, parent=own, links=[traces.policy("3.f1")])
        traces.close()
        sample, generate = receiver.wait_for(lambda spans: len(spans) == 2)
    assert (sample.trace, sample.span, sample.parent) == (
        own.trace_id, f"{own.span:016x}", f"{traces.group(1).span:016x}",
    )  # fmt: skip
    assert (sample.service, sample.instance, sample.error) == ("areal-worker", "worker-0", "it broke")
    assert (sample.began, sample.ended, sample.attributes) == (1000.0, 1002.5, {"areal.index": "0"})
    assert (generate.trace, generate.parent) == (own.trace_id, f"{own.span:016x}")
    assert generate.links == (traces.policy("3.f1").trace_id,)


def test_a_group_s_life_is_one_trace_that_leads_to_the_swaps_of_its_version(start_job, tmp_path: Path):
    with collector(tmp_path) as receiver:
        run = start_job(
            f"observability.traces.endpoint={receiver.endpoint}",
            "observability.traces.sampleRate=1",
            "algorithm.maxSteps=400",
        )
        run.wait_for("some steps", lambda: run.step() >= 3, timeout_s=240)
        seen = _exemplar(run.run_dir)
        receiver.wait_for(lambda spans: bool(_whole(spans, 0)))
        saved = "areal_checkpoint_last_success_timestamp_seconds"  # the last of all figures to come
        run.wait_for("a checkpoint", lambda: saved not in _empty_panels(_served(run.run_dir)), timeout_s=120)
        empty = _empty_panels(_served(run.run_dir))
        run.stop()
        spans = receiver.spans()
    unexpected = sorted(name for name in empty if not name.startswith(ABSENT))
    assert not unexpected, "panels of roles that run have nothing to show"
    assert all(any(name.startswith(one) for name in empty) for one in ABSENT[:-1]), "what was thought absent is there"
    assert seen in {span.trace for span in spans}
    life = _whole(spans, 0)
    by_id = {span.span: span for span in life}
    (root,) = [span for span in life if span.name == "group"]
    names = {span.name for span in life}
    assert names >= {"group", "lease", "sample", "generate", "score", "store", "ledger", "step", "train", "publish"}
    assert all(span.parent in by_id for span in life if span is not root), "a span has no parent"
    assert {span.service for span in life} == {"areal-controller", "areal-worker", "areal-trainer"}
    samples = [span for span in life if span.name == "sample"]
    assert sorted(span.attributes["areal.index"] for span in samples) == [str(i) for i in range(8)]
    (publish,) = [span for span in life if span.name == "publish"]
    version = [span for span in spans if span.trace == publish.links[0]]
    assert {span.name for span in version} == {"version", "swap"}
    assert root.trace in next(span for span in version if span.name == "version").links


ABSENT = (
    "areal_boxes_", "areal_gateway_", "areal_sandbox_", "areal_volume_", "areal_generation_switch_",
    "areal_archive_", "areal_trainer_figure", "areal_evaluation_figure",
)  # fmt: skip
"""Beginnings of series that this job has no role or setting for, and of evaluations, which may not have ended yet."""


def _served(run_dir: Path) -> set[str]:
    """Names of the series with a sample on the pages of all roles."""
    pages = [ports["metrics"] for ports in ResolvedJob.load(run_dir).ports.values() if "metrics" in ports]
    texts = [httpx.get(f"http://127.0.0.1:{port}/metrics").text for port in pages]
    lines = [line for text in texts for line in text.splitlines() if line and not line.startswith("#")]
    return {re.split(r"[ {]", line, maxsplit=1)[0] for line in lines}


def _empty_panels(served: set[str]) -> set[str]:
    """Series that panels about a job read and no page has."""
    asked = {
        name
        for board, panel in PANELS
        if board in ("rljob", "generation")
        for target in panel["targets"]
        for name, _ in selectors(promql(target["expr"]))
        if (metric := declared(name)) and metric.scope is Scope.ROLE
    }
    return asked - served


def _whole(spans: list[Received], group: int) -> list[Received]:
    """All spans of a group's trace, once its version was taken by a server."""
    roots = [span for span in spans if span.name == "group" and span.attributes["areal.group"] == str(group)]
    life = [span for span in spans if roots and span.trace == roots[0].trace]
    published = [span for span in life if span.name == "publish"]
    swapped = any(span.name == "swap" and span.trace in published[0].links for span in spans) if published else False
    return life if swapped else []


def _exemplar(run_dir: Path) -> str:
    """The trace that the controller's histogram of waiting groups names."""
    job = ResolvedJob.load(run_dir)
    port = job.ports_of("controller", 0)["metrics"]
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    for _ in range(600):
        shown = httpx.get(f"http://127.0.0.1:{port}/metrics", headers=accept).text
        if found := re.search(r'areal_rollout_duration_seconds_bucket.*# \{trace_id="([0-9a-f]{32})"\}', shown):
            return found[1]
        time.sleep(0.1)
    raise AssertionError("no exemplar")
