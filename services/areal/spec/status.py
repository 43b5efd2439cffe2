"""The job's status: conditions with their reasons, and the figures beside them.

Owns the words of the status. Conditions are the truth; `summary` is made from them, for people and for kubectl. Each
word has a sentence in `conditions.yaml`: docs/conditions.md is made from them.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Literal

from pydantic import ConfigDict, PlainSerializer

from areal.spec.block import Mutability, SpecBlock, knob
from areal.spec.text import Argument, LabelKey
from areal.yaml_file.table import read_table

CONDITION_MESSAGE = 4096  # characters; an API server's answer fits
IDLE_TEXT = 1024  # characters
FAILURES_KEPT = 5


_SENTENCES = read_table("areal.spec", "conditions.yaml")


class StatusWord(StrEnum):
    """A word of the status; its docstring is its sentence in `conditions.yaml`. `when`: what a reason comes with."""

    when: str

    def __init__(self, word: str) -> None:
        said = _SENTENCES[type(self).__name__][word]
        self.when, self.__doc__ = next(iter(said.items())) if isinstance(said, dict) else ("False", said)


class ConditionType(StatusWord):
    """What a job's conditions are about, in the order of a job's life."""

    ACCEPTED = "Accepted"
    PREPARED = "Prepared"
    SUSPENDED = "Suspended"
    SCHEDULED = "Scheduled"
    TRAINER_READY = "TrainerReady"
    GENERATION_READY = "GenerationReady"
    REWARD_READY = "RewardReady"
    PROGRESSING = "Progressing"
    COMPLETE = "Complete"
    FAILED = "Failed"


class ConditionReason(StatusWord):
    """Why a condition is as it is."""


class AcceptedReason(ConditionReason):
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    LOCAL_PATH = "LocalPath"
    RUNTIME_NOT_FOUND = "RuntimeNotFound"
    RECIPE_NOT_FOUND = "RecipeNotFound"
    NOT_AVAILABLE = "NotAvailable"
    NOT_ALLOWED = "NotAllowed"
    SECRET_REFUSED = "SecretRefused"
    DRY_RUN_REJECTED = "DryRunRejected"


class PreparedReason(ConditionReason):
    SNAPSHOTS_WRITTEN = "SnapshotsWritten"
    NOT_STARTED = "NotStarted"
    PREPARING = "Preparing"
    SOURCES_REFUSED = "SourcesRefused"
    PREPARE_FAILED = "PrepareFailed"


class SuspendedReason(ConditionReason):
    SUSPENDED = "Suspended"
    NOT_SUSPENDED = "NotSuspended"
    CHECKPOINT_PENDING = "CheckpointPending"
    PODS_TERMINATING = "PodsTerminating"


class ScheduledReason(ConditionReason):
    ALL_PODS_BOUND = "AllPodsBound"
    NOT_STARTED = "NotStarted"
    PODS_MISSING = "PodsMissing"
    PODS_REFUSED = "PodsRefused"
    NODE_SILENT = "NodeSilent"
    GATED = "Gated"
    UNSCHEDULABLE = "Unschedulable"
    SUSPENDED = "Suspended"
    QUOTA_PENDING = "QuotaPending"
    FINISHED = "Finished"


class TrainerReason(ConditionReason):
    RENDEZVOUS_COMPLETE = "RendezvousComplete"
    NOT_STARTED = "NotStarted"
    PODS_NOT_READY = "PodsNotReady"
    FORMING = "Forming"
    RESTARTING = "Restarting"
    VERIFYING = "Verifying"
    OPERATOR_BLIND = "OperatorBlind"
    SUSPENDED = "Suspended"
    FINISHED = "Finished"


class GenerationReason(ConditionReason):
    ALL_REPLICAS_READY = "AllReplicasReady"
    NOT_NEEDED = "NotNeeded"
    SOME_REPLICAS_READY = "SomeReplicasReady"
    NOT_STARTED = "NotStarted"
    NO_REPLICA_READY = "NoReplicaReady"
    SUSPENDED = "Suspended"
    FINISHED = "Finished"


class RewardReason(ConditionReason):
    READY = "Ready"
    NOT_NEEDED = "NotNeeded"
    NOT_STARTED = "NotStarted"
    NO_REPLICA_READY = "NoReplicaReady"
    VERIFYING = "Verifying"
    SUSPENDED = "Suspended"
    FINISHED = "Finished"


class ProgressingReason(ConditionReason):
    STEP_REPORTED = "StepReported"
    VERIFYING = "Verifying"
    OPERATOR_BLIND = "OperatorBlind"
    AWAITING_FIRST_STEP = "AwaitingFirstStep"
    NOT_STARTED = "NotStarted"
    STALLED = "Stalled"
    WAITING = "Waiting"
    BACKING_OFF = "BackingOff"
    RECOVERING = "Recovering"
    SUSPENDED = "Suspended"
    FINISHED = "Finished"


class CompleteReason(ConditionReason):
    MAX_STEPS_REACHED = "MaxStepsReached"
    RUNNING = "Running"
    AUDITING = "Auditing"
    FAILED = "Failed"


class FailedReason(ConditionReason):
    NOT_FAILED = "NotFailed"
    SOURCES_REFUSED = "SourcesRefused"
    MAX_RESTARTS_EXCEEDED = "MaxRestartsExceeded"
    RULE_MATCHED = "RuleMatched"
    PERMANENT_ERROR = "PermanentError"
    STARTUP_DEADLINE_EXCEEDED = "StartupDeadlineExceeded"
    QUEUE_DEADLINE_EXCEEDED = "QueueDeadlineExceeded"
    ACTIVE_DEADLINE_EXCEEDED = "ActiveDeadlineExceeded"
    STALLED = "Stalled"
    AUDIT_FAILED = "AuditFailed"


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


class Summary(StatusWord):
    """One word for people, made from the conditions."""

    PENDING = "Pending"
    REJECTED = "Rejected"
    PREPARING = "Preparing"
    STARTING = "Starting"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    VERIFYING = "Verifying"
    STALLED = "Stalled"
    WAITING = "Waiting"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    QUEUED = "Queued"
    COMPLETING = "Completing"
    COMPLETE = "Complete"
    FAILED = "Failed"


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
