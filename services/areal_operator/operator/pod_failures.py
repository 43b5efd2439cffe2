"""Incidents of pods outside of the trainer gang, each by itself.

Owns which end of a container is a failure at all. Being asked to stop is none, nor is anything that happens to a pod
while it is being deleted, unless Kubernetes says that it was disrupted. A machine that does not answer is a failure of
each pod on it, and one only, whatever Kubernetes says of them later. Pure.
"""

from collections.abc import Sequence

from areal.errors import ExitCode
from areal.plan.cluster_names import Role
from areal.plan.role_specs import batch_jobs

from areal_operator.operator.failure_policy import Incident
from areal_operator.operator.fault_owner import DISRUPTION, NODE_LOST, FaultOwner
from areal_operator.operator.job_state import JobFailure
from areal_operator.operator.observed import BatchJob, BatchStage, NodeState, Observation, Pod

_NO_FAILURE = (ExitCode.DONE, ExitCode.DRAINED)
_ECHO_S = 600.0  # pods are evicted from a machine that does not answer after five minutes


def of_roles(seen: Observation, failures: Sequence[JobFailure] = ()) -> list[Incident]:
    """All that can be seen, new and old, earliest first; `failures` are on record."""
    pods = [pod for pod in seen.pods if pod.role is not Role.TRAINER and pod.role not in batch_jobs()]
    nodes = seen.nodes or {}
    found = [incident for pod in pods if (incident := _of_pod(pod, nodes.get(pod.node, NodeState()))) is not None]
    told = [incident for incident in found if not _echo(incident, failures, seen)]
    return sorted(told, key=lambda incident: (incident.at, incident.pod))


def _echo(incident: Incident, failures: Sequence[JobFailure], seen: Observation) -> bool:
    """Whether it tells once more of a pod's machine what another detector has told: one loss has one entry."""
    since = max((pod.conditions["PodScheduled"].since for pod in seen.pods
                 if pod.name == incident.pod and "PodScheduled" in pod.conditions), default=0.0)  # fmt: skip
    return incident.owner is FaultOwner.NODE and any(
        (f.role, f.pod, f.node, f.owner) == (incident.role, incident.pod, incident.node, FaultOwner.NODE)
        and f.reason != incident.reason and f.at >= since and abs(incident.at - f.at) < _ECHO_S
        for f in failures
    )  # fmt: skip


def _of_pod(pod: Pod, node: NodeState) -> Incident | None:
    if node.silent_since is not None and not pod.over:
        return Incident.of(pod, float(int(node.silent_since)), NODE_LOST, f"its machine {pod.node} does not answer")
    disrupted = pod.conditions.get(DISRUPTION)
    if disrupted is not None and disrupted.status == "True":
        return Incident.of(pod, disrupted.since, disrupted.reason or DISRUPTION, disrupted.message)
    if pod.terminating:
        return None
    ending = pod.ending
    if ending is not None and ending.code not in _NO_FAILURE:
        return Incident.of(pod, ending.at, ending.reason or "Error", ending.message, ending.code)
    if pod.phase == "Failed":
        at = max((condition.since for condition in pod.conditions.values()), default=0.0)
        return Incident.of(pod, at, "Failed", "the pod has failed")
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
