"""Between protobuf messages and the worker's values. Owns the mapping and nothing else."""

from __future__ import annotations

from areal.net.operations import wait_to_wire
from areal.observe.waits import Wait
from areal.rollout.worker.reports import Done, Evaluated, EvaluationGrant, Failure, FailureKind, Grant, Report
from areal.v1 import common_pb2 as common
from areal.v1 import rollout_pb2 as wire

_KINDS: dict[FailureKind, wire.FailureKind.ValueType] = {
    FailureKind.REJECTED: wire.FAILURE_KIND_REJECTED,
    FailureKind.EXCEPTION: wire.FAILURE_KIND_EXCEPTION,
    FailureKind.HANG: wire.FAILURE_KIND_HANG,
    FailureKind.INFRA: wire.FAILURE_KIND_INFRA,
}


def grant(lease: wire.Lease) -> Grant:
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


def evaluation(lease: wire.EvalLease) -> EvaluationGrant:
    """An evaluation row."""
    return EvaluationGrant(lease.evaluation_id, lease.row, lease.floor, lease.row_json)


def message(report: Report, waits: list[Wait]) -> wire.WorkerMessage:
    """A report on the wire; the caller adds its beat."""
    return wire.WorkerMessage(
        done=[_done(item) for item in report.done],
        failures=[_failure(item) for item in report.failures],
        evaluated=[_evaluated(item) for item in report.evaluated],
        released=report.released,
        held=[
            wire.HeldGroup(
                group=item.group,
                attempt=item.attempt,
                indices=item.indices,
                max_staleness=item.max_staleness,
                has_tokens=item.has_tokens,
            )
            for item in report.held
        ],
        waiting=[wait_to_wire(wait) for wait in waits],
    )


def _done(item: Done) -> wire.SampleDone:
    meta = item.meta
    return wire.SampleDone(
        key=common.SampleKey(group=item.group, index=item.index, attempt=meta.attempt),
        reward=meta.reward,
        oldest_version=meta.oldest_version,
        newest_version=meta.newest_version,
        max_staleness=meta.max_staleness,
        tokens=meta.tokens,
        truncated=meta.truncated,
    )


def _failure(item: Failure) -> wire.GroupFailure:
    return wire.GroupFailure(
        group=item.group,
        index=item.index,
        attempt=item.attempt,
        kind=_KINDS[item.kind],
        fault=_fault(item.kind, item.message, item.fix, item.traceback),
    )


def _evaluated(item: Evaluated) -> wire.EvalDone:
    done = wire.EvalDone(
        evaluation_id=item.evaluation_id,
        row=item.row,
        score=item.score,
        oldest_version=item.oldest_version,
        newest_version=item.newest_version,
    )
    if item.kind is not FailureKind.NONE:
        done.fault.CopyFrom(_fault(item.kind, item.message, "", item.traceback))
    return done


def _fault(kind: FailureKind, text: str, fix: str, traceback: str) -> common.Fault:
    infra = kind is FailureKind.INFRA
    wire_kind = common.FAULT_KIND_INFRA if infra else common.FAULT_KIND_DATA
    return common.Fault(kind=wire_kind, message=text, fix=fix, traceback=traceback)
