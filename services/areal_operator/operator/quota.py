"""Adapter to Kueue: when a job that names a queue may run, and what its Workload is told.

Owns three rules. Nothing of such a job runs before its Workload is admitted, and the job's own `spec.suspend` is never
written. An evicted job saves first; its quota is given back when its last pod is gone, because the next job has it the
moment it is given. What Kueue decided of a Workload (its active flag, its admission) is Kueue's and people's. Pure.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from areal.plan.cluster_names import Role

from areal_operator.kube.resources import Json
from areal_operator.operator import times
from areal_operator.operator.admission import RunnableJob
from areal_operator.operator.children.kueue import pod_set
from areal_operator.operator.decision import CleanUp, Decision, EndJob, Reject, Suspend
from areal_operator.operator.job_state import Rest
from areal_operator.operator.observed import BatchStage, Observation

_REQUEUED = ("Preempted", "NodeFailures")  # after any other eviction, Kueue itself says when the job may queue again


class QuotaStep(StrEnum):
    """What the Workload needs now."""

    KEEP = "keep"
    ASK = "ask"  # it is made, or brought up to date while it holds no quota
    GIVE_BACK = "give back"
    WITHDRAW = "withdraw"  # it is deleted: its author lets the job rest, or the job was refused
    READY = "ready"
    FINISH = "finish"


def held_back(seen: Observation) -> bool:
    """Whether the job must not run now. One that runs goes on where Kueue can't be asked any more."""
    entry = seen.queue
    if entry is None or entry.admitted:
        return False
    runs = seen.state.started_at is not None and seen.state.rest is Rest.AWAKE
    return not (entry.missing and runs)


def step_of(seen: Observation, decision: Decision) -> QuotaStep:
    """The next write to the job's Workload, after `decision`."""
    entry = seen.queue
    if entry is None or entry.missing:
        return QuotaStep.KEEP
    ended = isinstance(decision, EndJob | CleanUp)
    paused = seen.admitted is not None and seen.admitted.job.spec.suspend
    wants = not ended and not paused and not isinstance(decision, Reject)
    if entry.workload is None:
        return QuotaStep.ASK if wants else QuotaStep.KEEP
    resting = isinstance(decision, Suspend) and decision.state.rest is Rest.ASLEEP
    if not (ended or resting or isinstance(decision, Reject)) or not emptied(seen):
        return QuotaStep.READY if entry.admitted and not entry.true("PodsReady") and _serves(seen) else QuotaStep.KEEP
    if ended:
        return QuotaStep.KEEP if entry.true("Finished") else QuotaStep.FINISH
    if not wants:
        return QuotaStep.WITHDRAW
    if not entry.true("QuotaReserved"):
        return QuotaStep.ASK
    return QuotaStep.KEEP if entry.active and not entry.true("Evicted") else QuotaStep.GIVE_BACK


def emptied(seen: Observation) -> bool:
    """Whether no pod of the job is left, and nothing that is there makes another."""
    busy = (BatchStage.RUNNING, BatchStage.GOING)
    makers = any(one.replicas or one.pods or not one.current for one in (*seen.workloads, *seen.beside))
    return (
        all(pod.over for pod in seen.pods) and not makers and {seen.prepare.stage, seen.finish.stage}.isdisjoint(busy)
    )


def _serves(seen: Observation) -> bool:
    """Whether the trainers run and a server answers, as the status had it."""
    trainer = seen.state.conditions.get("TrainerReady")
    servers = seen.of(Role.GENERATION)
    fleet = seen.admitted is not None and Role.GENERATION in seen.admitted.replicas
    return trainer is not None and trainer.status == "True" and (not fleet or any(pod.ready for pod in servers))


def told(seen: Observation, step: QuotaStep, decision: Decision, now: float) -> Json:
    """The patch of the Workload's status for GIVE_BACK, READY and FINISH, under an optimistic lock."""
    entry = seen.queue
    assert entry is not None
    assert entry.workload is not None
    evicted = entry.condition("Evicted")
    why = evicted.get("reason", "Pending"), evicted.get("message", "the job has stopped")
    failed = decision.state.outcome != "Complete" if isinstance(decision, EndJob | CleanUp) else False
    conditions: Mapping[str, tuple[bool, str, str]] = {
        QuotaStep.GIVE_BACK: {
            "QuotaReserved": (False, "Pending", why[1]),
            "Admitted": (False, "NoReservation", "The workload has no reservation"),
            "Requeued": (why[0] in _REQUEUED, *why),
            "PodsReady": (False, "WaitForStart", "no pod runs"),
        },
        QuotaStep.READY: {"PodsReady": (True, "Started", "the trainers run and a server answers")},
        QuotaStep.FINISH: {"Finished": (True, "Failed" if failed else "Succeeded", "the job has ended")},
    }[step]
    metadata, status = entry.workload["metadata"], entry.workload.get("status", {})
    kept = [one for one in status.get("conditions", []) if one["type"] not in conditions]
    new = [
        {
            "type": kind, "status": str(holds), "reason": reason, "message": message or reason,
            "lastTransitionTime": times.render(now), "observedGeneration": metadata.get("generation", 0),
        }
        for kind, (holds, reason, message) in conditions.items()
    ]  # fmt: skip
    patch: Json = {"conditions": [*kept, *new]} | ({"admission": None} if step is QuotaStep.GIVE_BACK else {})
    return {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": patch}


def granted(job: RunnableJob, assignments: list[Json], flavors: Mapping[str, Json]) -> RunnableJob:
    """The job as its queue admitted it: at most so many pods of each set, on the nodes of the set's flavors.

    A fleet that is asked to grow later stays at what was admitted: a Workload that holds quota can't change.
    """
    counts = {one["name"]: int(one["count"]) for one in assignments if "count" in one}
    places: dict[str, Json] = {}
    for one in assignments:
        chosen = [flavors.get(name, {}).get("spec", {}) for name in sorted(set(one.get("flavors", {}).values()))]
        labels = {key: value for flavor in chosen for key, value in flavor.get("nodeLabels", {}).items()}
        tolerations = [toleration for flavor in chosen for toleration in flavor.get("tolerations", [])]
        places[one["name"]] = {"nodeSelector": labels, "tolerations": tolerations}
    replicas = {
        role: min(count, counts.get(pod_set(role), count)) if pod_set(role) == role else count
        for role, count in job.replicas.items()
    }
    placement = {role: places[pod_set(role)] for role in Role if any(places.get(pod_set(role), {}).values())}
    return replace(job, replicas=replicas, placement=placement)
