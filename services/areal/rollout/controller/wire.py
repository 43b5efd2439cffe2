"""Between protobuf messages and the values of `reports`. Owns the mapping and nothing else."""

from areal.net.status import phase_from_wire, phase_to_wire
from areal.rollout.contract.values import fields_of
from areal.rollout.controller.reports import PublishedWeights, RefusalReport, ServerReport, TrainerReport
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as rollout
from areal.values.policy import PolicyId

# Fields with the same name and form on both sides.
_SERVER = (
    "server_id", "address", "policy_id", "version", "draining", "running", "waiting", "tokens_total", "engine",
    "interruptions_total",
)  # fmt: skip
_WEIGHTS = ("policy_id", "path", "manifest_digest", "rollback", "content_digest")


def server_report(message: rollout.ServerMessage) -> ServerReport:
    """A generation agent's beat."""
    state = message.state
    refused = None
    if state.HasField("refused") and state.refused.policy_id:
        refused = RefusalReport(state.refused.policy_id, state.refused.tries, state.refused.reason)
    return ServerReport(
        incarnation=message.beat.incarnation,
        ready=state.ready,
        live=state.live,
        progress=message.beat.progress,
        refused=refused,
        phase=phase_from_wire(state.phase),
        **fields_of(state, _SERVER),
    )


def server_state(report: ServerReport, *, live: bool, ready: bool) -> generation.ServerState:
    """A server as workers and status see it; `live` and `ready` are the controller's own judgement."""
    told = None
    if (refused := report.refused) is not None:
        told = generation.Refusal(policy_id=refused.policy_id, tries=refused.tries, reason=refused.reason)
    return generation.ServerState(
        live=live, ready=ready, refused=told, phase=phase_to_wire(report.phase), **fields_of(report, _SERVER)
    )


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
    return PublishedWeights(version=policy.version, fence=policy.fence, **fields_of(ref, _WEIGHTS))


def weights_ref(value: PublishedWeights) -> common.WeightsRef:
    """The wire form of published weights."""
    return common.WeightsRef(**fields_of(value, _WEIGHTS))
