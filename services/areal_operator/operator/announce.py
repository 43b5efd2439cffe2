"""Events of a job, made from two statuses.

Owns which transitions a person cares about and in which words. Events come from what was written, so each is told
once however often the job is looked at. Pure.
"""

from dataclasses import dataclass
from typing import Literal

from areal.spec.status import (
    AcceptedReason,
    CompleteReason,
    ConditionType,
    PreparedReason,
    ProgressingReason,
    ScheduledReason,
    SuspendedReason,
    TrainerReason,
)

from areal_operator.kube.resources import Json
from areal_operator.operator.job_state import JobCondition, JobState, state_in


@dataclass(frozen=True)
class Announcement:
    """One event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


_NORMAL: dict[tuple[ConditionType, str], tuple[str, str]] = {
    (ConditionType.ACCEPTED, AcceptedReason.VALID): ("Accepted", "the job is accepted"),
    (ConditionType.PREPARED, PreparedReason.PREPARING): ("Preparing", "sources are checked, snapshots are written"),
    (ConditionType.PREPARED, PreparedReason.SNAPSHOTS_WRITTEN): ("Prepared", ""),
    (ConditionType.TRAINER_READY, TrainerReason.RENDEZVOUS_COMPLETE): ("TrainerReady", ""),
    (ConditionType.PROGRESSING, ProgressingReason.STEP_REPORTED): ("StepReported", ""),
    (ConditionType.SUSPENDED, SuspendedReason.CHECKPOINT_PENDING): ("Suspending", ""),
    (ConditionType.SUSPENDED, SuspendedReason.SUSPENDED): ("Suspended", ""),
    (ConditionType.COMPLETE, CompleteReason.AUDITING): (
        "Auditing",
        "the last step is trained; the audit is being made",
    ),
    (ConditionType.COMPLETE, CompleteReason.MAX_STEPS_REACHED): ("Complete", ""),
}
"""Condition and its new reason → event's reason, and its words where the condition's message won't do."""

_WARNING = {
    (ConditionType.PREPARED, PreparedReason.PREPARE_FAILED),
    (ConditionType.SCHEDULED, ScheduledReason.UNSCHEDULABLE),
    (ConditionType.SCHEDULED, ScheduledReason.PODS_REFUSED),
    (ConditionType.SCHEDULED, ScheduledReason.NODE_SILENT),
    (ConditionType.PROGRESSING, ProgressingReason.STALLED),
    (ConditionType.PROGRESSING, ProgressingReason.WAITING),
    (ConditionType.PROGRESSING, ProgressingReason.BACKING_OFF),
}


def announcements(before: Json, after: Json) -> list[Announcement]:
    """The events of one write of the status, in the order of a job's life."""
    was, now = state_in(before), state_in(after)
    found = []
    for kind in ConditionType:
        old, new = was.conditions.get(kind), now.conditions.get(kind)
        if new is not None and (old is None or (old.status, old.reason) != (new.status, new.reason)):
            found += _transition(kind, old, new)
    return [*found, *_failures(was, now), *_epoch(was, now)]


def _transition(kind: ConditionType, old: JobCondition | None, new: JobCondition) -> list[Announcement]:
    if kind is ConditionType.ACCEPTED and new.status == "False":
        return [Announcement("Warning", new.reason, new.message)]
    if kind is ConditionType.FAILED and new.status == "True":
        return [Announcement("Warning", new.reason, new.message)]
    if (kind, new.reason) in _WARNING:
        return [Announcement("Warning", new.reason, new.message)]
    if kind is ConditionType.SUSPENDED and new.reason == SuspendedReason.NOT_SUSPENDED:
        resumed = old is not None and old.reason != SuspendedReason.NOT_SUSPENDED
        return [Announcement("Normal", "Resumed", "the job goes on from its last checkpoint")] if resumed else []
    if (kind, new.reason) in _NORMAL:
        reason, words = _NORMAL[kind, new.reason]
        return [Announcement("Normal", reason, words or new.message)]
    return []


def _failures(was: JobState, now: JobState) -> list[Announcement]:
    found = []
    for failure in now.failures:
        if failure in was.failures:
            continue
        code = f"exit code {failure.exit_code}" if failure.exit_code is not None else "no exit code"
        rule = f", rule {failure.rule}" if failure.rule else ""
        text = f"{failure.pod or failure.role} at step {failure.step}: {failure.reason}, {code}{rule}: {failure.action}"
        found.append(Announcement("Warning", f"{failure.action}", text))
    return found


def _epoch(was: JobState, now: JobState) -> list[Announcement]:
    if now.epoch == was.epoch:
        return []
    return [Announcement("Normal", "EpochStarted", f"{len(now.members)} trainers start in epoch {now.epoch}")]
