"""What workers and the controller say arrives as it was said."""

from __future__ import annotations

import math

import pytest
from areal.observe.waits import Wait
from areal.rollout.contract import wire
from areal.rollout.contract.values import (
    EvaluationAnswer,
    EvaluationGrant,
    FailureKind,
    Grant,
    GroupInHand,
    SampleDone,
    SampleFailure,
    WorkerReport,
    WorkReport,
)
from areal.v1 import rollout_pb2 as rollout
from hypothesis import given
from hypothesis import strategies as st

count = st.integers(0, 2**32 - 1)
group = st.integers(0, 2**64 - 1)
version = st.integers(-1, 2**40)
number = st.floats(allow_nan=False)
text = st.text(max_size=12)
failed = st.sampled_from([kind for kind in FailureKind if kind is not FailureKind.NONE])

done = st.builds(SampleDone, group, count, number, version, version, count, count, st.booleans(), count)
failure = st.builds(SampleFailure, group, count, count, failed, text, text, text)
scored = st.builds(EvaluationAnswer, text, count, number, version, version)
unscored = st.builds(EvaluationAnswer, text, count, number, version, version, failed, text, text)
held = st.builds(GroupInHand, group, count, st.lists(count, max_size=3).map(tuple), count, st.booleans())
report = st.builds(
    WorkReport,
    st.lists(done, max_size=3).map(tuple),
    st.lists(failure, max_size=3).map(tuple),
    st.lists(scored | unscored, max_size=3).map(tuple),
    st.lists(group, max_size=3).map(tuple),
    st.none() | st.lists(held, max_size=3).map(tuple),
)


@given(st.builds(WorkerReport, text, text, count, report, group, group))
def test_a_workers_message_arrives_as_it_was_said(told: WorkerReport) -> None:
    sent = rollout.WorkerMessage.FromString(wire.worker_message(told, "node", ()).SerializeToString())
    assert wire.worker_report(sent, first=told.news.held is not None) == told


def test_a_service_that_answers_no_call_of_a_worker_is_told_from_other_waits() -> None:
    told = WorkerReport("w", "1", 4)
    waits = [
        Wait("ledger", "w", "Redis", 90.0, 0.0),
        Wait("boxes.lost", "w", "boxes:1 to answer", 2.0, 60.0),
        Wait("reward.lost", "w", "reward:1 to score", 8.0, 120.0),
    ]
    heard = wire.worker_report(wire.worker_message(told, "node", waits), first=False)
    assert (heard.lost, heard.lost_role, heard.lost_s) == ("reward:1 to score", "reward", 8.0)
    assert wire.worker_report(wire.worker_message(told, "node", waits[:1]), first=False).lost == ""


@pytest.mark.parametrize(("claimed", "heard"), [(math.inf, 1e8), (-math.inf, 0.0), (math.nan, 0.0), (-3.0, 0.0)])
def test_whatever_age_a_worker_claims_is_a_number_of_seconds(claimed: float, heard: float) -> None:
    message = rollout.WorkerMessage(waiting=[rollout.Wait(name="x.lost", waits_for="y" * 9000, age_s=claimed)])
    report = wire.worker_report(message, first=False)
    assert (report.lost_s, len(report.lost)) == (heard, 200)


@given(st.builds(Grant, group, count, st.lists(count).map(tuple), count, version, count, st.binary(), number))
def test_a_lease_arrives_as_it_was_said(told: Grant) -> None:
    assert wire.grant(rollout.Lease.FromString(wire.lease(told).SerializeToString())) == told


@given(st.builds(EvaluationGrant, text, count, version, st.binary()))
def test_an_evaluation_row_arrives_as_it_was_said(told: EvaluationGrant) -> None:
    assert wire.evaluation_grant(rollout.EvalLease.FromString(wire.evaluation_lease(told).SerializeToString())) == told


def test_a_kind_of_failure_that_is_not_known_is_tried_again() -> None:
    message = rollout.WorkerMessage(
        failures=[rollout.GroupFailure(group=1, kind=99), rollout.GroupFailure(group=2)],  # type: ignore[arg-type]
        evaluated=[rollout.EvalDone(row=1, kind=99)],  # type: ignore[arg-type]
    )
    news = wire.worker_report(message, first=False).news
    assert {told.kind for told in (*news.failures, *news.evaluated)} == {FailureKind.INFRA}
