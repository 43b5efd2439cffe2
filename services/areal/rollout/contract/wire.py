"""Between the contract's values and protobuf messages, both ways: `from_wire(to_wire(value)) == value`.

A number of a kind that this version doesn't know is INFRA: tried again rather than charged to the user.
"""

from collections.abc import Iterable

from areal.net.operations import beat, wait_to_wire
from areal.observe.waits import Wait
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
from areal.v1 import common_pb2 as common
from areal.v1 import rollout_pb2 as rollout

_TO_WIRE: dict[FailureKind, rollout.FailureKind.ValueType] = {
    FailureKind.NONE: rollout.FAILURE_KIND_UNSPECIFIED,
    FailureKind.REJECTED: rollout.FAILURE_KIND_REJECTED,
    FailureKind.EXCEPTION: rollout.FAILURE_KIND_EXCEPTION,
    FailureKind.HANG: rollout.FAILURE_KIND_HANG,
    FailureKind.INFRA: rollout.FAILURE_KIND_INFRA,
}
_FROM_WIRE = {wire: kind for kind, wire in _TO_WIRE.items()}


# ---- what a worker tells


def worker_message(report: WorkerReport, node: str, waits: Iterable[Wait]) -> rollout.WorkerMessage:
    """A worker's message."""
    news = report.news
    return rollout.WorkerMessage(
        beat=beat(node, report.incarnation, report.progress),
        worker_id=report.worker_id,
        capacity_groups=report.capacity,
        tokens_total=report.tokens_total,
        done=map(_done_to_wire, news.done),
        failures=map(_failure_to_wire, news.failures),
        evaluated=map(_evaluated_to_wire, news.evaluated),
        released=news.released,
        held=map(_held_to_wire, news.held or ()),
        waiting=map(wait_to_wire, waits),
    )


def worker_report(message: rollout.WorkerMessage, *, first: bool) -> WorkerReport:
    """A worker's message; only a stream's first one tells what is held."""
    return WorkerReport(
        worker_id=message.worker_id,
        incarnation=message.beat.incarnation,
        capacity=message.capacity_groups,
        news=WorkReport(
            done=tuple(map(_done, message.done)),
            failures=tuple(map(_failure, message.failures)),
            evaluated=tuple(map(_evaluated, message.evaluated)),
            released=tuple(message.released),
            held=tuple(map(_held, message.held)) if first else None,
        ),
        progress=message.beat.progress,
        tokens_total=message.tokens_total,
    )


def _done_to_wire(item: SampleDone) -> rollout.SampleDone:
    return rollout.SampleDone(
        key=common.SampleKey(group=item.group, index=item.index, attempt=item.attempt),
        reward=item.reward,
        oldest_version=item.oldest_version,
        newest_version=item.newest_version,
        max_staleness=item.max_staleness,
        tokens=item.tokens,
        truncated=item.truncated,
        masked=item.masked,
    )


def _done(item: rollout.SampleDone) -> SampleDone:
    return SampleDone(
        group=item.key.group,
        index=item.key.index,
        reward=item.reward,
        oldest_version=item.oldest_version,
        newest_version=item.newest_version,
        max_staleness=item.max_staleness,
        tokens=item.tokens,
        truncated=item.truncated,
        attempt=item.key.attempt,
        masked=item.masked,
    )


def _failure_to_wire(item: SampleFailure) -> rollout.GroupFailure:
    return rollout.GroupFailure(
        group=item.group,
        index=item.index,
        attempt=item.attempt,
        kind=_TO_WIRE[item.kind],
        fault=_fault(item.kind, item.message, item.fix, item.traceback),
    )


def _failure(item: rollout.GroupFailure) -> SampleFailure:
    kind = _FROM_WIRE.get(item.kind, FailureKind.INFRA)
    fault = item.fault
    return SampleFailure(
        item.group, item.index, item.attempt, kind or FailureKind.INFRA, fault.message, fault.fix, fault.traceback
    )


def _evaluated_to_wire(item: EvaluationAnswer) -> rollout.EvalDone:
    failed = item.kind is not FailureKind.NONE
    return rollout.EvalDone(
        evaluation_id=item.evaluation_id,
        row=item.row,
        score=item.score,
        oldest_version=item.oldest_version,
        newest_version=item.newest_version,
        kind=_TO_WIRE[item.kind],
        fault=_fault(item.kind, item.message, "", item.traceback) if failed else None,
        sample=item.sample,
    )


def _evaluated(item: rollout.EvalDone) -> EvaluationAnswer:
    return EvaluationAnswer(
        evaluation_id=item.evaluation_id,
        row=item.row,
        score=item.score,
        oldest_version=item.oldest_version,
        newest_version=item.newest_version,
        kind=_FROM_WIRE.get(item.kind, FailureKind.INFRA),
        message=item.fault.message,
        traceback=item.fault.traceback,
        sample=item.sample,
    )


def _held_to_wire(item: GroupInHand) -> rollout.HeldGroup:
    return rollout.HeldGroup(
        group=item.group,
        attempt=item.attempt,
        indices=item.indices,
        max_staleness=item.max_staleness,
        has_tokens=item.has_tokens,
        floor=item.floor,
    )


def _held(item: rollout.HeldGroup) -> GroupInHand:
    return GroupInHand(item.group, item.attempt, tuple(item.indices), item.max_staleness, item.has_tokens, item.floor)


def _fault(kind: FailureKind, text: str, fix: str, traceback: str) -> common.Fault:
    infra = kind is FailureKind.INFRA
    wire_kind = common.FAULT_KIND_INFRA if infra else common.FAULT_KIND_DATA
    return common.Fault(kind=wire_kind, message=text, fix=fix, traceback=traceback)


# ---- what the controller orders


def lease(grant: Grant) -> rollout.Lease:
    """A lease on the wire."""
    return rollout.Lease(
        group=grant.group,
        attempt=grant.attempt,
        missing=grant.missing,
        group_size=grant.group_size,
        floor=grant.floor,
        max_staleness=grant.max_staleness,
        row_json=grant.row_json,
        deadline_s=grant.deadline_s,
    )


def grant(lease: rollout.Lease) -> Grant:
    """A lease."""
    return Grant(
        group=lease.group,
        attempt=lease.attempt,
        missing=tuple(lease.missing),
        group_size=lease.group_size,
        floor=lease.floor,
        max_staleness=lease.max_staleness,
        row_json=lease.row_json,
        deadline_s=lease.deadline_s,
    )


def evaluation_lease(grant: EvaluationGrant) -> rollout.EvalLease:
    """An evaluation row on the wire."""
    return rollout.EvalLease(
        evaluation_id=grant.evaluation_id,
        row=grant.row,
        floor=grant.floor,
        row_json=grant.row_json,
        sample=grant.sample,
    )


def evaluation_grant(lease: rollout.EvalLease) -> EvaluationGrant:
    """An evaluation row."""
    return EvaluationGrant(lease.evaluation_id, lease.row, lease.floor, lease.row_json, lease.sample)
