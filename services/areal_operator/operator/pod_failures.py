"""Incidents of pods outside of the trainer gang, each by itself.

Owns which end of a container is a failure at all. Being asked to stop is none, nor is anything that happens to a pod
while it is being deleted, unless Kubernetes says that it was disrupted. Pure.
"""

from areal.errors import ExitCode
from areal.plan.cluster_names import Role
from areal.plan.role_specs import batch_jobs

from areal_operator.operator.failure_policy import Incident
from areal_operator.operator.fault_owner import DISRUPTION
from areal_operator.operator.observed import BatchJob, BatchStage, Observation, Pod

_NO_FAILURE = (ExitCode.DONE, ExitCode.DRAINED)


def of_roles(seen: Observation) -> list[Incident]:
    """All that can be seen, new and old, earliest first."""
    pods = [pod for pod in seen.pods if pod.role is not Role.TRAINER and pod.role not in batch_jobs()]
    found = [incident for pod in pods if (incident := _of_pod(pod)) is not None]
    return sorted(found, key=lambda incident: (incident.at, incident.pod))


def _of_pod(pod: Pod) -> Incident | None:
    conditions = {name: condition.status for name, condition in pod.conditions.items()}
    disrupted = pod.conditions.get(DISRUPTION)
    if disrupted is not None and disrupted.status == "True":
        reason = disrupted.reason or DISRUPTION
        return Incident(pod.role, pod.name, disrupted.at, reason, disrupted.message, None, conditions, pod.node)
    if pod.terminating:
        return None
    ending = pod.ending
    if ending is not None and ending.code not in _NO_FAILURE:
        return Incident(
            pod.role, pod.name, ending.at, ending.reason or "Error", ending.message, ending.code, conditions, pod.node
        )
    if pod.phase == "Failed":
        at = max((condition.at for condition in pod.conditions.values()), default=0.0)
        return Incident(pod.role, pod.name, at, "Failed", "the pod has failed", None, conditions, pod.node)
    return None


def of_batch(batch: BatchJob, role: Role, seen: Observation) -> Incident | None:
    """Why a Job must be made anew, or ends the run: it gave up, or its pod said that no try can help."""
    if batch.stage not in (BatchStage.RUNNING, BatchStage.FAILED):
        return None
    endings = [
        (pod.ending, pod) for pod in seen.of(role) if pod.ending is not None and pod.ending.code not in _NO_FAILURE
    ]
    last = max(endings, key=lambda pair: pair[0].at, default=None)
    hopeless = last is not None and last[0].code in (ExitCode.CONFIG, ExitCode.DATA, ExitCode.BUG)
    if batch.stage is not BatchStage.FAILED and not hopeless:
        return None
    if last is None:
        return Incident(role, batch.name, batch.at, batch.reason or "Failed", batch.message)
    ending, _pod = last
    return Incident(role, batch.name, batch.at or ending.at, ending.reason or "Error", ending.message, ending.code)
