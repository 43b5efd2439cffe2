"""Between the contract's values and protobuf messages, both ways: `from_wire(to_wire(value)) == value`.

A number of a kind that this version doesn't know is INFRA: tried again rather than charged to the user.
"""

from collections.abc import Iterable

from areal.net.operations import beat, wait_to_wire
from areal.observe.waits import LOST, Wait
from areal.rollout.contract.values import (
    FIGURES,
    EvaluationAnswer,
    EvaluationGrant,
    FailureKind,
    Grant,
    GroupInHand,
    SampleDone,
    SampleFailure,
    WorkerReport,
    WorkReport,
    fields_of,
)
from areal.v1 import common_pb2 as common
from areal.v1 import rollout_pb2 as rollout

_TO_WIRE = {
    kind: rollout.FailureKind.Value("FAILURE_KIND_" + ("UNSPECIFIED" if kind is FailureKind.NONE else kind.name))
    for kind in FailureKind
}
_FROM_WIRE = {wire: kind for kind, wire in _TO_WIRE.items()}

_WORDS = 200  # characters of a wait that others are told
_LONGEST_S = 1e8  # three years: whatever a worker claims

# Fields with the same name and form on both sides.
_EVALUATED = ("evaluation_id", "row", "score", "oldest_version", "newest_version", "sample")
_HELD = ("group", "attempt", "max_staleness", "has_tokens", "floor")
_LEASE = ("group", "attempt", "group_size", "floor", "max_staleness", "row_json", "deadline_s")
_EVALUATION = ("evaluation_id", "row", "floor", "row_json", "sample")


# ---- what a worker tells


def worker_message(report: WorkerReport, node: str, waits: Iterable[Wait]) -> rollout.WorkerMessage:
    """A worker's message."""
    news = report.news
    return rollout.WorkerMessage(
        beat=beat(node, report.incarnation, report.progress),
        worker_id=report.worker_id,
        capacity_groups=report.capacity,
        tokens_total=report.tokens_total,
        token_fates=report.token_fates,
        done=map(_done_to_wire, news.done),
        failures=map(_failure_to_wire, news.failures),
        evaluated=map(_evaluated_to_wire, news.evaluated),
        released=news.released,
        held=map(_held_to_wire, news.held or ()),
        waiting=map(wait_to_wire, waits),
    )


def worker_report(message: rollout.WorkerMessage, *, first: bool) -> WorkerReport:
    """A worker's message; only a stream's first one tells what is held."""
    lost = max((wait for wait in message.waiting if wait.name.endswith(LOST)), key=lambda w: w.age_s, default=None)
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
        token_fates=dict(message.token_fates),
        lost=lost.waits_for[:_WORDS] if lost is not None else "",
        lost_role=lost.name.removesuffix(LOST) if lost is not None else "",
        lost_s=min(max(0.0, lost.age_s), _LONGEST_S) if lost is not None else 0.0,
    )


def _done_to_wire(item: SampleDone) -> rollout.SampleDone:
    key = common.SampleKey(group=item.group, index=item.index, attempt=item.attempt)
    return rollout.SampleDone(key=key, **fields_of(item, FIGURES))


def _done(item: rollout.SampleDone) -> SampleDone:
    key = item.key
    return SampleDone(group=key.group, index=key.index, attempt=key.attempt, **fields_of(item, FIGURES))


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
    fault = _fault(item.kind, item.message, "", item.traceback) if failed else None
    return rollout.EvalDone(kind=_TO_WIRE[item.kind], fault=fault, **fields_of(item, _EVALUATED))


def _evaluated(item: rollout.EvalDone) -> EvaluationAnswer:
    kind, fault = _FROM_WIRE.get(item.kind, FailureKind.INFRA), item.fault
    return EvaluationAnswer(kind=kind, message=fault.message, traceback=fault.traceback, **fields_of(item, _EVALUATED))


def _held_to_wire(item: GroupInHand) -> rollout.HeldGroup:
    return rollout.HeldGroup(indices=item.indices, **fields_of(item, _HELD))


def _held(item: rollout.HeldGroup) -> GroupInHand:
    return GroupInHand(indices=tuple(item.indices), **fields_of(item, _HELD))


def _fault(kind: FailureKind, text: str, fix: str, traceback: str) -> common.Fault:
    infra = kind is FailureKind.INFRA
    wire_kind = common.FAULT_KIND_INFRA if infra else common.FAULT_KIND_DATA
    return common.Fault(kind=wire_kind, message=text, fix=fix, traceback=traceback)


# ---- what the controller orders


def lease(grant: Grant) -> rollout.Lease:
    """A lease on the wire."""
    return rollout.Lease(missing=grant.missing, **fields_of(grant, _LEASE))


def grant(lease: rollout.Lease) -> Grant:
    """A lease."""
    return Grant(missing=tuple(lease.missing), **fields_of(lease, _LEASE))


def evaluation_lease(grant: EvaluationGrant) -> rollout.EvalLease:
    """An evaluation row on the wire."""
    return rollout.EvalLease(**fields_of(grant, _EVALUATION))


def evaluation_grant(lease: rollout.EvalLease) -> EvaluationGrant:
    """An evaluation row."""
    return EvaluationGrant(**fields_of(lease, _EVALUATION))
