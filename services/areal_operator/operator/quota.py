"""Adapter to Kueue: when a job that names a queue may run, and what its Workload is told.

Owns three rules. Nothing of such a job runs before its Workload is admitted, and the job's own `spec.suspend` is never
written. An evicted job saves first; its quota is given back when its last pod is gone, because the next job has it the
moment it is given. What Kueue decided of a Workload (its active flag, its admission) is Kueue's and people's. Pure.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from areal.plan.cluster_names import Role

from areal_operator.kube.resources import Json
from areal_operator.operator import times
from areal_operator.operator.admission import RunnableJob
from areal_operator.operator.children.kueue import pod_set
from areal_operator.operator.children.wanted import SURGE
from areal_operator.operator.decision import CleanUp, Decision, EndJob, Reject, Suspend
from areal_operator.operator.job_state import Rest
from areal_operator.operator.observed import BatchStage, Observation

_REQUEUED = ("Preempted", "NodeFailures")  # after any other eviction, Kueue itself says when the job may queue again
QuotaStep = Literal["keep", "ask", "give back", "withdraw", "ready", "finish"]
"""Asking makes the Workload, or brings one without quota up to date; withdrawing deletes it."""


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
        return "keep"
    ended = isinstance(decision, EndJob | CleanUp)
    paused = seen.admitted is not None and seen.admitted.job.spec.suspend
    wants = not ended and not paused and not isinstance(decision, Reject)
    if entry.workload is None:
        return "ask" if wants else "keep"
    resting = isinstance(decision, Suspend) and decision.state.rest is Rest.ASLEEP
    if not (ended or resting or isinstance(decision, Reject)) or not emptied(seen):
        return "ready" if entry.admitted and not entry.true("PodsReady") and _serves(seen) else "keep"
    if ended:
        return "keep" if entry.true("Finished") else "finish"
    if not wants:
        return "withdraw"
    if not entry.true("QuotaReserved"):
        return "ask"
    return "keep" if entry.active and not entry.true("Evicted") else "give back"


def emptied(seen: Observation) -> bool:
    """Whether no pod of the job is left, and nothing that is there makes another."""
    batches = {seen.prepare.stage, seen.finish.stage} & {BatchStage.RUNNING, BatchStage.GOING}
    sets = any(one.replicas or one.pods or not one.current for one in (*seen.workloads, *seen.beside))
    return not batches and not sets and all(pod.over for pod in seen.pods)


def _serves(seen: Observation) -> bool:
    """Whether the trainers run and a server answers, as the status had it."""
    trainer, servers = seen.state.conditions.get("TrainerReady"), seen.of(Role.GENERATION)
    fleet = seen.admitted is not None and Role.GENERATION in seen.admitted.replicas
    return trainer is not None and trainer.status == "True" and (not fleet or any(pod.ready for pod in servers))


def told(seen: Observation, step: QuotaStep, decision: Decision, now: float) -> Json:
    """The patch of the Workload's status to give back, to be ready and to finish, under an optimistic lock."""
    assert seen.queue is not None
    workload, evicted = seen.queue.workload or {}, seen.queue.condition("Evicted")
    why = evicted.get("reason", "Pending"), evicted.get("message", "the job has stopped")
    failed = decision.state.outcome != "Complete" if isinstance(decision, EndJob | CleanUp) else False
    conditions: Mapping[str, tuple[bool, str, str]] = {
        "give back": {
            "QuotaReserved": (False, "Pending", why[1]),
            "Admitted": (False, "NoReservation", "The workload has no reservation"),
            "Requeued": (why[0] in _REQUEUED, *why),
            "PodsReady": (False, "WaitForStart", "no pod runs"),
        },
        "ready": {"PodsReady": (True, "Started", "the trainers run and a server answers")},
        "finish": {"Finished": (True, "Failed" if failed else "Succeeded", "the job has ended")},
    }[step]
    metadata, status = workload["metadata"], workload.get("status", {})
    kept = [one for one in status.get("conditions", []) if one["type"] not in conditions]
    new = [
        {
            "type": kind, "status": str(holds), "reason": reason, "message": message or reason,
            "lastTransitionTime": times.render(now), "observedGeneration": metadata.get("generation", 0),
        }
        for kind, (holds, reason, message) in conditions.items()
    ]  # fmt: skip
    patch: Json = {"conditions": [*kept, *new]} | ({"admission": None} if step == "give back" else {})
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
    if {SURGE, Role.GENERATION} <= counts.keys():
        counts[Role.GENERATION] += counts[SURGE]
    replicas = {role: min(count, counts.get(role.value, count)) for role, count in job.replicas.items()}
    by_role: dict[str, Json] = {**{role: places.get(pod_set(role), {}) for role in Role}, SURGE: places.get(SURGE, {})}
    placement = {whose: place for whose, place in by_role.items() if any(place.values())}
    return replace(job, replicas=replicas, placement=placement)
