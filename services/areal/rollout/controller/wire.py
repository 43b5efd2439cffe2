"""Between protobuf messages and the core's values. Owns the mapping and nothing else."""

from __future__ import annotations

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
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as rollout
from areal.weights.policy import PolicyId

_FAILURES = {
    rollout.FAILURE_KIND_REJECTED: FailureKind.REJECTED,
    rollout.FAILURE_KIND_EXCEPTION: FailureKind.EXCEPTION,
    rollout.FAILURE_KIND_HANG: FailureKind.HANG,
    rollout.FAILURE_KIND_INFRA: FailureKind.INFRA,
}


def worker_report(message: rollout.WorkerMessage, *, first: bool) -> WorkerReport:
    """A worker's message; only a stream's first one tells what is held."""
    return WorkerReport(
        worker_id=message.worker_id,
        incarnation=message.beat.incarnation,
        capacity=message.capacity_groups,
        progress=message.beat.progress,
        held=tuple(_held(item) for item in message.held) if first else None,
        done=tuple(_done(item) for item in message.done),
        failures=tuple(_failure(item) for item in message.failures),
        evaluated=tuple(_evaluated(item) for item in message.evaluated),
        released=tuple(message.released),
        tokens_total=message.tokens_total,
    )


def _held(item: rollout.HeldGroup) -> HeldReport:
    return HeldReport(item.group, item.attempt, tuple(item.indices), item.max_staleness, item.has_tokens)


def _done(item: rollout.SampleDone) -> SampleReport:
    return SampleReport(
        group=item.key.group,
        index=item.key.index,
        reward=item.reward,
        oldest_version=item.oldest_version,
        newest_version=item.newest_version,
        max_staleness=item.max_staleness,
        tokens=item.tokens,
        truncated=item.truncated,
    )


def _fault_words(fault: common.Fault) -> str:
    return "\n".join(part for part in (fault.message, fault.fix, fault.traceback) if part)


def _failure(item: rollout.GroupFailure) -> FailureReport:
    # A kind that a newer worker invented is tried again rather than charged to the user.
    kind = _FAILURES.get(item.kind, FailureKind.INFRA)
    return FailureReport(item.group, item.index, item.attempt, kind, _fault_words(item.fault))


def _evaluated(item: rollout.EvalDone) -> EvaluationReport:
    fault = ""
    if item.HasField("fault"):
        fault = "infra" if item.fault.kind == common.FAULT_KIND_INFRA else "user"
    return EvaluationReport(
        evaluation_id=item.evaluation_id,
        row=item.row,
        score=item.score,
        oldest_version=item.oldest_version,
        newest_version=item.newest_version,
        fault=fault,
        detail=_fault_words(item.fault),
    )


def server_report(message: rollout.ServerMessage) -> ServerReport:
    """A generation agent's beat."""
    state = message.state
    refused = None
    if state.HasField("refused") and state.refused.policy_id:
        refused = RefusalReport(state.refused.policy_id, state.refused.tries, state.refused.reason)
    return ServerReport(
        server_id=state.server_id,
        incarnation=message.beat.incarnation,
        address=state.address,
        policy_id=state.policy_id,
        version=state.version,
        ready=state.ready,
        live=state.live,
        draining=state.draining,
        running=state.running,
        waiting=state.waiting,
        tokens_total=state.tokens_total,
        progress=message.beat.progress,
        refused=refused,
        engine=state.engine,
        interruptions_total=state.interruptions_total,
    )


def server_state(report: ServerReport, *, live: bool) -> generation.ServerState:
    """A server as workers and status see it; `live` is the controller's own judgement."""
    state = generation.ServerState(
        server_id=report.server_id,
        address=report.address,
        policy_id=report.policy_id,
        version=report.version,
        live=live and report.live,
        ready=report.ready,
        draining=report.draining,
        running=report.running,
        waiting=report.waiting,
        tokens_total=report.tokens_total,
        engine=report.engine,
        interruptions_total=report.interruptions_total,
    )
    if report.refused is not None:
        refused = report.refused
        state.refused.CopyFrom(
            generation.Refusal(policy_id=refused.policy_id, tries=refused.tries, reason=refused.reason)
        )
    return state


def trainer_report(message: rollout.TrainerMessage) -> TrainerReport:
    """The trainer's beat."""
    return TrainerReport(
        fence=message.beat.fence,
        step=message.step,
        next_group=message.next_group,
        committed_group=message.committed_group,
        finished=message.finished,
        progress=message.beat.progress,
    )


def weights(ref: common.WeightsRef) -> Weights:
    """A published version. Raises DataError when its PolicyId is none."""
    policy = PolicyId.parse(ref.policy_id)
    return Weights(ref.policy_id, policy.version, policy.fence, ref.path, ref.manifest_digest, ref.rollback)


def weights_ref(value: Weights) -> common.WeightsRef:
    """The wire form of published weights."""
    return common.WeightsRef(
        policy_id=value.policy_id,
        path=value.path,
        manifest_digest=value.manifest_digest,
        rollback=value.rollback,
    )
