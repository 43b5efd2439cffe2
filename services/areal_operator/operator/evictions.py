"""Pods that the operator deletes itself, and why.

Owns four duties that no other controller has: pods on a silent machine, a pod that can never end because its machine
is dead, a failed pod that nobody collects, and generation pods of an old template, one after the other. Everything is
by uid, so a successor of the same name is never hit. Pure.
"""

from areal.plan.cluster_names import SURGE_FROM, Role
from areal.plan.role_specs import batch_jobs

from areal_operator.operator.decision import Eviction
from areal_operator.operator.observed import Observation
from areal_operator.operator.times import SILENT_S, STUCK_S

_FENCED = (
    Role.TRAINER, Role.GENERATION, Role.WORKER, Role.CONTROLLER, Role.REWARD, Role.REWARD_CUSTOM, Role.REWARD_MODEL,
    Role.BOXES, Role.GATEWAY, Role.WEIGHTS, Role.ARCHIVE,
)  # fmt: skip
"""Roles of which a second pod may run beside one that nobody hears of: the fence refuses what an old trainer or
controller writes, and the others own nothing."""


def stuck(seen: Observation, now: float) -> tuple[Eviction, ...]:
    """Pods to delete by force: on silent machines, and those that will never be seen to end."""
    return tuple({e.pod.uid: e for e in (*_silent(seen, now), *_endless(seen, now))}.values())


def silence_due(seen: Observation) -> float | None:
    """When the next pod on a silent machine is to be given up; None when there is none."""
    nodes = seen.nodes or {}
    at = [nodes[pod.node].silent_since for pod in seen.pods if pod.node in nodes and pod.role in _FENCED]
    return min((since + SILENT_S for since in at if since is not None), default=None)


def _silent(seen: Observation, now: float) -> list[Eviction]:
    """Pods of fenced roles whose machine is silent, and whose launcher isn't heard either."""
    found = []
    for pod in seen.pods:
        node = (seen.nodes or {}).get(pod.node)
        if pod.role not in _FENCED or node is None or node.silent_since is None or now < node.silent_since + SILENT_S:
            continue
        report = seen.reports.launchers.get(pod.uid)
        if report is None or now - report.at > SILENT_S:
            found.append(Eviction(pod, f"its machine {pod.node} does not answer", force=True))
    return found


def _endless(seen: Observation, now: float) -> tuple[Eviction, ...]:
    """Terminating pods whose kubelet will never say that they ended, so that their place stays taken.

    A machine that is only silent may still run the pod. For roles that is harmless: the fence refuses what an old
    trainer writes, and the others own nothing. Redis owns its file, so it moves only when someone vouches that the
    machine is off.
    """
    if seen.nodes is None:
        return ()
    found = []
    for pod in seen.pods:
        if pod.terminating_until is None or not pod.node or now < pod.terminating_until + STUCK_S:
            continue
        node = seen.nodes.get(pod.node)
        if node is None:
            found.append(Eviction(pod, f"its machine {pod.node} is gone", force=True))
        elif node.out_of_service:
            found.append(Eviction(pod, f"its machine {pod.node} is out of service", force=True))
        elif not node.ready and pod.role is not Role.REDIS:
            found.append(Eviction(pod, f"its machine {pod.node} does not answer", force=True))
    return tuple(found)


def failed(seen: Observation) -> tuple[Eviction, ...]:
    """Pods that ended for good, evicted by a kubelet for example: a Deployment replaces them but leaves them there."""
    return tuple(
        Eviction(pod, "it has failed for good")
        for pod in seen.pods
        if pod.phase == "Failed" and not pod.terminating and pod.role not in batch_jobs()
    )


def outdated_server(seen: Observation, replicas: int) -> tuple[Eviction, ...]:
    """At most one generation pod of an old template: the next goes when all are back.

    One that isn't ready anyway goes first, or a template that can't start would never be replaced.
    """
    revisions = {workload.revision for workload in seen.workloads if workload.role is Role.GENERATION}
    if seen.admitted is None or not revisions or "" in revisions:
        return ()
    core = seen.admitted.job.spec.core_servers(replicas)
    kept = {*range(core), *range(SURGE_FROM, SURGE_FROM + replicas - core)}
    pods = [pod for pod in seen.of(Role.GENERATION) if pod.index in kept]
    old = [pod for pod in pods if pod.revision not in ("", *revisions) and not pod.terminating]
    unready = [pod for pod in pods if not pod.ready or pod.terminating]
    chosen = next((pod for pod in old if not pod.ready), None)
    if chosen is None and old and not unready and len(pods) >= replicas:
        chosen = max(old, key=lambda pod: pod.index or 0)
    if chosen is None or any(pod.terminating for pod in unready):
        return ()
    return (Eviction(chosen, "its template has changed"),)
