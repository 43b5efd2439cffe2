"""The job's status: conditions with their reasons, and the figures beside them.

Owns the words of the status. Conditions are the truth; `summary` is made from them, for people and for kubectl. Each
reason carries its sentence: docs/conditions.md is made from them.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Literal, TypeVar

from pydantic import ConfigDict, PlainSerializer

from areal.spec.block import Mutability, SpecBlock, knob
from areal.spec.text import Argument, LabelKey

CONDITION_MESSAGE = 4096  # characters; an API server's answer fits
IDLE_TEXT = 1024  # characters
FAILURES_KEPT = 5


Word = TypeVar("Word", bound=StrEnum)


def _said(cls: type[Word], value: str, says: str) -> Word:
    """A member of a vocabulary, with its sentence as docstring."""
    member = str.__new__(cls, value)
    member._value_ = value
    member.__doc__ = says
    return member


class ConditionType(StrEnum):
    """What a job's conditions are about, in the order of a job's life."""

    def __new__(cls, value: str, says: str) -> "ConditionType":
        return _said(cls, value, says)

    _value_: str

    ACCEPTED = "Accepted", "The job, its runtime and its recipe are such that it can run here."
    PREPARED = "Prepared", "Model, recipe and datasets were checked, and the datasets' snapshots are on the volume."
    SUSPENDED = "Suspended", "The job was asked to rest: its state is saved and its pods are gone."
    SCHEDULED = "Scheduled", "Every pod has a node."
    TRAINER_READY = "TrainerReady", "The trainers found each other and train."
    GENERATION_READY = "GenerationReady", "Servers with young enough weights answer."
    REWARD_READY = "RewardReady", "Somebody scores."
    PROGRESSING = "Progressing", "Steps are being trained."
    COMPLETE = "Complete", "The run reached its last step and its audit found nothing lost. It stays so."
    FAILED = "Failed", "The run ended before its last step. It stays so."


class ConditionReason(StrEnum):
    """Why a condition is as it is. A member's docstring is its sentence, `when` the status: False unless given."""

    _value_: str
    when: str

    def __new__(cls, value: str, says: str, when: str = "False") -> "ConditionReason":
        member = _said(cls, value, says)
        member.when = when
        return member


class AcceptedReason(ConditionReason):
    VALID = "Valid", "The job passed every rule, and every object that it needs was accepted by the API server.", "True"
    INVALID_SPEC = "InvalidSpec", "A field or a rule is broken; the message names it and the fix."
    LOCAL_PATH = "LocalPath", "A relative path means a file on the author's machine; `areal submit` uploads it."
    RUNTIME_NOT_FOUND = "RuntimeNotFound", "The runtime that the job names, or the operator's default, is absent."
    RECIPE_NOT_FOUND = "RecipeNotFound", "The ConfigMap with the recipe, or its key, is absent."
    NOT_AVAILABLE = "NotAvailable", "The job asks for something that this version does not have on a cluster."
    NOT_ALLOWED = "NotAllowed", "The job's pods break a rule of its runtime, allow or devices; the message names it."
    SECRET_REFUSED = "SecretRefused", "A Secret of podTemplate is absent or lacks the label by which jobs may read it."
    DRY_RUN_REJECTED = "DryRunRejected", "The API server refuses an object of the job; the message is the server's."


class PreparedReason(ConditionReason):
    SNAPSHOTS_WRITTEN = (
        "SnapshotsWritten",
        "Sources were checked and the datasets' snapshots are on the volume.",
        "True",
    )
    NOT_STARTED = "NotStarted", "The job isn't accepted yet, or rests."
    PREPARING = "Preparing", "The pod that checks sources and writes snapshots is at work."
    SOURCES_REFUSED = "SourcesRefused", "Model, recipe or dataset are at fault; the message says what and where."
    PREPARE_FAILED = "PrepareFailed", "The preparing pod failed for another reason and is tried again."


class SuspendedReason(ConditionReason):
    SUSPENDED = "Suspended", "All pods are gone; volume, ledger and status are kept.", "True"
    NOT_SUSPENDED = "NotSuspended", "The job may run."
    CHECKPOINT_PENDING = "CheckpointPending", "The trainers save a checkpoint before their pods are stopped."
    PODS_TERMINATING = "PodsTerminating", "The checkpoint is saved, pods are ending."


class ScheduledReason(ConditionReason):
    ALL_PODS_BOUND = "AllPodsBound", "Every pod has a node.", "True"
    NOT_STARTED = "NotStarted", "No pods are wanted yet."
    PODS_MISSING = "PodsMissing", "Pods are being created."
    PODS_REFUSED = (
        "PodsRefused",
        "The API server refuses pods of a role (quota, Pod Security); the message is the server's.",
    )
    NODE_SILENT = "NodeSilent", "A machine with a pod of the job does not answer; no deadline runs meanwhile."
    GATED = "Gated", "A pod has scheduling gates that another controller must remove."
    UNSCHEDULABLE = "Unschedulable", "The scheduler finds no node for a pod; the message is the scheduler's."
    SUSPENDED = "Suspended", "The job rests and wants no pods."
    QUOTA_PENDING = (
        "QuotaPending",
        "Kueue has not admitted the job, or evicts it; after the queue, the words are Kueue's.",
    )
    FINISHED = "Finished", "The run has ended and its pods are, or will be, cleaned up."


class TrainerReason(ConditionReason):
    RENDEZVOUS_COMPLETE = "RendezvousComplete", "All trainer processes of the epoch found each other.", "True"
    NOT_STARTED = "NotStarted", "No trainers are wanted yet."
    PODS_NOT_READY = "PodsNotReady", "Trainer pods pull their image, or start."
    FORMING = "Forming", "The pods are there, the processes of this epoch don't train yet."
    RESTARTING = "Restarting", "The trainers start again from the last checkpoint."
    VERIFYING = "Verifying", "A launcher of the gang doesn't answer; what became of it isn't known yet.", "Unknown"
    OPERATOR_BLIND = "OperatorBlind", "Nobody of the job answers the operator, which may be cut off itself.", "Unknown"
    SUSPENDED = "Suspended", "The job rests."
    FINISHED = "Finished", "The run has ended."


class GenerationReason(ConditionReason):
    ALL_REPLICAS_READY = "AllReplicasReady", "Every server answers with weights that are young enough.", "True"
    NOT_NEEDED = "NotNeeded", "The training generates nothing.", "True"
    SOME_REPLICAS_READY = "SomeReplicasReady", "At least one server answers; others start or were lost.", "True"
    NOT_STARTED = "NotStarted", "No servers are wanted yet."
    NO_REPLICA_READY = "NoReplicaReady", "No server answers with weights that are young enough."
    SUSPENDED = "Suspended", "The job rests."
    FINISHED = "Finished", "The run has ended."


class RewardReason(ConditionReason):
    READY = "Ready", "A reward service answers.", "True"
    NOT_NEEDED = "NotNeeded", "The recipe's workflow scores by itself, or the training scores nothing.", "True"
    NOT_STARTED = "NotStarted", "No reward services are wanted yet."
    NO_REPLICA_READY = "NoReplicaReady", "No reward service answers."
    SUSPENDED = "Suspended", "The job rests."
    FINISHED = "Finished", "The run has ended."


class ProgressingReason(ConditionReason):
    STEP_REPORTED = (
        "StepReported",
        "A trainer of the present epoch made a step, within runPolicy.stallTimeoutSeconds.",
        "True",
    )
    VERIFYING = "Verifying", "The controller or a launcher is silent; whether steps are made isn't known.", "Unknown"
    OPERATOR_BLIND = "OperatorBlind", "Nobody of the job answers the operator, which may be cut off itself.", "Unknown"
    AWAITING_FIRST_STEP = "AwaitingFirstStep", "All is starting, no step was trained yet."
    NOT_STARTED = "NotStarted", "No pods are wanted yet."
    STALLED = "Stalled", "No step was trained for runPolicy.stallTimeoutSeconds, whatever the pods look like."
    WAITING = (
        "Waiting",
        "No step for runPolicy.stallTimeoutSeconds, but for want of what the trainers can't bring about.",
    )
    BACKING_OFF = "BackingOff", "Epochs end without a step: the next one starts after a pause."
    RECOVERING = "Recovering", "The trainers start again; none made a step since."
    SUSPENDED = "Suspended", "The job rests."
    FINISHED = "Finished", "The run has ended."


class CompleteReason(ConditionReason):
    MAX_STEPS_REACHED = "MaxStepsReached", "Every step was trained and the audit is clean.", "True"
    RUNNING = "Running", "The run goes on."
    AUDITING = "Auditing", "The last step was trained; the audit and the report are being made."
    FAILED = "Failed", "The run ended before its last step, or its audit was not clean."


class FailedReason(ConditionReason):
    NOT_FAILED = "NotFailed", "Nothing ended the run."
    SOURCES_REFUSED = (
        "SourcesRefused",
        "Model, recipe or dataset are at fault; the message says what and where.",
        "True",
    )
    MAX_RESTARTS_EXCEEDED = "MaxRestartsExceeded", "failurePolicy.maxRestarts restarts were used up.", "True"
    RULE_MATCHED = "RuleMatched", "A rule of failurePolicy with the action FailJob matched a failure.", "True"
    PERMANENT_ERROR = (
        "PermanentError",
        "A role ended with 64 (config), 65 (data) or 70 (bug): no restart helps.",
        "True",
    )
    STARTUP_DEADLINE_EXCEEDED = (
        "StartupDeadlineExceeded",
        "runPolicy.startupDeadlineSeconds passed without a trained step, while every pod had a node.",
        "True",
    )
    QUEUE_DEADLINE_EXCEEDED = (
        "QueueDeadlineExceeded",
        "runPolicy.queueDeadlineSeconds passed while pods waited for nodes.",
        "True",
    )
    ACTIVE_DEADLINE_EXCEEDED = "ActiveDeadlineExceeded", "runPolicy.activeDeadlineSeconds passed.", "True"
    STALLED = "Stalled", "No step was trained for runPolicy.stallTimeoutSeconds, and restarts didn't help.", "True"
    AUDIT_FAILED = "AuditFailed", "The last step was trained, but the audit found groups lost or used twice.", "True"


REASONS: Mapping[ConditionType, type[ConditionReason]] = {
    ConditionType.ACCEPTED: AcceptedReason,
    ConditionType.PREPARED: PreparedReason,
    ConditionType.SUSPENDED: SuspendedReason,
    ConditionType.SCHEDULED: ScheduledReason,
    ConditionType.TRAINER_READY: TrainerReason,
    ConditionType.GENERATION_READY: GenerationReason,
    ConditionType.REWARD_READY: RewardReason,
    ConditionType.PROGRESSING: ProgressingReason,
    ConditionType.COMPLETE: CompleteReason,
    ConditionType.FAILED: FailedReason,
}


class Summary(StrEnum):
    """One word for people, made from the conditions."""

    def __new__(cls, value: str, says: str) -> "Summary":
        return _said(cls, value, says)

    _value_: str

    PENDING = "Pending", "The operator has not looked yet."
    REJECTED = "Rejected", "Accepted is False: correct the job, or what it names."
    PREPARING = "Preparing", "Sources are checked and snapshots are written."
    STARTING = "Starting", "Pods are starting; no step was trained yet."
    RUNNING = "Running", "Steps are being trained."
    RECOVERING = "Recovering", "The trainers start again from a checkpoint; the next step is awaited."
    VERIFYING = "Verifying", "A trainer or the controller doesn't answer; whether steps are made isn't known."
    STALLED = "Stalled", "No step for runPolicy.stallTimeoutSeconds."
    WAITING = "Waiting", "No step is trained, for want of nodes or servers; the condition Progressing says which."
    SUSPENDING = "Suspending", "A checkpoint is saved and pods are ending."
    SUSPENDED = "Suspended", "The job rests."
    QUEUED = "Queued", "The job waits for quota in its Kueue queue; the condition Scheduled says what is missing."
    COMPLETING = "Completing", "The last step is trained; audit and report are being made."
    COMPLETE = "Complete", "The run is done and its audit is clean."
    FAILED = "Failed", "The run ended; the condition Failed says why."


def _as_kubernetes(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[datetime, PlainSerializer(_as_kubernetes)]
"""A moment, to the second; made from a datetime, from seconds since 1970, or from RFC 3339 text."""


seen = partial(knob, change=Mutability.LIVE)  # the operator writes it whenever it changes


class StatusBlock(SpecBlock):
    """A part of the status. Fields that a newer operator wrote are left out when it is read."""

    model_config = ConfigDict(extra="ignore", strict=False)


class ConditionEntry(StatusBlock):
    """One condition, as everywhere in Kubernetes."""

    type: LabelKey = seen(what="What it is about.")
    status: Literal["True", "False", "Unknown"] = seen(what="Whether it holds.")
    observed_generation: int = seen(0, what="The job's generation that it speaks of.", ge=0)
    last_transition_time: Time = seen(what="When its status last changed.")
    reason: str = seen(
        what="Why, in one word.", min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
    )
    message: str = seen("", what="Why, in a sentence.", max_length=CONDITION_MESSAGE)


class RuntimeSnapshot(StatusBlock):
    """The runtime as it was when the job was accepted."""

    config_map_name: str = seen(what="The ConfigMap that keeps it.", max_length=253)
    hash: str = seen(what="sha256 of it.", max_length=64)
    tls: bool = seen(False, what="Whether the job's roles speak TLS.")


class GenerationStatus(StatusBlock):
    """The generation fleet, also for `/scale`."""

    replicas: int = seen(0, what="Pods that exist.", ge=0, le=1 << 20)
    ready_replicas: int = seen(0, what="Pods that answer.", ge=0, le=1 << 20)
    selector: str = seen("", what="Labels of its pods, for autoscalers.", max_length=1024)
    wanted: int | None = seen(None, what="Of an elastic fleet: pods that it has to have.", ge=1, le=1024)
    why: str | None = seen(None, what="Of an elastic fleet: why it has this size.", max_length=256)


class RoleStatus(StatusBlock):
    """The pods of one role."""

    name: str = seen(what="The role.", min_length=1, max_length=63)
    desired: int = seen(0, what="Pods that are wanted.", ge=0, le=1 << 20)
    ready: int = seen(0, what="Pods that are ready.", ge=0, le=1 << 20)
    failed: int = seen(0, what="Pods that have failed and aren't ready again.", ge=0, le=1 << 20)


class Evidence(StatusBlock):
    """What shows that steps are made: compared, never timed."""

    epoch: int = seen(0, what="The trainers' gang that made them.", ge=0)
    incarnation: str = seen("", what="The process of rank 0, by the number it drew at its start.", max_length=32)
    made: int = seen(0, what="Steps that it made; those of a checkpoint aren't counted.", ge=0)


class Progress(StatusBlock):
    """How far the run is, as its trainer and controller last reported."""

    step: int = seen(0, what="Steps trained.", ge=0)
    max_steps: int = seen(0, what="Steps of the run, as in force.", ge=0)
    policy_version: int | None = seen(None, what="The newest policy version.", ge=0)
    oldest_served_version: int | None = seen(None, what="The oldest version on a server.", ge=0)
    groups_trained: int | None = seen(None, what="Prompt groups trained.", ge=0)
    reward: float | None = seen(None, what="Mean reward of the last step.")
    staleness: float | None = seen(None, what="Mean age of the last step's tokens.", unit="versions", ge=0)
    wasted_share: float | None = seen(None, what="Part of the generated tokens that served nothing.", ge=0, le=1)
    estimated_remaining_seconds: int | None = seen(
        None, what="Until the last step, at the speed of the last ones.", unit="seconds", ge=0
    )
    last_report_time: Time | None = seen(None, what="When the last step that was made was reported.")
    evidence: Evidence | None = seen(None, what="What shows that steps are made.")


class CheckpointStatus(StatusBlock):
    """The last checkpoint."""

    step: int = seen(0, what="Its step.", ge=0)
    time: Time | None = seen(None, what="When it was first seen.")


class Attempts(StatusBlock):
    """How often the trainers were started."""

    epoch: int = seen(0, what="Number of the trainers' gang that runs now.", ge=0)
    restarts: int = seen(0, what="Restarts of the trainers.", ge=0)
    restarts_count_towards_max: int = seen(
        0, what="Those that count towards maxRestarts, since the last checkpoint.", ge=0
    )
    counted_since: Time | None = seen(None, what="The first of those that count: a window begins there.")
    fruitless: int = seen(0, what="Gangs that ended without a step, one after the other.", ge=0)
    next_epoch_time: Time | None = seen(None, what="The next gang doesn't start before then.")
    members: list[Argument] = seen(list, what="The uids of its pods; none while it forms.", max_length=1024)
    proven_epoch: int = seen(0, what="The newest gang that was seen complete.", ge=0)


class FailureEntry(StatusBlock):
    """One failure and what it led to."""

    time: Time = seen(what="When it was seen.")
    role: str = seen(what="Of which role.", max_length=63)
    pod: str = seen("", what="Of which pod.", max_length=253)
    exit_code: int | None = seen(None, what="The container's exit code.")
    reason: str = seen("", what="As Kubernetes says it, for example OOMKilled.", max_length=1024)
    rule: str = seen("", what="The rule of failurePolicy that matched.", max_length=253)
    action: str = seen("", what="What was done.", max_length=63)
    step: int | None = seen(None, what="The last step trained before it.", ge=0)
    epoch: int | None = seen(None, what="The trainers' gang at that time.", ge=0)
    owner: str = seen("", what="Whose it is: job, role, node, platform, queue or user.", max_length=63)
    counted: bool = seen(False, what="Whether it counts towards failurePolicy.maxRestarts.")
    cause: str = seen("", what="Why, by its identifier in docs/causes.md.", max_length=63)
    node: str = seen("", what="The node of the pod.", max_length=253)


class Waiting(StatusBlock):
    """How long the pods have waited for nodes: time in which no deadline but queueDeadlineSeconds runs."""

    seconds: int = seen(0, what="Until the wait before this one ended.", unit="seconds", ge=0)
    since: Time | None = seen(None, what="The wait that goes on.")


class GpuUsage(StatusBlock):
    """GPUs that the job's pods hold, and for how long it held how many."""

    gpus: int = seen(0, what="Held now: asked for by pods that have a node.", ge=0)
    gpu_seconds: int = seen(0, what="GPUs times seconds, until their number changed last.", unit="seconds", ge=0)
    since: Time | None = seen(None, what="When their number changed last.")

    def until(self, now: float) -> float:
        """GPU-seconds until a moment, in seconds since 1970."""
        return self.gpu_seconds + (self.gpus * max(0.0, now - self.since.timestamp()) if self.since else 0.0)


class IdleStatus(StatusBlock):
    """Why nothing is trained now."""

    cause: str = seen(
        what="In one word: a condition's reason, Kubernetes' word, or that of `areal why`.", max_length=63
    )
    role: str = seen("", what="The role that holds it up.", max_length=63)
    pod: str = seen("", what="Its pod.", max_length=253)
    since: Time = seen(what="When it was first seen.")
    text: str = seen(what="In a sentence.", max_length=IDLE_TEXT)

    @property
    def sentence(self) -> str:
        """The text with where that is before it, once."""
        place = self.pod or self.role
        return f"{place}: {self.text.removeprefix(f'{place}: ')}" if place else self.text


class AuditStatus(StatusBlock):
    """What the audit at the end of the run found."""

    lost: int = seen(0, what="Groups admitted and neither trained nor given up with a reason.", ge=0)
    duplicated: int = seen(0, what="Groups trained twice.", ge=0)
    tombstones: dict[LabelKey, int] = seen(dict, what="Groups given up, by reason.", max_length=32)
    ok: bool = seen(what="Whether every promise was kept.")
    message: str = seen("", what="The finding in a sentence.", max_length=CONDITION_MESSAGE)


class JobStatus(StatusBlock):
    """What the operator saw and decided. Nothing in it is input to anything but people and the operator itself."""

    conditions: list[ConditionEntry] = seen(list, what="The truth about the job.", max_length=16, list_key="type")
    observed_generation: int = seen(0, what="The job's generation that was last acted on.", ge=0)
    summary: str = seen("", what="One word, made from the conditions: for people, not for programs.", max_length=32)
    start_time: Time | None = seen(None, what="When it started, or was resumed last.")
    completion_time: Time | None = seen(None, what="When it ended.")
    runtime_snapshot: RuntimeSnapshot | None = seen(None, what="The runtime in force.")
    generation: GenerationStatus | None = seen(None, what="The generation fleet.")
    roles: list[RoleStatus] = seen(list, what="Pods by role.", max_length=16, list_key="name")
    progress: Progress | None = seen(None, what="How far it is.")
    checkpoint: CheckpointStatus | None = seen(None, what="The last checkpoint.")
    attempts: Attempts | None = seen(None, what="How often the trainers were started.")
    idle: IdleStatus | None = seen(None, what="Why nothing is trained now; absent while steps are.")
    waiting: Waiting | None = seen(None, what="How long pods waited for nodes.")
    usage: GpuUsage | None = seen(None, what="GPUs held; absent of a job that never held any.")
    failures: list[FailureEntry] = seen(list, what="The last failures, newest last.", max_length=FAILURES_KEPT)
    audit: AuditStatus | None = seen(None, what="The audit at the end.")

    def condition(self, type: ConditionType) -> ConditionEntry | None:
        """The condition of a type; None before the operator wrote it."""
        return next((condition for condition in self.conditions if condition.type == type), None)

    def holds(self, type: ConditionType) -> bool:
        """Whether a condition is there and True."""
        found = self.condition(type)
        return found is not None and found.status == "True"
