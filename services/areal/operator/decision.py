"""What can be decided about a job: one value says what becomes of its status, its children and its pods.

Every decision carries the memory that is written into the status before anything else is done, so that whatever is
done was decided by someone whose successor knows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from areal.operator.hot_fields import HotFields
from areal.operator.memory import Memory
from areal.operator.observed import Batch, Pod, Workload
from areal.plan.cluster_names import Role
from areal.spec.status import AcceptedReason, AuditStatus, CompleteReason, FailedReason


@dataclass(frozen=True)
class Eviction:
    """A pod to delete, by uid. By force: without waiting for a kubelet that is gone."""

    pod: Pod
    why: str
    force: bool = False


@dataclass(frozen=True)
class HandsOff:
    """Another controller manages the job: nothing is done, not even a status written."""


@dataclass(frozen=True)
class Reject:
    """The job can't run as it is."""

    memory: Memory
    reason: AcceptedReason
    message: str
    again_s: float | None = None


@dataclass(frozen=True)
class Prepare:
    """Sources are checked and snapshots written, by a Job; nothing else runs yet."""

    memory: Memory
    retire: tuple[Batch, ...] = ()  # a Job that failed, to be made anew
    evict: tuple[Eviction, ...] = ()
    again_s: float | None = None


@dataclass(frozen=True)
class Converge:
    """All roles run as the spec asks."""

    memory: Memory
    replicas: Mapping[Role, int]
    apply: bool = True  # False: what the spec asks for is refused, what runs goes on
    tell: tuple[Pod, ...] = ()  # trainers whose launcher must hear of the epoch
    hot: HotFields | None = None  # to be set at the controller
    evict: tuple[Eviction, ...] = ()
    again_s: float | None = None


@dataclass(frozen=True)
class Suspend:
    """The trainers save, then all pods go; volumes and objects stay."""

    memory: Memory
    drain: tuple[Pod, ...] = ()  # trainers whose child must save and stop
    replicas: Mapping[Role, int] | None = None  # all 0, once nothing is left to save
    retire: tuple[Batch, ...] = ()
    evict: tuple[Eviction, ...] = ()
    again_s: float | None = None


@dataclass(frozen=True)
class Finish:
    """The last step is trained: audit and report are made, by a Job."""

    memory: Memory
    retire: tuple[Batch, ...] = ()
    evict: tuple[Eviction, ...] = ()
    again_s: float | None = None


@dataclass(frozen=True)
class End:
    """The job has ended, for good."""

    memory: Memory
    reason: CompleteReason | FailedReason
    message: str
    audit: AuditStatus | None = None
    again_s: float | None = 0.0


@dataclass(frozen=True)
class CleanUp:
    """What is left of a job that ended goes when its time has come; nothing is made any more."""

    memory: Memory
    kept: bool = False  # pods stay for now, or for good
    remove: tuple[Workload, ...] = ()
    evict: tuple[Eviction, ...] = ()
    delete_job: bool = False
    again_s: float | None = None


Acting = Prepare | Converge | Suspend | Finish | CleanUp
Decision = HandsOff | Reject | End | Acting
