"""Conditions of a job's status, each by its own rule.

Owns which reason speaks when, and the rules of metav1 conditions: a transition time moves only when the status does,
a condition says which generation it speaks of. `Complete` and `Failed` are written by the decision that ends a job,
and once true they stay. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from areal.plan.cluster_names import Role
from areal.plan.role_specs import batch_jobs, long_running
from areal.spec.status import (
    CONDITION_MESSAGE,
    REASONS,
    AcceptedReason,
    CompleteReason,
    ConditionReason,
    ConditionType,
    FailedReason,
    GenerationReason,
    PreparedReason,
    ProgressingReason,
    RewardReason,
    ScheduledReason,
    SuspendedReason,
    TrainerReason,
)

from areal_operator.operator import fault_owner
from areal_operator.operator.decision import CleanUp, Converge, Decision, EndJob, Finish, Prepare, Reject, Suspend
from areal_operator.operator.failure_policy import STALLED
from areal_operator.operator.gang import TrainerGang, gang_of
from areal_operator.operator.job_state import Condition, JobOutcome, JobState, Rest, reason_of
from areal_operator.operator.observed import BatchStage, ControllerReport, Observation, Pod
from areal_operator.operator.times import CREATED_S, FRESH_S, QUIET_S, render, words


@dataclass(frozen=True)
class ConditionText:
    """A reason, whose `when` is the condition's status, and a sentence."""

    reason: ConditionReason
    message: str


def conditions(seen: Observation, decision: Decision, state: JobState, now: float) -> dict[ConditionType, Condition]:
    """All conditions after `decision`, in the order of a job's life."""
    view = _View(seen, decision, state, now)
    found = {}
    for kind, question in _QUESTIONS.items():
        said = view.at_rest(kind) or question(view)
        found[kind] = transition(state.conditions.get(kind), said, seen.generation, now)
    return found


def transition(before: Condition | None, said: ConditionText, generation: int, now: float) -> Condition:
    """The condition that says this now: its time is kept while its status is."""
    kept = before is not None and before.status == said.reason.when
    since = before.since if kept and before is not None else float(int(now))
    message = said.message if len(said.message) <= CONDITION_MESSAGE else said.message[: CONDITION_MESSAGE - 1] + "…"
    return Condition(said.reason.when, said.reason.value, message, since, generation)


@dataclass(frozen=True)
class _View:
    """What the questions are asked of. `state` is the one that is about to be written."""

    seen: Observation
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
    def queued(self) -> str:
        """What a job that would run waits for in its queue; empty for any other."""
        waits = self.seen.admitted is not None and not self.seen.admitted.job.spec.suspend
        return self.seen.queue.text if self.resting and waits and self.seen.queue is not None else ""

    @property
    def idle(self) -> bool:
        """Nothing but preparation has been asked for yet."""
        return isinstance(self.decision, Reject | Prepare) or not self.state.prepared

    @property
    def gang(self) -> TrainerGang | None:
        if self.seen.admitted is None:
            return None
        return gang_of(replace(self.seen, state=self.state), self.seen.admitted.replicas[Role.TRAINER], self.now)

    def at_rest(self, kind: ConditionType) -> ConditionText | None:
        """What roles and progress say of a job that has ended, rests, or isn't prepared; None of any other."""
        if kind not in _OF_WORK or not (self.over or self.resting or self.idle):
            return None
        reason = "FINISHED" if self.over else "SUSPENDED" if self.resting else "NOT_STARTED"
        return ConditionText(REASONS[kind][reason], "")

    def desired(self, role: Role) -> int:
        return self.replicas.get(role, 0)

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

    @property
    def blind(self) -> bool:
        """Whether neither a launcher nor the controller answers: the operator itself may be cut off."""
        return not self.heard and (self.gang is None or not self.gang.heard)

    @property
    def heard(self) -> bool:
        """Whether the controller answers."""
        controller = self.seen.reports.controller
        return controller is not None and self.now - controller.at <= QUIET_S

    @property
    def unheard(self) -> frozenset[str]:
        """Generation servers that the controller doesn't hear."""
        controller = self.seen.reports.controller
        return controller.unheard if controller is not None and self.heard else frozenset()

    def silence(self, pod: Pod) -> str:
        report = self.seen.reports.launchers.get(pod.uid)
        since = f" since {render(report.at)}" if report is not None else ""
        return f"{pod.name} on {pod.node or 'no node'} doesn't answer{since}"

    def ready(self, role: Role) -> list[Pod]:
        return [pod for pod in self.seen.of(role) if pod.ready and not pod.terminating]

    def before(self, kind: ConditionType) -> Condition | None:
        return self.state.conditions.get(kind)


def _as_before(before: Condition, reasons: type[ConditionReason]) -> ConditionText:
    return ConditionText(reason_of(reasons, before.reason, before.status), before.message)


def _accepted(view: _View) -> ConditionText:
    if isinstance(view.decision, Reject):
        return ConditionText(view.decision.reason, view.decision.message)
    if view.seen.refusal is not None and not view.over:
        return ConditionText(view.seen.refusal.reason, view.seen.refusal.message)
    return ConditionText(AcceptedReason.VALID, "every rule holds, and the API server takes every object")


def _prepared(view: _View) -> ConditionText:
    if view.state.prepared:
        return ConditionText(PreparedReason.SNAPSHOTS_WRITTEN, "sources are checked, snapshots are on the volume")
    if isinstance(view.decision, EndJob) and view.decision.reason is FailedReason.SOURCES_REFUSED:
        return ConditionText(PreparedReason.SOURCES_REFUSED, view.decision.message)
    if isinstance(view.decision, Prepare) and view.decision.retire:
        last = view.state.failures[-1] if view.state.failures else None
        text = f"the preparing pod ended with {last.exit_code} ({last.reason}) and is tried again" if last else ""
        return ConditionText(PreparedReason.PREPARE_FAILED, text)
    if isinstance(view.decision, Prepare):
        pods = view.seen.of(Role.PREPARE)
        why = next((f": {pod.name} is {pod.waiting}" for pod in pods if pod.waiting), "")
        return ConditionText(PreparedReason.PREPARING, f"the preparing pod is at work{why}")
    if view.over and (before := view.before(ConditionType.PREPARED)) is not None:
        return _as_before(before, PreparedReason)
    return ConditionText(PreparedReason.NOT_STARTED, "")


def _suspended(view: _View) -> ConditionText:
    if not view.resting or view.over:
        return ConditionText(SuspendedReason.NOT_SUSPENDED, "")
    pods = [pod for pod in view.seen.pods if not pod.over]
    match view.state.rest:
        case Rest.SAVING:
            return ConditionText(SuspendedReason.CHECKPOINT_PENDING, "the trainers save a checkpoint and stop")
        case Rest.ASLEEP:
            why = view.queued or "set spec.suspend to false to go on"
            return ConditionText(SuspendedReason.SUSPENDED, f"all pods are gone; {why}")
        case _:
            return ConditionText(SuspendedReason.PODS_TERMINATING, f"{len(pods)} pods are ending{_held(view, pods)}")


def _held(view: _View, pods: list[Pod]) -> str:
    """Which pods a silent machine holds, and what to do."""
    silent = fault_owner.silent_pod(view.seen, [pod for pod in pods if pod.terminating])
    return f"; {fault_owner.silence(silent)}" if silent is not None else ""


_KEPT = (ScheduledReason.UNSCHEDULABLE, ScheduledReason.PODS_REFUSED, ScheduledReason.GATED)
"""Reasons that stay when the job has failed: they may be why."""


def _scheduled(view: _View) -> ConditionText:
    if view.over:
        before = view.before(ConditionType.SCHEDULED)
        if before is not None and view.state.outcome is JobOutcome.FAILED and before.reason in _KEPT:
            return _as_before(before, ScheduledReason)
        return ConditionText(ScheduledReason.FINISHED, "")
    if view.resting:
        reason = ScheduledReason.QUOTA_PENDING if view.queued else ScheduledReason.SUSPENDED
        return ConditionText(reason, view.queued)
    if isinstance(view.decision, Reject):
        return ConditionText(ScheduledReason.NOT_STARTED, "")
    for role, why in view.seen.refused.items():
        return ConditionText(ScheduledReason.PODS_REFUSED, f"pods of {role.value} are refused: {why}")
    if (pod := fault_owner.unbound(view.seen)) is not None:
        bound = pod.conditions["PodScheduled"]
        if bound.reason == fault_owner.UNSCHEDULABLE:
            return ConditionText(ScheduledReason.UNSCHEDULABLE, f"{pod.name}: {bound.message}")
        return ConditionText(ScheduledReason.GATED, f"{pod.name}: {bound.message or 'has scheduling gates'}")
    silent = fault_owner.silent_pod(view.seen)
    if silent is not None:
        return ConditionText(ScheduledReason.NODE_SILENT, fault_owner.silence(silent))
    if not isinstance(view.decision, Converge | Finish):
        pods = view.seen.of(Role.PREPARE)
        wanted = 1
    else:
        pods = tuple(pod for pod in view.seen.pods if pod.role not in batch_jobs())
        wanted = sum(view.desired(role) for role in long_running())
    bound_pods = sum(bool(pod.node) for pod in pods)
    if bound_pods < wanted:
        return ConditionText(ScheduledReason.PODS_MISSING, f"{bound_pods} of {wanted} pods have a node")
    return ConditionText(ScheduledReason.ALL_PODS_BOUND, f"{bound_pods} pods have a node")


def _trainer(view: _View) -> ConditionText:
    gang = view.gang
    if gang is None:
        return ConditionText(TrainerReason.NOT_STARTED, "")
    if isinstance(view.decision, Finish):
        return ConditionText(TrainerReason.FINISHED, "the last step is trained")
    before = view.before(ConditionType.TRAINER_READY)
    if gang.formed and gang.proven and not view.seen.reports.at and before is not None:  # nobody was asked yet
        return _as_before(before, TrainerReason)
    if gang.proven and (pod := gang.quiet()) is not None:
        return ConditionText(TrainerReason.OPERATOR_BLIND if view.blind else TrainerReason.VERIFYING, view.silence(pod))
    if gang.formed and gang.up == gang.size:
        return ConditionText(TrainerReason.RENDEZVOUS_COMPLETE, f"{gang.size} pods train in epoch {view.state.epoch}")
    if gang.formed:
        text = f"epoch {view.state.epoch}: {gang.up} of {gang.size} pods are in it"
        return ConditionText(TrainerReason.RESTARTING if view.state.epoch > 1 else TrainerReason.FORMING, text)
    why = "; ".join(gang.missing[:3])
    if view.state.epoch > 0:
        return ConditionText(TrainerReason.RESTARTING, f"waiting until the gang is whole: {why}")
    return ConditionText(TrainerReason.PODS_NOT_READY, why)


def _generation(view: _View) -> ConditionText:
    home = view.seen.home(Role.GENERATION)
    if home not in view.replicas:
        return ConditionText(GenerationReason.NOT_NEEDED, "the training generates nothing")
    unheard = [pod for pod in view.ready(home) if f"{home}-{pod.index}" in view.unheard]  # a dead machine's look ready
    ready, wanted = len(view.ready(home)) - len(unheard), view.desired(home)
    text = f"{ready} of {wanted} {'servers answer' if home is Role.GENERATION else 'pods have servers that answer'}"
    text += f"; {unheard[0].name} doesn't answer the controller" if unheard else ""
    if ready >= wanted:
        return ConditionText(GenerationReason.ALL_REPLICAS_READY, text)
    if ready:
        return ConditionText(GenerationReason.SOME_REPLICAS_READY, text)
    return ConditionText(GenerationReason.NO_REPLICA_READY, text + _waiting(view, home))


def _reward(view: _View) -> ConditionText:
    roles = [role for role in (Role.REWARD, Role.REWARD_CUSTOM, Role.REWARD_MODEL) if view.desired(role)]
    if not roles:
        generates = view.seen.home(Role.GENERATION) in view.replicas
        text = "the workflow scores by itself" if generates else "the training scores nothing"
        return ConditionText(RewardReason.NOT_NEEDED, text)
    ready, wanted = len(view.ready(roles[0])), view.desired(roles[0])
    text = f"{ready} of {wanted} pods answer"
    report = view.seen.reports.controller if view.heard else None
    if ready and report is not None and report.unserved_role == Role.REWARD and report.unserved_s > QUIET_S:
        text = f"{text} Kubernetes, and none the workers: {report.unserved}"
        return ConditionText(RewardReason.VERIFYING, text)
    if ready:
        return ConditionText(RewardReason.READY, text)
    return ConditionText(RewardReason.NO_REPLICA_READY, text + _waiting(view, roles[0]))


def _waiting(view: _View, role: Role) -> str:
    """Why a role's first waiting pod doesn't run, in Kubernetes' words."""
    for pod in view.seen.of(role):
        if pod.waiting:
            return f"; {pod.name}: {pod.waiting} {pod.waiting_message}".rstrip()
    return ""


def _progressing(view: _View) -> ConditionText:
    state = view.state
    if isinstance(view.decision, Finish):
        return ConditionText(ProgressingReason.FINISHED, f"step {state.step} was the last")
    controller = view.seen.reports.controller
    fresh = controller is not None and view.now - controller.at <= FRESH_S
    said = controller.stalled if fresh and controller is not None else ""
    last = next((f for f in reversed(state.failures) if f.role == Role.TRAINER), None)
    unbroken = state.step_at or 0.0
    if last is not None and last.reason == STALLED and last.at >= unbroken:
        text = f"no step since {words(view.now - unbroken)}{f': {said}' if said else ''}"
        return ConditionText(ProgressingReason.STALLED, text)
    if said:
        return ConditionText(ProgressingReason.STALLED, said)
    if state.next_epoch_at is not None and view.now < state.next_epoch_at:
        text = f"{state.fruitless} epochs ended without a step; the next starts at {render(state.next_epoch_at)}"
        return ConditionText(ProgressingReason.BACKING_OFF, text)
    if state.step_at is None:
        return ConditionText(ProgressingReason.AWAITING_FIRST_STEP, "no step was trained yet")
    lack = fault_owner.lack_of(view.seen, view.replicas)
    if lack is not None and (view.overdue(unbroken) or view.unplaced_long):
        return ConditionText(ProgressingReason.WAITING, f"step {state.step} was last; {lack.text}")
    if not state.members:
        lost = f"{last.pod or 'a trainer'} was lost ({last.reason}); " if last is not None else ""
        return ConditionText(ProgressingReason.RECOVERING, f"{lost}step {state.step} was last")
    if (gang := view.gang) is not None and (pod := gang.quiet()) is not None:
        reason = ProgressingReason.OPERATOR_BLIND if view.blind else ProgressingReason.VERIFYING
        return ConditionText(reason, f"{view.silence(pod)}; step {state.step} was last")
    if controller is not None and view.now - max(controller.at, unbroken) > QUIET_S:
        text = f"the controller doesn't answer since {render(controller.at)}; step {state.step} was last"
        return ConditionText(ProgressingReason.VERIFYING, text)
    if controller is not None and (said := _unserved(controller, unbroken)):
        return ConditionText(ProgressingReason.VERIFYING, f"{said}; step {state.step} was last")
    lost_role = next((f for f in reversed(state.failures) if f.role in (Role.CONTROLLER, Role.REDIS)), None)
    if lost_role is not None and lost_role.at >= unbroken:  # the new one's first answer is no step
        text = f"{lost_role.pod or lost_role.role} was lost ({lost_role.reason}); step {state.step} was last"
        return ConditionText(ProgressingReason.RECOVERING, text)
    began = max(state.started_at or 0.0, last.at if last is not None else 0.0)
    shown = state.evidence
    if shown is None and unbroken > began:  # as an operator before this one left it
        return ConditionText(ProgressingReason.STEP_REPORTED, "steps are being trained")
    if shown is None or shown.epoch != state.epoch or not shown.made:
        text = f"epoch {state.epoch} goes on from its checkpoint at step {state.step}; its first step is awaited"
        return ConditionText(ProgressingReason.RECOVERING, text)
    text = f"steps are being trained: step {state.step}, {shown.made} of them in epoch {state.epoch}"
    return ConditionText(ProgressingReason.STEP_REPORTED, text)


def _unserved(controller: ControllerReport, unbroken: float) -> str:
    """The role that gave no answer for longer than QUIET_S, without a step since, in words; empty without one."""
    ledger = controller.at - controller.ledger_silent_s
    if controller.at - max(ledger, unbroken) > QUIET_S:
        return f"the ledger doesn't answer the controller since {render(ledger)}"
    role = controller.at - controller.unserved_s
    if controller.unserved and controller.at - max(role, unbroken) > QUIET_S:
        return f"{controller.unserved} from {render(role)} on, and no step came after it"
    return ""


def _ended(view: _View, kind: ConditionType, reasons: type[CompleteReason | FailedReason]) -> ConditionText | None:
    """What the decision that ends a job says of an outcome, and what stays of it; None before."""
    decision, before = view.decision, view.before(kind)
    if isinstance(decision, EndJob) and isinstance(decision.reason, reasons):
        return ConditionText(decision.reason, decision.message)
    return _as_before(before, reasons) if isinstance(decision, CleanUp) and before is not None else None


def _complete(view: _View) -> ConditionText:
    if (said := _ended(view, ConditionType.COMPLETE, CompleteReason)) is not None:
        return said
    if view.state.outcome is JobOutcome.FAILED:
        return ConditionText(CompleteReason.FAILED, "")
    if view.state.finishing:
        made = view.seen.finish.stage is BatchStage.RUNNING
        return ConditionText(CompleteReason.AUDITING, "audit and report are being made" if made else "")
    return ConditionText(CompleteReason.RUNNING, "")


def _failed(view: _View) -> ConditionText:
    return _ended(view, ConditionType.FAILED, FailedReason) or ConditionText(FailedReason.NOT_FAILED, "")


_OF_WORK = frozenset({
    ConditionType.TRAINER_READY, ConditionType.GENERATION_READY, ConditionType.REWARD_READY, ConditionType.PROGRESSING,
})  # fmt: skip
_QUESTIONS: dict[ConditionType, Callable[[_View], ConditionText]] = {
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
