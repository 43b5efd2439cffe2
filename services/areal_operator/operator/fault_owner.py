"""Owner of an incident, and what keeps a job from training that is not the trainers' fault.

Owns two judgements. Whose incident it is: only the job's own spend its restart budget. And what the trainers lack:
while a pod has no node, a node is silent or no server answers, the absence of steps says nothing about the trainers.
Pure.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from areal.plan.cluster_names import Role
from areal.plan.role_specs import batch_jobs
from areal.yaml_file.table import read_table

from areal_operator.operator.observed import BatchStage, NodeState, Observation, Pod

DISRUPTION = "DisruptionTarget"
NODE_LOST = "NodeLost"
POD_GONE = "PodGone"
POD_DELETED = "PodDeleted"
PEER_GONE = "PeerGone"
OVERTAKEN, NODE_LEAVES, TEMPLATE_CHANGED = "Overtaken", "NodeLeaves", "TemplateChanged"
UNSCHEDULABLE, GATED = "Unschedulable", "SchedulingGated"  # Kubernetes' words


class FaultOwner(StrEnum):
    """Whose incident it is."""

    JOB = "job"  # the trainers' processes
    ROLE = "role"  # another role's process
    NODE = "node"
    PLATFORM = "platform"  # somebody deleted or evicted the pod
    QUEUE = "queue"  # another job was preferred
    USER = "user"  # the job was changed


_OWNERS: Mapping[str, Mapping[str, str]] = read_table("areal_operator.operator", "fault_owners.yaml")


def owner_of(role: Role, reason: str, conditions: Mapping[str, str]) -> FaultOwner:
    """Whose incident it is, by what Kubernetes says of the pod."""
    if conditions.get(DISRUPTION) == "True" and reason != NODE_LOST:
        return FaultOwner(_OWNERS["disruption"].get(reason, FaultOwner.PLATFORM))
    if reason in _OWNERS["reason"]:
        return FaultOwner(_OWNERS["reason"][reason])
    return FaultOwner.JOB if role is Role.TRAINER or role in batch_jobs() else FaultOwner.ROLE


@dataclass(frozen=True)
class Lack:
    """Something that the trainers can't do without and can't bring about."""

    owner: FaultOwner
    text: str
    node: str = ""  # the silent machine


def lack_of(seen: Observation, desired: Mapping[Role, int]) -> Lack | None:
    """The job's most fundamental lack now; None: nothing that is known of."""
    return unplaced(seen, desired) or _unserved(seen, desired)


def unplaced(seen: Observation, desired: Mapping[Role, int]) -> Lack | None:
    """Why not every pod is on a machine that answers. Surge servers may wait for one: the job works without them."""
    pods = [pod for pod in seen.pods if pod.role not in batch_jobs() and not pod.over and not pod.surge]
    if seen.admitted is not None and Role.GENERATION in desired:
        core = seen.admitted.job.spec.core_servers(desired[Role.GENERATION])
        desired = {**desired, Role.GENERATION: core}
    if not seen.state.prepared and seen.prepare.stage is not BatchStage.COMPLETE:
        pods, desired = list(seen.of(Role.PREPARE)), {Role.PREPARE: 1}
    bound_pods = Counter(pod.role for pod in pods if pod.node)
    for role, text in seen.refused.items():
        if role not in desired or bound_pods[role] < desired[role]:  # else it's surge servers that are refused
            return Lack(FaultOwner.QUEUE, f"pods of {role.value} are refused: {text}")
    for pod in pods:
        bound = pod.conditions.get("PodScheduled")
        if not pod.node and bound is not None and bound.status == "False":
            return Lack(FaultOwner.QUEUE, f"{pod.name}: {bound.message or bound.reason}")
    if (silent := silent_pod(seen, pods)) is not None:
        return Lack(FaultOwner.NODE, silence(silent))
    for role, count in desired.items():
        if bound_pods[role] < count:
            return Lack(FaultOwner.QUEUE, f"{bound_pods[role]} of {count} pods of {role.value} have a node")
    return None


def unbound(seen: Observation) -> Pod | None:
    """The first pod that the scheduler has no node for, or may not place yet; surge servers last."""
    for pod in sorted(seen.pods, key=lambda pod: pod.surge):
        bound = pod.conditions.get("PodScheduled")
        if not pod.node and bound is not None and bound.reason in (UNSCHEDULABLE, GATED):
            return pod
    return None


def silent_pod(seen: Observation, pods: list[Pod] | None = None) -> Pod | None:
    """A pod on a machine of which nothing is heard, Redis' first: it alone waits for a person.

    Args:
        pods: all that have not ended unless given.
    """
    nodes = seen.nodes or {}
    if pods is None:
        pods = [pod for pod in seen.pods if not pod.over]
    held = [pod for pod in pods if nodes.get(pod.node, NodeState()).silent]
    return min(held, key=lambda pod: (pod.role is not Role.REDIS, pod.name), default=None)


def silence(pod: Pod) -> str:
    """Sentence about a pod on a silent machine, with the fix where it waits for a person."""
    text = f"{pod.name} is on {pod.node}, which does not answer"
    if pod.role is not Role.REDIS:
        return text
    return (
        f"{text}; Redis owns its file, so it moves only when the machine is known to be off: once it is, "
        f"`kubectl taint node {pod.node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`"
    )


_NEEDED = ((Role.REDIS, "Redis does not answer"), (Role.CONTROLLER, "the controller does not answer"))
_ANY_OF = (
    (Role.GENERATION, "no server answers"),
    (Role.WORKER, "no worker answers"),
    (Role.GATEWAY, "no gateway answers"),
    (Role.REWARD, "no verifier answers"),
    (Role.REWARD_CUSTOM, "no verifier answers"),
    (Role.REWARD_MODEL, "no verifier answers"),
    (Role.BOXES, "no box can be had"),
    (Role.WEIGHTS, "nobody hands versions to servers"),
)


def _served_by(seen: Observation) -> list[tuple[Role, str]]:
    """Roles whose pods must answer, and what to say when none does."""
    return [(seen.home(role), text) for role, text in (*_NEEDED, *_ANY_OF)]


def _unserved(seen: Observation, desired: Mapping[Role, int]) -> Lack | None:
    for role, text in _served_by(seen):
        if desired.get(role) and not _serving(seen, role):
            waiting = next((f"; {pod.name}: {pod.waiting}" for pod in seen.of(role) if pod.waiting), "")
            return Lack(FaultOwner.ROLE, text + waiting)
    return None


def _serving(seen: Observation, role: Role) -> list[Pod]:
    return [pod for pod in seen.of(role) if pod.ready and not pod.terminating]


def outage(seen: Observation) -> Lack | None:
    """The loss outside of a trainer by which its process may have ended, where that says that something failed."""
    if (silent := silent_pod(seen)) is not None:
        return Lack(FaultOwner.NODE, silence(silent), silent.node)
    gone = (text for role, text in _NEEDED if seen.of(seen.home(role)) and not _serving(seen, seen.home(role)))
    return next((Lack(FaultOwner.ROLE, text) for text in gone), None)


def served_since(seen: Observation, desired: Mapping[Role, int]) -> float:
    """Since when everything that the trainers need has been there: before that, no step was theirs to make."""
    since = [0.0]
    for role, _ in _served_by(seen):
        if not desired.get(role):
            continue
        at = [pod.conditions["Ready"].since for pod in _serving(seen, role) if "Ready" in pod.conditions]
        since.append(min(at, default=0.0))
    return max(since)
