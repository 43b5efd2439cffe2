"""Outcomes of one reconcile: a value says what becomes of a job's status, its children and its pods.

Every decision carries the state that is written into the status before any effect, so a process that dies between
the two is followed by one that knows what was decided.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from areal.plan.cluster_names import Role
from areal.spec.status import AcceptedReason, AuditStatus, CompleteReason, FailedReason

from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.job_state import JobState
from areal_operator.operator.observed import BatchJob, Pod, Workload


@dataclass(frozen=True)
class Eviction:
    """A pod to delete, by uid. `force`: without waiting for a kubelet that is gone."""

    pod: Pod
    why: str
    force: bool = False


@dataclass(frozen=True)
class HandsOff:
    """Another controller manages the job: nothing is done, not even a status written."""


@dataclass(frozen=True)
class JobDecision:
    """What every decision about a job of ours has: what the status keeps, and when to reconcile again."""

    state: JobState
    again_s: float | None = None


@dataclass(frozen=True)
class EvictingDecision(JobDecision):
    """A decision after which pods may have to go, whatever else is done."""

    evict: tuple[Eviction, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reject(JobDecision):
    """The job can't run as it is."""

    reason: AcceptedReason
    message: str


@dataclass(frozen=True, kw_only=True)
class Prepare(EvictingDecision):
    """Sources are checked and snapshots written, by a Job; nothing else runs yet."""

    retire: tuple[BatchJob, ...] = ()  # a Job that failed, to be made anew


@dataclass(frozen=True, kw_only=True)
class Converge(EvictingDecision):
    """All roles run as the spec asks."""

    replicas: Mapping[Role, int]
    apply: bool = True  # False: what the spec asks for is refused, what runs goes on
    tell: tuple[Pod, ...] = ()  # trainers whose launcher must hear of the epoch
    hot: HotFields | None = None  # to be set at the controller


@dataclass(frozen=True, kw_only=True)
class Suspend(EvictingDecision):
    """The trainers save, then all pods go; volumes and objects stay."""

    drain: tuple[Pod, ...] = ()  # trainers whose child must save and stop
    replicas: Mapping[Role, int] | None = None  # all 0, once nothing is left to save
    retire: tuple[BatchJob, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finish(EvictingDecision):
    """The last step is trained: audit and report are made, by a Job."""

    retire: tuple[BatchJob, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EndJob(JobDecision):
    """The job has ended, for good."""

    reason: CompleteReason | FailedReason
    message: str
    audit: AuditStatus | None = None
    again_s: float | None = 0.0


@dataclass(frozen=True, kw_only=True)
class CleanUp(EvictingDecision):
    """What is left of a job that ended goes when its time has come; nothing is made any more."""

    kept: bool = False  # pods stay for now, or for good
    remove: tuple[Workload, ...] = ()
    delete_job: bool = False


Decision = HandsOff | Reject | Prepare | Converge | Suspend | Finish | EndJob | CleanUp
