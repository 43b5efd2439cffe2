"""Between protobuf messages and the values of `reports`. Owns the mapping and nothing else."""

from areal.net.status import phase_from_wire, phase_to_wire
from areal.rollout.controller.reports import PublishedWeights, RefusalReport, ServerReport, TrainerReport
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as rollout
from areal.values.policy import PolicyId


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
        phase=phase_from_wire(state.phase),
    )


def server_state(report: ServerReport, *, live: bool, ready: bool) -> generation.ServerState:
    """A server as workers and status see it; `live` and `ready` are the controller's own judgement."""
    state = generation.ServerState(
        server_id=report.server_id,
        address=report.address,
        policy_id=report.policy_id,
        version=report.version,
        live=live,
        ready=ready,
        draining=report.draining,
        running=report.running,
        waiting=report.waiting,
        tokens_total=report.tokens_total,
        engine=report.engine,
        interruptions_total=report.interruptions_total,
        phase=phase_to_wire(report.phase),
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
        committed=message.committed_step,
        finished=message.finished,
        progress=message.beat.progress,
        turn=message.turn,
        wants_cards=message.wants_cards,
    )


def weights(ref: common.WeightsRef) -> PublishedWeights:
    """A published version. Raises DataError when its PolicyId is none."""
    policy = PolicyId.parse(ref.policy_id)
    return PublishedWeights(
        ref.policy_id, policy.version, policy.fence, ref.path, ref.manifest_digest, ref.rollback, ref.content_digest
    )


def weights_ref(value: PublishedWeights) -> common.WeightsRef:
    """The wire form of published weights."""
    return common.WeightsRef(
        policy_id=value.policy_id,
        path=value.path,
        manifest_digest=value.manifest_digest,
        rollback=value.rollback,
        content_digest=value.content_digest,
    )
