"""Events of a job, made from two statuses.

Owns which transitions a person cares about and in which words. Events come from what was written, so each is told
once however often the job is looked at. Pure.
"""

from dataclasses import dataclass
from typing import Literal

from areal.spec import status

from areal_operator.kube.resources import Json
from areal_operator.operator.job_state import Condition, JobState, state_in


@dataclass(frozen=True)
class Announcement:
    """One event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


_ON = status.ConditionType
_NORMAL: dict[tuple[status.ConditionType, str], tuple[str, str]] = {
    (_ON.ACCEPTED, status.AcceptedReason.VALID): ("Accepted", "the job is accepted"),
    (_ON.PREPARED, status.PreparedReason.PREPARING): ("Preparing", "sources are checked, snapshots are written"),
    (_ON.PREPARED, status.PreparedReason.SNAPSHOTS_WRITTEN): ("Prepared", ""),
    (_ON.TRAINER_READY, status.TrainerReason.RENDEZVOUS_COMPLETE): ("TrainerReady", ""),
    (_ON.PROGRESSING, status.ProgressingReason.STEP_REPORTED): ("StepReported", ""),
    (_ON.SUSPENDED, status.SuspendedReason.CHECKPOINT_PENDING): ("Suspending", ""),
    (_ON.SUSPENDED, status.SuspendedReason.SUSPENDED): ("Suspended", ""),
    (_ON.COMPLETE, status.CompleteReason.AUDITING): ("Auditing", "the last step is trained; the audit is being made"),
    (_ON.COMPLETE, status.CompleteReason.MAX_STEPS_REACHED): ("Complete", ""),
}
"""Condition and its new reason → event's reason, and its words where the condition's message won't do."""

_WARNING = {
    (status.ConditionType.PREPARED, status.PreparedReason.PREPARE_FAILED),
    (status.ConditionType.SCHEDULED, status.ScheduledReason.UNSCHEDULABLE),
    (status.ConditionType.SCHEDULED, status.ScheduledReason.PODS_REFUSED),
    (status.ConditionType.SCHEDULED, status.ScheduledReason.NODE_SILENT),
    (status.ConditionType.PROGRESSING, status.ProgressingReason.STALLED),
    (status.ConditionType.PROGRESSING, status.ProgressingReason.WAITING),
    (status.ConditionType.PROGRESSING, status.ProgressingReason.BACKING_OFF),
}


def announcements(before: Json, after: Json) -> list[Announcement]:
    """The events of one write of the status, in the order of a job's life."""
    was, now = state_in(before), state_in(after)
    found = []
    for kind in status.ConditionType:
        old, new = was.conditions.get(kind), now.conditions.get(kind)
        if new is not None and (old is None or (old.status, old.reason) != (new.status, new.reason)):
            found += _transition(kind, old, new)
    resized = [Announcement("Normal", "FleetResized", now.servers_why)] if now.servers != was.servers else []
    return [*found, *_failures(was, now), *_epoch(was, now), *resized]


def _transition(kind: status.ConditionType, old: Condition | None, new: Condition) -> list[Announcement]:
    refused = kind is status.ConditionType.ACCEPTED and new.status == "False"
    failed = kind is status.ConditionType.FAILED and new.status == "True"
    if refused or failed or (kind, new.reason) in _WARNING:
        return [Announcement("Warning", new.reason, new.message)]
    if kind is status.ConditionType.SUSPENDED and new.reason == status.SuspendedReason.NOT_SUSPENDED:
        resumed = old is not None and old.reason != status.SuspendedReason.NOT_SUSPENDED
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
