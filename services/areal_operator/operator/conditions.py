"""Conditions of a job's status, each by its own rule.

Owns which reason speaks when, and the rules of metav1 conditions: a transition time moves only when the status does,
a condition says which generation it speaks of. `Complete` and `Failed` are written by the decision that ends a job,
and once true they stay. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from areal.plan.cluster_names import Role
from areal.plan.role_specs import batch_jobs, long_running
from areal.spec.status import (
    CONDITION_MESSAGE,
    AcceptedReason,
    CompleteReason,
    ConditionType,
    FailedReason,
    GenerationReason,
    PreparedReason,
    ProgressingReason,
    Reason,
    RewardReason,
    ScheduledReason,
    SuspendedReason,
    TrainerReason,
)

from areal_operator.operator import fault_owner
from areal_operator.operator.decision import CleanUp, Converge, Decision, End, Finish, Prepare, Reject, Suspend
from areal_operator.operator.failure_policy import STALLED
from areal_operator.operator.gang import Gang, gang_of
from areal_operator.operator.job_state import Condition, JobState, Outcome, Rest, reason_of
from areal_operator.operator.observed import Observed, Pod, Stage
from areal_operator.operator.times import CREATED_S, FRESH_S
from areal_operator.operator.timestamps import render, words


@dataclass(frozen=True)
class Said:
    """A reason, whose `when` is the condition's status, and a sentence."""

    reason: Reason
    message: str


def conditions(seen: Observed, decision: Decision, state: JobState, now: float) -> dict[ConditionType, Condition]:
    """All conditions after `decision`, in the order of a job's life."""
    view = _View(seen, decision, state, now)
    found = {}
    for kind, question in _QUESTIONS.items():
        said = question(view)
        found[kind] = transition(state.conditions.get(kind), said, seen.generation, now)
    return found


def transition(before: Condition | None, said: Said, generation: int, now: float) -> Condition:
    """The condition that says this now: its time is kept while its status is."""
    kept = before is not None and before.status == said.reason.when
    since = before.since if kept and before is not None else float(int(now))
    message = said.message if len(said.message) <= CONDITION_MESSAGE else said.message[: CONDITION_MESSAGE - 1] + "…"
    return Condition(said.reason.when, said.reason.value, message, since, generation)


@dataclass(frozen=True)
class _View:
    """What the questions are asked of. `state` is the one that is about to be written."""

    seen: Observed
    decision: Decision
    state: JobState
    now: float

    @property
    def over(self) -> bool:
        return self.state.outcome is not None

    @property
    def resting(self) -> bool:
        return isinstance(self.decision, Suspend)

    @property
    def idle(self) -> bool:
        """Nothing but preparation has been asked for yet."""
        return isinstance(self.decision, Reject | Prepare) or not self.state.prepared

    @property
    def gang(self) -> Gang | None:
        if self.seen.admitted is None:
            return None
        return gang_of(self._remembered, self.seen.admitted.replicas[Role.TRAINER], self.now)

    @property
    def _remembered(self) -> Observed:
        return replace(self.seen, state=self.state)

    def desired(self, role: Role) -> int:
        return self.seen.admitted.replicas.get(role, 0) if self.seen.admitted is not None else 0

    @property
    def replicas(self) -> Mapping[Role, int]:
        return self.seen.admitted.replicas if self.seen.admitted is not None else {}

    def overdue(self, since: float) -> bool:
        """Whether a step should have come, had the trainers all that they need."""
        admitted = self.seen.admitted
        return admitted is not None and self.now >= since + admitted.job.spec.run_policy.stall_timeout_seconds

    @property
    def unplaced_long(self) -> bool:
        """Whether the gang can't form because pods wait for nodes for longer than their creation takes."""
        since = self.state.waiting_since
        return since is not None and not self.state.members and self.now >= since + CREATED_S

    def ready(self, role: Role) -> list[Pod]:
        return [pod for pod in self.seen.of(role) if pod.ready and not pod.terminating]

    def before(self, kind: ConditionType) -> Condition | None:
        return self.state.conditions.get(kind)


def _accepted(view: _View) -> Said:
    if isinstance(view.decision, Reject):
        return Said(view.decision.reason, view.decision.message)
    if view.seen.refusal is not None and not view.over:
        return Said(view.seen.refusal.reason, view.seen.refusal.message)
    return Said(AcceptedReason.VALID, "every rule holds, and the API server takes every object")


def _prepared(view: _View) -> Said:
    if view.state.prepared:
        return Said(PreparedReason.SNAPSHOTS_WRITTEN, "sources are checked, snapshots are on the volume")
    if isinstance(view.decision, End) and view.decision.reason is FailedReason.SOURCES_REFUSED:
        return Said(PreparedReason.SOURCES_REFUSED, view.decision.message)
    if isinstance(view.decision, Prepare) and view.decision.retire:
        last = view.state.failures[-1] if view.state.failures else None
        text = f"the preparing pod ended with {last.exit_code} ({last.reason}) and is tried again" if last else ""
        return Said(PreparedReason.PREPARE_FAILED, text)
    if isinstance(view.decision, Prepare):
        pods = view.seen.of(Role.PREPARE)
        why = next((f": {pod.name} is {pod.waiting}" for pod in pods if pod.waiting), "")
        return Said(PreparedReason.PREPARING, f"the preparing pod is at work{why}")
    if view.over and (before := view.before(ConditionType.PREPARED)) is not None:
        return Said(reason_of(PreparedReason, before.reason), before.message)
    return Said(PreparedReason.NOT_STARTED, "")


def _suspended(view: _View) -> Said:
    if not view.resting or view.over:
        return Said(SuspendedReason.NOT_SUSPENDED, "")
    pods = [pod for pod in view.seen.pods if not pod.over]
    match view.state.rest:
        case Rest.SAVING:
            return Said(SuspendedReason.CHECKPOINT_PENDING, "the trainers save a checkpoint and stop")
        case Rest.ASLEEP:
            return Said(SuspendedReason.SUSPENDED, "all pods are gone; set spec.suspend to false to go on")
        case _:
            return Said(SuspendedReason.PODS_TERMINATING, f"{len(pods)} pods are ending{_held(view, pods)}")


def _held(view: _View, pods: list[Pod]) -> str:
    """Which pods a silent machine holds, and what to do."""
    silent = fault_owner.silent_pod(view.seen, [pod for pod in pods if pod.terminating])
    return f"; {fault_owner.silence(silent)}" if silent is not None else ""


_KEPT = (ScheduledReason.UNSCHEDULABLE, ScheduledReason.PODS_REFUSED, ScheduledReason.GATED)
"""Reasons that stay when the job has failed: they may be why."""


def _scheduled(view: _View) -> Said:
    if view.over:
        before = view.before(ConditionType.SCHEDULED)
        if before is not None and view.state.outcome is Outcome.FAILED and before.reason in _KEPT:
            return Said(reason_of(ScheduledReason, before.reason), before.message)
        return Said(ScheduledReason.FINISHED, "")
    if view.resting:
        return Said(ScheduledReason.SUSPENDED, "")
    if isinstance(view.decision, Reject):
        return Said(ScheduledReason.NOT_STARTED, "")
    for role, why in view.seen.refused.items():
        return Said(ScheduledReason.PODS_REFUSED, f"pods of {role.value} are refused: {why}")
    if (pod := fault_owner.unbound(view.seen)) is not None:
        bound = pod.conditions["PodScheduled"]
        if bound.reason == fault_owner.UNSCHEDULABLE:
            return Said(ScheduledReason.UNSCHEDULABLE, f"{pod.name}: {bound.message}")
        return Said(ScheduledReason.GATED, f"{pod.name}: {bound.message or 'has scheduling gates'}")
    silent = fault_owner.silent_pod(view.seen)
    if silent is not None:
        return Said(ScheduledReason.NODE_SILENT, fault_owner.silence(silent))
    if not isinstance(view.decision, Converge | Finish):
        pods = view.seen.of(Role.PREPARE)
        wanted = 1
    else:
        pods = tuple(pod for pod in view.seen.pods if pod.role not in batch_jobs())
        wanted = sum(view.desired(role) for role in long_running())
    bound_pods = sum(bool(pod.node) for pod in pods)
    if bound_pods < wanted:
        return Said(ScheduledReason.PODS_MISSING, f"{bound_pods} of {wanted} pods have a node")
    return Said(ScheduledReason.ALL_PODS_BOUND, f"{bound_pods} pods have a node")


def _trainer(view: _View) -> Said:
    if view.over:
        return Said(TrainerReason.FINISHED, "")
    if view.resting:
        return Said(TrainerReason.SUSPENDED, "")
    gang = view.gang
    if view.idle or gang is None:
        return Said(TrainerReason.NOT_STARTED, "")
    if isinstance(view.decision, Finish):
        return Said(TrainerReason.FINISHED, "the last step is trained")
    if gang.formed and gang.up == gang.size:
        return Said(TrainerReason.RENDEZVOUS_COMPLETE, f"{gang.size} pods train in epoch {view.state.epoch}")
    if gang.formed:
        text = f"epoch {view.state.epoch}: {gang.up} of {gang.size} pods are in it"
        return Said(TrainerReason.RESTARTING if view.state.restarts else TrainerReason.FORMING, text)
    why = "; ".join(gang.missing[:3])
    if view.state.epoch > 0:
        return Said(TrainerReason.RESTARTING, f"waiting until the gang is whole: {why}")
    return Said(TrainerReason.PODS_NOT_READY, why)


def _generation(view: _View) -> Said:
    if view.over:
        return Said(GenerationReason.FINISHED, "")
    if view.resting:
        return Said(GenerationReason.SUSPENDED, "")
    if view.idle:
        return Said(GenerationReason.NOT_STARTED, "")
    ready, wanted = len(view.ready(Role.GENERATION)), view.desired(Role.GENERATION)
    if Role.GENERATION not in view.replicas:
        return Said(GenerationReason.NOT_NEEDED, "the training generates nothing")
    text = f"{ready} of {wanted} servers answer"
    if ready >= wanted:
        return Said(GenerationReason.ALL_REPLICAS_READY, text)
    if ready:
        return Said(GenerationReason.SOME_REPLICAS_READY, text)
    return Said(GenerationReason.NO_REPLICA_READY, text + _waiting(view, Role.GENERATION))


def _reward(view: _View) -> Said:
    if view.over:
        return Said(RewardReason.FINISHED, "")
    if view.resting:
        return Said(RewardReason.SUSPENDED, "")
    if view.idle:
        return Said(RewardReason.NOT_STARTED, "")
    roles = [role for role in (Role.REWARD, Role.REWARD_CUSTOM, Role.REWARD_MODEL) if view.desired(role)]
    if not roles:
        generates = Role.GENERATION in view.replicas
        return Said(
            RewardReason.NOT_NEEDED, f"the {'workflow scores by itself' if generates else 'training scores nothing'}"
        )
    ready, wanted = len(view.ready(roles[0])), view.desired(roles[0])
    text = f"{ready} of {wanted} pods answer"
    return (
        Said(RewardReason.READY, text)
        if ready
        else Said(RewardReason.NO_REPLICA_READY, text + _waiting(view, roles[0]))
    )


def _waiting(view: _View, role: Role) -> str:
    """Why a role's first waiting pod doesn't run, in Kubernetes' words."""
    for pod in view.seen.of(role):
        if pod.waiting:
            return f"; {pod.name}: {pod.waiting} {pod.waiting_message}".rstrip()
    return ""


def _progressing(view: _View) -> Said:
    if view.over:
        return Said(ProgressingReason.FINISHED, "")
    if view.resting:
        return Said(ProgressingReason.SUSPENDED, "")
    if view.idle:
        return Said(ProgressingReason.NOT_STARTED, "")
    state = view.state
    if isinstance(view.decision, Finish):
        return Said(ProgressingReason.FINISHED, f"step {state.step} was the last")
    controller = view.seen.reports.controller
    fresh = controller is not None and view.now - controller.at <= FRESH_S
    said = controller.stalled if fresh and controller is not None else ""
    last = next((f for f in reversed(state.failures) if f.role == Role.TRAINER), None)
    unbroken = state.step_at or 0.0
    if last is not None and last.reason == STALLED and last.at >= unbroken:
        text = f"no step since {words(view.now - unbroken)}{f': {said}' if said else ''}"
        return Said(ProgressingReason.STALLED, text)
    if said:
        return Said(ProgressingReason.STALLED, said)
    if state.next_epoch_at is not None and view.now < state.next_epoch_at:
        text = f"{state.fruitless} epochs ended without a step; the next starts at {render(state.next_epoch_at)}"
        return Said(ProgressingReason.BACKING_OFF, text)
    if state.step_at is None:
        return Said(ProgressingReason.AWAITING_FIRST_STEP, "no step was trained yet")
    lack = fault_owner.lack_of(view.seen, view.replicas)
    if lack is not None and (view.overdue(unbroken) or view.unplaced_long):
        return Said(ProgressingReason.WAITING, f"step {state.step} was last; {lack.text}")
    began = max(state.started_at or 0.0, last.at if last is not None else 0.0)
    if not state.members or unbroken <= began:
        return Said(
            ProgressingReason.RECOVERING, f"the trainers go on from their checkpoint; step {state.step} was last"
        )
    return Said(ProgressingReason.STEP_REPORTED, "steps are being trained")


def _complete(view: _View) -> Said:
    decision = view.decision
    if isinstance(decision, End) and isinstance(decision.reason, CompleteReason):
        return Said(decision.reason, decision.message)
    before = view.before(ConditionType.COMPLETE)
    if isinstance(decision, CleanUp) and before is not None:
        return Said(reason_of(CompleteReason, before.reason), before.message)
    if view.state.outcome is Outcome.FAILED:
        return Said(CompleteReason.FAILED, "")
    if view.state.finishing:
        stage = view.seen.finish.stage
        return Said(CompleteReason.AUDITING, "audit and report are being made" if stage is Stage.RUNNING else "")
    return Said(CompleteReason.RUNNING, "")


def _failed(view: _View) -> Said:
    decision = view.decision
    if isinstance(decision, End) and isinstance(decision.reason, FailedReason):
        return Said(decision.reason, decision.message)
    before = view.before(ConditionType.FAILED)
    if isinstance(decision, CleanUp) and before is not None:
        return Said(reason_of(FailedReason, before.reason), before.message)
    return Said(FailedReason.NOT_FAILED, "")


_QUESTIONS: dict[ConditionType, Callable[[_View], Said]] = {
    ConditionType.ACCEPTED: _accepted,
    ConditionType.PREPARED: _prepared,
    ConditionType.SUSPENDED: _suspended,
    ConditionType.SCHEDULED: _scheduled,
    ConditionType.TRAINER_READY: _trainer,
    ConditionType.GENERATION_READY: _generation,
    ConditionType.REWARD_READY: _reward,
    ConditionType.PROGRESSING: _progressing,
    ConditionType.COMPLETE: _complete,
    ConditionType.FAILED: _failed,
}
