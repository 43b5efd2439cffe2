"""Observed state of one job, as values.

Owns the reading of raw objects: which field of a Pod, StatefulSet, Job or Node means what. Everything that decides
works on these values, which are made of the caches' dicts, of the last answers of the job's roles, and of the status
as it was written last. Reads no clock and asks nobody.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from areal.observe.live import Idle
from areal.plan.cluster_names import (
    LABEL_CLAIMED_GPUS,
    LABEL_POD_INDEX,
    LABEL_ROLE,
    LABEL_RUN,
    MAIN_CONTAINER,
    SURGE_FROM,
    Role,
)
from areal.plan.role_specs import spec_of
from areal.processes.core import ChildPhase
from areal.spec.status import AuditStatus
from pydantic import ValidationError

from areal_operator.kube.resources import Json, Key
from areal_operator.operator import times
from areal_operator.operator.admission import JobRefusal, RunnableJob
from areal_operator.operator.elastic import FleetWatch
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.job_state import Condition, JobState, StepEvidence, conditions_in


@dataclass(frozen=True)
class PodEnd:
    """One end of a pod's main container."""

    code: int
    reason: str  # Kubernetes' word: Error, OOMKilled, Completed
    message: str  # what the process wrote to its termination log
    at: float


@dataclass(frozen=True)
class Pod:
    """One pod of the job."""

    name: str
    uid: str
    role: Role
    index: int | None = None
    node: str = ""
    ip: str = ""
    phase: str = "Pending"
    running: bool = False  # its main container runs
    ready: bool = False
    restarts: int = 0  # of the main container, by the kubelet
    ending: PodEnd | None = None  # the newest one
    waiting: str = ""  # why the main container doesn't run: ImagePullBackOff, CrashLoopBackOff …
    waiting_message: str = ""
    terminating_until: float | None = None  # a terminating pod should be gone by then
    revision: str = ""  # of the template it was made from
    gpus: int = 0  # that its containers ask for
    conditions: Mapping[str, Condition] = field(default_factory=dict)

    @property
    def incarnation(self) -> str:
        """Tells this run of the main container from every other: a restarted launcher has forgotten its epoch."""
        return f"{self.uid}/{self.restarts}"

    @property
    def terminating(self) -> bool:
        return self.terminating_until is not None

    @property
    def surge(self) -> bool:
        """True of a server of the surge pool."""
        return self.role is Role.GENERATION and (self.index or 0) >= SURGE_FROM

    @property
    def over(self) -> bool:
        """Nothing in it will ever run again."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True)
class Workload:
    """A StatefulSet or Deployment of the job."""

    name: str
    uid: str
    role: Role
    kind: str
    replicas: int  # asked for
    pods: int  # there
    ready: int
    revision: str  # that new pods are made from; "" until the controller has seen the newest template
    current: bool = True  # its controller has seen what is asked for


class BatchStage(StrEnum):
    """Where a batch Job is."""

    ABSENT = "absent"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    GOING = "going"  # being deleted


@dataclass(frozen=True)
class BatchJob:
    """The Job that prepares or finishes."""

    stage: BatchStage = BatchStage.ABSENT
    name: str = ""
    uid: str = ""
    at: float = 0.0  # when it completed or failed
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class NodeState:
    """State of the machine under a pod."""

    ready: bool = True
    silent_since: float | None = None  # its kubelet has not been heard of since then
    out_of_service: bool = False  # someone vouches that nothing runs there any more
    leaving: bool = False  # about to be removed; a cordon is no such sign: it asks for nothing new only

    @property
    def silent(self) -> bool:
        """Whether nothing is heard of its kubelet."""
        return self.silent_since is not None


@dataclass(frozen=True)
class LauncherReport:
    """A launcher's newest answer."""

    phase: ChildPhase
    epoch: int
    awaits_epoch: bool
    exit_code: int
    exit_reason: str
    at: float


@dataclass(frozen=True)
class TrainerProgress:
    """The trainer's newest answer, by rank 0."""

    step: int
    checkpoint_step: int  # 0 before the first
    checkpoint_at: float
    at: float
    max_steps: int = 0  # as it knows them; 0 where it doesn't say
    evidence: StepEvidence | None = None  # None: an older trainer, which doesn't count what it made itself
    since: float | None = None  # when this step was heard of first


@dataclass(frozen=True)
class ControllerReport:
    """The rollout controller's newest answer."""

    hot: HotFields  # in force
    step: int
    policy_version: int | None  # served
    oldest_served_version: int | None
    reward: float | None
    staleness: float | None
    stalled: str  # why it can't go on without help
    at: float
    idle: Idle | None = None  # why it admits nothing now
    wasted_share: float | None = None
    since: float | None = None  # when this step was heard of first
    watch: FleetWatch | None = None  # of its fleet
    ledger_silent_s: float = 0.0  # since the ledger answered it, when it said this
    unserved: str = ""  # which role did not do its work, until a step after it
    unserved_s: float = 0.0
    unserved_role: str = ""  # whose service answers no worker now
    silent: Mapping[str, float] = field(default_factory=dict)  # servers that it doesn't hear, and since when it says so

    @property
    def unheard(self) -> frozenset[str]:
        """Servers that it has not heard for longer than QUIET_S."""
        return frozenset(server for server, since in self.silent.items() if self.at - since > times.QUIET_S)


@dataclass(frozen=True)
class Reports:
    """The last answers of a job's roles; of launchers, by pod uid."""

    controller: ControllerReport | None = None
    trainer: TrainerProgress | None = None
    launchers: Mapping[str, LauncherReport] = field(default_factory=dict)
    at: float = 0.0  # of the newest round of questions; 0 before the first


@dataclass(frozen=True)
class QueueEntry:
    """The place of a job in the Kueue queue that its label names. `missing`: why it can have none."""

    queue: str
    missing: str = ""
    workload: Json | None = None  # None before it is made

    def condition(self, kind: str) -> Json:
        """One of the Workload's conditions; empty before it was written."""
        found: list[Json] = (self.workload or {}).get("status", {}).get("conditions", [])
        return next((one for one in found if one.get("type") == kind), {})

    def true(self, kind: str) -> bool:
        """Whether a condition of the Workload is True."""
        return bool(self.condition(kind).get("status") == "True")

    @property
    def active(self) -> bool:
        """False once somebody, or a limit of Kueue's, has taken the Workload out of its queue."""
        return (self.workload or {}).get("spec", {}).get("active") is not False

    @property
    def admitted(self) -> bool:
        """Whether the job may run. While an evicted Workload holds its quota, Kueue keeps `Admitted` true."""
        return self.true("Admitted") and self.active and not self.true("Evicted")

    @property
    def text(self) -> str:
        """Why the job doesn't run, for people; after the queue, the words are Kueue's."""
        evicted, reserved = self.condition("Evicted"), self.true("QuotaReserved")
        said = f"({evicted.get('reason', 'by hand')}) {evicted.get('message', '')}".rstrip()
        if not self.active:
            why = f"its Workload is inactive {said}; others may have its quota before its pods have saved and gone"
        elif reserved and self.true("Evicted"):
            why = f"evicted {said}; its quota is kept until its pods have saved and gone"
        elif reserved:
            why = self.condition("Admitted").get("message") or "quota is reserved, admission checks are awaited"
        else:
            why = self.missing or self.condition("QuotaReserved").get("message") or "Kueue has not looked yet"
        return f"waits for quota in queue {self.queue}: {why}"


@dataclass(frozen=True)
class Observation:
    """One job, all that is known of it."""

    key: Key
    raw: Json
    state: JobState
    admitted: RunnableJob | None  # None: refused, or not looked at because it has ended
    refusal: JobRefusal | None
    pods: tuple[Pod, ...] = ()
    workloads: tuple[Workload, ...] = ()
    beside: tuple[Workload, ...] = ()  # of roles whose pods nothing depends on
    prepare: BatchJob = field(default_factory=BatchJob)
    finish: BatchJob = field(default_factory=BatchJob)
    departed: Mapping[str, Pod] = field(default_factory=dict)  # pods that are gone, as they were last, by uid
    refused: Mapping[Role, str] = field(default_factory=dict)  # why no more pods of a role can be made now
    nodes: Mapping[str, NodeState] | None = None  # None: the operator may not see machines
    reports: Reports = field(default_factory=Reports)
    queue: QueueEntry | None = None  # None: the job names no queue
    uncertified: str = ""  # why a certificate that pods wait for isn't issued

    @property
    def generation(self) -> int:
        """Of the spec."""
        return int(self.raw["metadata"].get("generation", 0))

    def of(self, role: Role) -> tuple[Pod, ...]:
        """The pods of a role, by index, then by name."""
        return tuple(pod for pod in self.pods if pod.role is role)

    def home(self, role: Role) -> Role:
        """The role in whose pods a role's processes are: servers may be in the trainer's."""
        beside = self.admitted is not None and self.admitted.resolved.in_one_pod
        return Role.TRAINER if role is Role.GENERATION and beside else role

    def workload(self, role: Role) -> Workload | None:
        """The StatefulSet or Deployment of a role."""
        return next((workload for workload in self.workloads if workload.role is role), None)


def role_of(obj: Json) -> Role | None:
    """The role that an object's labels name."""
    try:
        return Role(obj["metadata"].get("labels", {}).get(LABEL_ROLE, ""))
    except ValueError:
        return None


def owner_of(obj: Json) -> Json:
    """The ownerReference of the object's controller; empty without one."""
    owners: list[Json] = obj["metadata"].get("ownerReferences", [])
    return next((owner for owner in owners if owner.get("controller")), {})


def run_of(claim: Json) -> str | None:
    """The uid of the job whose run a claim holds that outlives it; None of any other claim."""
    return (claim["metadata"].get("labels") or {}).get(LABEL_RUN)


def uncertified(certificates: list[Json], requests: list[Json]) -> str:
    """cert-manager's words on the first Certificate that it has not issued; empty once it has issued all."""
    for one in certificates:
        name, by, own = one["metadata"]["name"], one["spec"]["issuerRef"], conditions_in(one.get("status", {}))
        if "Ready" not in own or own["Ready"].status != "True":
            asked = [conditions_in(each.get("status", {})) for each in requests if owner_of(each).get("name") == name]
            said = [of[k].message for of in (*asked, own) for k in ("Denied", "InvalidRequest", "Ready") if k in of]
            said.append("cert-manager has not answered")
            return f"Certificate {name} is not issued by {by['kind']} {by['name']}: {said[0]}"
    return ""


def read_pod(obj: Json) -> Pod | None:
    """A pod of one of the job's roles; None for any other."""
    role = role_of(obj)
    if role is None:
        return None
    metadata, status = obj["metadata"], obj.get("status", {})
    labels = metadata.get("labels", {})
    main: Json = next((c for c in status.get("containerStatuses", []) if c.get("name") == MAIN_CONTAINER), {})
    state: Json = main.get("state", {})
    conditions = conditions_in(status)
    index = labels.get(LABEL_POD_INDEX, "")
    waiting: Json = state.get("waiting", {})
    ready = conditions.get("Ready")
    deleted = times.parse(metadata.get("deletionTimestamp"))  # already has the grace period in it
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=role,
        index=int(index) if index.isdecimal() else None,
        node=obj.get("spec", {}).get("nodeName", ""),
        ip=status.get("podIP", ""),
        phase=status.get("phase", "Pending"),
        running="running" in state,
        ready=ready is not None and ready.status == "True",
        restarts=int(main.get("restartCount", 0)),
        ending=_ending(state.get("terminated") or main.get("lastState", {}).get("terminated")),
        waiting=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        terminating_until=deleted,
        revision=labels.get("controller-revision-hash", ""),
        gpus=int(labels.get(LABEL_CLAIMED_GPUS, 0)) or _gpus(obj.get("spec", {})),
        conditions=conditions,
    )


def _gpus(spec: Json) -> int:
    """GPUs of a pod's containers, whoever's plugin names them; a slice of one (MIG) counts as one."""
    limits = [container.get("resources", {}).get("limits", {}) for container in spec.get("containers", [])]
    return sum(int(count) for each in limits for name, count in each.items() if "gpu" in name or "/mig-" in name)


def _ending(terminated: Json | None) -> PodEnd | None:
    if not terminated:
        return None
    return PodEnd(
        code=int(terminated.get("exitCode", 0)),
        reason=terminated.get("reason", ""),
        message=terminated.get("message", ""),
        at=times.parse(terminated.get("finishedAt")) or 0.0,
    )


def read_workload(obj: Json) -> Workload | None:
    """A StatefulSet or Deployment of one of the job's roles; None for any other, and for one that is being deleted."""
    role = role_of(obj)
    if role is None or not spec_of(role).runs_on or obj["metadata"].get("deletionTimestamp"):
        return None
    status = obj.get("status", {})
    current = status.get("observedGeneration", 0) >= obj["metadata"].get("generation", 0)
    return Workload(
        name=obj["metadata"]["name"],
        uid=obj["metadata"]["uid"],
        role=role,
        kind=obj["kind"],
        replicas=int(obj.get("spec", {}).get("replicas", 1)),
        pods=int(status.get("replicas", 0)),
        ready=int(status.get("readyReplicas", 0)),
        revision=status.get("updateRevision", "") if current else "",
        current=current,
    )


def read_batch(obj: Json | None) -> BatchJob:
    """The stage of a Job that may not be there."""
    if obj is None:
        return BatchJob()
    metadata = obj["metadata"]
    stage, at, reason, message = BatchStage.RUNNING, 0.0, "", ""
    for condition in obj.get("status", {}).get("conditions", []):
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            stage = BatchStage.COMPLETE if condition["type"] == "Complete" else BatchStage.FAILED
            at = times.parse(condition.get("lastTransitionTime")) or 0.0
            reason, message = condition.get("reason", ""), condition.get("message", "")
    if metadata.get("deletionTimestamp"):
        stage = BatchStage.GOING
    return BatchJob(stage, metadata["name"], metadata["uid"], at, reason, message)


_LEAVING_TAINTS = frozenset({
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "node.cloudprovider.kubernetes.io/shutdown",
})  # fmt: skip
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


def read_node(obj: Json) -> NodeState:
    """Whether a machine is alive, and whether it is about to be removed."""
    spec: dict[str, Any] = obj.get("spec", {})
    taints = {taint.get("key", "") for taint in spec.get("taints", [])}
    ready: Json = next((c for c in obj.get("status", {}).get("conditions", []) if c.get("type") == "Ready"), {})
    silent = ready.get("status") == "Unknown"
    return NodeState(
        ready=ready.get("status") == "True",
        silent_since=(times.parse(ready.get("lastTransitionTime")) or 0.0) if silent else None,
        out_of_service=_OUT_OF_SERVICE in taints,
        leaving=bool(taints & _LEAVING_TAINTS),
    )


def audit_of(seen: Observation) -> AuditStatus | None:
    """The newest audit that a finishing pod wrote; None when none did, or it can't be read."""
    endings = [pod.ending for pod in seen.of(Role.FINISH) if pod.ending is not None and pod.ending.message]
    for ending in sorted(endings, key=lambda ending: ending.at, reverse=True):
        try:
            return AuditStatus.model_validate(json.loads(ending.message), by_alias=True, by_name=False)
        except (ValueError, ValidationError):
            continue
    return None
