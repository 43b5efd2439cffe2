"""Status of a job, made from what is observed, what was decided and what is remembered.

Owns the summary word, which is made from the conditions, and everything beside them. Pure: the same look gives the
same status, so that an unchanged job is never written.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from areal.observe.live import Diagnosis
from areal.plan.cluster_names import Role, runtime_config_map, selector
from areal.spec.status import (
    IDLE_TEXT,
    CompleteReason,
    ConditionType,
    GpuUsage,
    ProgressingReason,
    ScheduledReason,
    Summary,
)

from areal_operator.kube.resources import Json
from areal_operator.operator import times
from areal_operator.operator.conditions import conditions
from areal_operator.operator.decision import CleanUp, Decision, EndJob, HandsOff, Prepare, Reject, Suspend
from areal_operator.operator.idle import idle_of
from areal_operator.operator.job_state import Condition, JobState, Rest, failure_entry
from areal_operator.operator.observed import Observation
from areal_operator.operator.times import FRESH_S


def summarize(seen: Observation, decision: Decision, now: float) -> Json:
    """The status to write: a `spec.status.JobStatus` as the API server stores it."""
    assert not isinstance(decision, HandsOff), "another controller's status is its own"
    state, before = decision.state, seen.raw.get("status", {})
    found = conditions(seen, decision, state, now)
    status: Json = {
        "observedGeneration": seen.generation,
        "summary": summary_of(found).value,
        "conditions": [_condition(kind, condition) for kind, condition in found.items()],
        "attempts": _attempts(state),
        "failures": [failure_entry(failure) for failure in state.failures],
        "progress": _progress(seen, state, now),
        "waiting": _waiting(state),
    }
    if (usage := _usage(seen, before.get("usage"), now)) is not None:
        status["usage"] = usage
    if (idle := idle_of(seen, found, now)) is not None:
        status["idle"] = _idle(idle, before.get("idle", {}), now)
    if state.started_at is not None:
        status["startTime"] = times.render(state.started_at)
    if state.ended_at is not None:
        status["completionTime"] = times.render(state.ended_at)
    admitted = seen.admitted
    if admitted is not None:
        where = {"configMapName": runtime_config_map(seen.key[1]), "hash": admitted.runtime_hash}
        status["runtimeSnapshot"] = {**where, "tls": admitted.runtime.tls.mode != "Disabled"}
        status["generation"] = _fleet(seen, state)
        status["roles"] = _roles(seen, _desired(decision, admitted.replicas))
    status["checkpoint"] = _checkpoint(seen, now)
    status["audit"] = (
        decision.audit.model_dump(mode="json") if isinstance(decision, EndJob) and decision.audit else None
    )
    for kept in ("runtimeSnapshot", "generation", "roles", "checkpoint", "audit", "startTime"):
        if status.get(kept) is None:
            status.pop(kept, None)
            if kept in before:
                status[kept] = before[kept]
    status.setdefault("roles", [])
    return status


def summary_of(found: Mapping[ConditionType, Condition]) -> Summary:
    """One word, from the conditions alone."""

    def true(kind: ConditionType) -> bool:
        return found[kind].status == "True"

    progressing = found[ConditionType.PROGRESSING]
    if true(ConditionType.FAILED):
        return Summary.FAILED
    if true(ConditionType.COMPLETE):
        return Summary.COMPLETE
    suspended = found[ConditionType.SUSPENDED]
    if true(ConditionType.SUSPENDED):
        queued = found[ConditionType.SCHEDULED].reason == ScheduledReason.QUOTA_PENDING
        return Summary.QUEUED if queued else Summary.SUSPENDED
    if suspended.reason != Rest.AWAKE:
        return Summary.SUSPENDING
    idle = not true(ConditionType.PREPARED) or progressing.reason == ProgressingReason.NOT_STARTED
    if not true(ConditionType.ACCEPTED) and idle:
        return Summary.REJECTED
    if found[ConditionType.COMPLETE].reason == CompleteReason.AUDITING:
        return Summary.COMPLETING
    if not true(ConditionType.PREPARED):
        return Summary.PREPARING
    if progressing.reason == ProgressingReason.STALLED:
        return Summary.STALLED
    if progressing.reason == ProgressingReason.WAITING:
        return Summary.WAITING
    if progressing.status == "Unknown":
        return Summary.VERIFYING
    if progressing.reason == ProgressingReason.RECOVERING:
        return Summary.RECOVERING
    return Summary.RUNNING if true(ConditionType.PROGRESSING) else Summary.STARTING


def _condition(kind: ConditionType, condition: Condition) -> Json:
    return {
        "type": kind.value,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": times.render(condition.since),
        "observedGeneration": condition.generation,
    }


def _attempts(state: JobState) -> Json:
    entry: Json = {
        "epoch": state.epoch,
        "restarts": state.restarts,
        "restartsCountTowardsMax": state.counted,
        "members": list(state.members),
        "provenEpoch": state.proven_epoch,
        "fruitless": state.fruitless,
    }
    if state.counted_since is not None:
        entry["countedSince"] = times.render(state.counted_since)
    if state.next_epoch_at is not None:
        entry["nextEpochTime"] = times.render(state.next_epoch_at)
    return entry


def _waiting(state: JobState) -> Json:
    entry: Json = {"seconds": int(state.waited_s)}
    if state.waiting_since is not None:
        entry["since"] = times.render(state.waiting_since)
    return entry


def _usage(seen: Observation, before: Json | None, now: float) -> Json | None:
    """GPUs of pods that have a node; written anew only when their number changed."""
    gpus = sum(pod.gpus for pod in seen.pods if pod.node and not pod.over)
    if before is None:
        return {"gpus": gpus, "gpuSeconds": 0, "since": times.render(now)} if gpus else None
    if before.get("gpus", 0) == gpus:
        return before
    spent = GpuUsage.model_validate(before).until(int(now))  # as `since` is rounded: each second counts once
    return {"gpus": gpus, "gpuSeconds": round(spent), "since": times.render(now)}


def _idle(idle: Diagnosis, before: Json, now: float) -> Json:
    """Cause for which a job waits, and since when it is the same one at the same place."""
    where = {"cause": str(idle.cause), "role": str(idle.role), "pod": idle.pod}
    same = all(before.get(name) == value for name, value in where.items())
    return {**where, "since": before["since"] if same else times.render(now), "text": idle.text[:IDLE_TEXT]}


def _progress(seen: Observation, state: JobState, now: float) -> Json:
    """The newest figures; of a role that doesn't answer now, its last ones."""
    found: dict[str, Any] = dict(seen.raw.get("status", {}).get("progress", {}))
    found["step"] = state.step
    if seen.admitted is not None:
        trainer, spec = seen.reports.trainer, seen.admitted.job.spec
        if steps := seen.admitted.hot.max_steps or (trainer.max_steps if trainer is not None else 0):
            found["maxSteps"] = steps
        if spec.is_rl:
            found["groupsTrained"] = state.step * spec.algorithm.batch_size
    report = seen.reports.controller
    if report is not None and now - report.at <= FRESH_S:
        found["maxSteps"] = report.hot.max_steps
        optional = {
            "policyVersion": report.policy_version,
            "oldestServedVersion": report.oldest_served_version,
            "reward": None if report.reward is None else round(report.reward, 4),
            "staleness": None if report.staleness is None else round(report.staleness, 3),
            "wastedShare": None if report.wasted_share is None else round(report.wasted_share, 4),
        }
        found |= {name: value for name, value in optional.items() if value is not None}
    if state.evidence is not None:
        found["evidence"] = asdict(state.evidence)
    if state.step_at is not None:
        found["lastReportTime"] = times.render(state.step_at)
        found |= _remaining(seen, state, int(found.get("maxSteps", 0)))
    return found


_OLD_PACE = 0.8
"""Weight of what was known: one slow step moves the estimate little, a new pace is followed within a dozen reports."""


def _remaining(seen: Observation, state: JobState, max_steps: int) -> Json:
    """Estimated time of the remaining steps, by their pace so far; nothing before it can be said."""
    known = seen.state
    if state.outcome is not None or state.step_at is None or state.step == known.step or not max_steps:
        return {"estimatedRemainingSeconds": 0} if state.outcome is not None else {}
    began = max(state.started_at or 0.0, known.step_at or 0.0)
    steps, seconds = state.step - known.step, state.step_at - began
    if steps <= 0 or seconds <= 0:
        return {}
    pace = seconds / steps
    before = seen.raw.get("status", {}).get("progress", {}).get("estimatedRemainingSeconds")
    left_before = max_steps - known.step
    if before is not None and known.step_at is not None and left_before > 0:
        pace = _OLD_PACE * before / left_before + (1 - _OLD_PACE) * pace
    return {"estimatedRemainingSeconds": int(pace * max(0, max_steps - state.step))}


def _checkpoint(seen: Observation, now: float) -> Json | None:
    report = seen.reports.trainer
    if report is None or now - report.at > FRESH_S or not report.checkpoint_step:
        return None
    known = seen.raw.get("status", {}).get("checkpoint", {})
    if known.get("step") == report.checkpoint_step:
        return dict(known)
    return {"step": report.checkpoint_step, "time": times.render(report.checkpoint_at or report.at)}


def _fleet(seen: Observation, state: JobState) -> Json:
    chosen = selector(seen.key[1], Role.GENERATION)
    pods = [pod for pod in seen.of(Role.GENERATION) if not pod.terminating]
    elastic = seen.admitted is not None and seen.admitted.job.spec.generation.elastic is not None
    return {
        "replicas": len(pods),
        "readyReplicas": sum(pod.ready for pod in pods),
        "selector": ",".join(f"{label}={value}" for label, value in chosen.items()),
        **({"wanted": state.servers, "why": state.servers_why[:256]} if elastic and state.servers else {}),
    }


def _desired(decision: Decision, replicas: Mapping[Role, int]) -> Mapping[Role, int]:
    """Wanted number of pods of each role now."""
    if isinstance(decision, Suspend) and decision.state.rest is not Rest.SAVING:
        return dict.fromkeys(replicas, 0)
    gone = isinstance(decision, Reject | Prepare) or (isinstance(decision, CleanUp) and not decision.kept)
    return dict.fromkeys(replicas, 0) if gone else replicas


def _roles(seen: Observation, replicas: Mapping[Role, int]) -> list[Json]:
    found = []
    for role, desired in replicas.items():
        pods = [pod for pod in seen.of(role) if not pod.terminating]
        broken = [pod for pod in pods if pod.phase == "Failed" or (pod.ending is not None and pod.ending.code != 0)]
        failed = sum(not pod.ready for pod in broken)
        found.append(
            {"name": role.value, "desired": desired, "ready": sum(pod.ready for pod in pods), "failed": failed}
        )
    return found


# What is flushed lazily

LAZY = ("progress", "checkpoint", "roles", "generation")
"""Parts that are figures. All others are written as soon as they change."""


def urgent(before: Json, after: Json) -> bool:
    """Whether a change can't wait for the next flush: anything but figures, and words of conditions and of `idle`."""

    def rest(status: Json) -> Json:
        kept = {name: value for name, value in status.items() if name not in LAZY}
        kept["conditions"] = [
            {name: value for name, value in condition.items() if name != "message"}
            for condition in status.get("conditions", [])
        ]
        kept["idle"] = {name: value for name, value in status.get("idle", {}).items() if name != "text"}
        return kept

    return rest(before) != rest(after)
