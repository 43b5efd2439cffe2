"""State of a job that must survive the operator's process.

Owns which part of a job's status is read back: a new operator process knows of a job what its status says, and
nothing else. The trainer gang's epoch and members, what was counted, since when the job runs or rests, and how it
ended. All times are seconds since 1970 and whole, because that is how a status keeps them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TypeVar

from areal.spec.status import CompleteReason, ConditionReason, ConditionType, SuspendedReason
from pydantic.alias_generators import to_camel

from areal_operator.kube.resources import Json
from areal_operator.operator import times


class Rest(StrEnum):
    """Whether the job rests, by the reason of its condition Suspended."""

    AWAKE = SuspendedReason.NOT_SUSPENDED.value
    SAVING = SuspendedReason.CHECKPOINT_PENDING.value  # the trainers write a checkpoint and stop
    ENDING = SuspendedReason.PODS_TERMINATING.value
    ASLEEP = SuspendedReason.SUSPENDED.value  # no pod is left


class JobOutcome(StrEnum):
    """How a job ended."""

    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True, order=True)
class JobFailure:
    """One failure that has been dealt with, as the status shows it."""

    at: float
    role: str = ""
    pod: str = ""
    exit_code: int | None = None
    reason: str = ""
    rule: str = ""
    action: str = ""
    step: int = 0
    epoch: int = 0
    owner: str = ""
    counted: bool = False
    cause: str = ""
    node: str = ""


@dataclass(frozen=True)
class Condition:
    """One condition of a job or a pod: since when its status is so, and which generation of the spec it speaks of."""

    status: str
    reason: str
    message: str
    since: float
    generation: int = 0


@dataclass(frozen=True)
class StepEvidence:
    """Evidence that steps are made now: what one process of rank 0 made in one epoch. Says nothing of any other."""

    epoch: int
    incarnation: str = ""  # of the process; "" where it names none
    made: int = 0  # steps; those that a checkpoint brought back are none


@dataclass(frozen=True)
class JobState:
    """A job as its status remembers it."""

    accepted: bool = False
    prepared: bool = False
    started_at: float | None = None  # or resumed
    rest: Rest = Rest.AWAKE
    saving_since: float = 0.0  # when the suspension took the trainers away, or when they were lost before it
    epoch: int = 0
    members: tuple[str, ...] = ()  # uids of the pods that run in `epoch`; none: the gang has to form
    proven_epoch: int = 0  # the newest one whose rendezvous was seen complete
    restarts: int = 0
    counted: int = 0  # restarts that count, since the last checkpoint and within the window
    counted_since: float | None = None  # the first of them
    fruitless: int = 0  # epochs without a step, one after the other
    next_epoch_at: float | None = None  # not before then
    waited_s: float = 0.0  # for nodes, since the start, the resumption or the last step
    waiting_since: float | None = None  # and still
    checkpoint_step: int = 0  # newest checkpoint that was reported
    failures: tuple[JobFailure, ...] = ()  # oldest first
    step: int = 0
    step_at: float | None = None  # when a step that was made was reported last
    evidence: StepEvidence | None = None  # of the newest step; None before the first, or of an older operator
    finishing: bool = False  # the trainer is done: the audit is what remains
    outcome: JobOutcome | None = None
    ended_at: float | None = None
    snapshot: str = ""  # hash of the runtime that the job keeps
    servers: int = 0  # wanted of an elastic fleet; 0: as the spec says
    servers_why: str = ""
    conditions: Mapping[str, Condition] = field(default_factory=dict)


R = TypeVar("R", bound=ConditionReason)


def reason_of(kind: type[R], word: str, when: str = "False") -> R:
    """The reason that a status spells `word`; a newer operator's word as it stands, of a condition that is `when`."""
    known = next((member for member in kind if member.value == word), None)
    if known is not None:
        return known
    newer = str.__new__(kind, word)
    newer._name_ = newer._value_ = word
    newer.when = when
    return newer


def rest_of(suspended: Condition) -> Rest:
    """Whether the job rests. Under a newer operator's word its pods may be ending, if the condition holds."""
    if suspended.reason in {member.value for member in Rest}:
        return Rest(suspended.reason)
    return Rest.ENDING if suspended.status == "True" else Rest.AWAKE


def conditions_in(status: Json) -> dict[str, Condition]:
    """The conditions of a job's or a pod's status, by type."""
    return {
        c["type"]: Condition(
            c.get("status", "Unknown"), c.get("reason", ""), c.get("message", ""),
            times.parse(c.get("lastTransitionTime")) or 0.0, int(c.get("observedGeneration", 0)),
        )
        for c in status.get("conditions", [])
    }  # fmt: skip


def state_in(status: Json) -> JobState:
    """The state in a status as the API server keeps it; what is missing was never so."""
    conditions = conditions_in(status)

    def true(name: str) -> bool:
        return name in conditions and conditions[name].status == "True"

    attempts, progress, waiting = (status.get(part, {}) for part in ("attempts", "progress", "waiting"))
    resting = conditions.get(ConditionType.SUSPENDED)
    complete = conditions.get(ConditionType.COMPLETE)
    trainer = conditions.get(ConditionType.TRAINER_READY)
    epoch, evidence = int(attempts.get("epoch", 0)), progress.get("evidence")
    return JobState(
        accepted=true(ConditionType.ACCEPTED),
        prepared=true(ConditionType.PREPARED),
        started_at=times.parse(status.get("startTime")),
        rest=rest_of(resting) if resting else Rest.AWAKE,
        saving_since=trainer.since if trainer else 0.0,
        epoch=epoch,
        members=tuple(attempts.get("members", ())),
        proven_epoch=int(attempts.get("provenEpoch", epoch if true(ConditionType.TRAINER_READY) else 0)),
        restarts=int(attempts.get("restarts", 0)),
        counted=int(attempts.get("restartsCountTowardsMax", 0)),
        counted_since=times.parse(attempts.get("countedSince")),
        fruitless=int(attempts.get("fruitless", 0)),
        next_epoch_at=times.parse(attempts.get("nextEpochTime")),
        waited_s=float(waiting.get("seconds", 0)),
        waiting_since=times.parse(waiting.get("since")),
        checkpoint_step=int(status.get("checkpoint", {}).get("step", 0)),
        failures=tuple(sorted(_failure(entry) for entry in status.get("failures", []))),
        step=int(progress.get("step", 0)),
        step_at=times.parse(progress.get("lastReportTime")),
        evidence=StepEvidence(**evidence) if evidence else None,
        finishing=complete is not None and complete.reason == CompleteReason.AUDITING,
        outcome=next((outcome for outcome in JobOutcome if true(outcome)), None),
        ended_at=times.parse(status.get("completionTime")),
        snapshot=status.get("runtimeSnapshot", {}).get("hash", ""),
        servers=int(status.get("generation", {}).get("wanted", 0)),
        servers_why=status.get("generation", {}).get("why", ""),
        conditions=conditions,
    )


_FAILURE = {field.name: to_camel(field.name) for field in fields(JobFailure) if field.name != "at"}


def _failure(entry: Json) -> JobFailure:
    told = {name: entry[word] for name, word in _FAILURE.items() if word in entry}
    return JobFailure(times.parse(entry.get("time")) or 0.0, **told)


def failure_entry(failure: JobFailure) -> Json:
    """A failure as the status has it."""
    told = {word: value for name, word in _FAILURE.items() if (value := getattr(failure, name)) is not None}
    return {"time": times.render(failure.at), **told}
