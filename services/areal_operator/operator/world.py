"""Dependencies of a reconcile, put together once: the API server, caches, the roles' reports, the clock.

Owns what a process may remember beside the status, none of which is missed when it is gone: what it looked up, what
it wrote last, and the last states of deleted pods, which can't say any more why they went. Decides nothing.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from areal.plan.cluster_names import LABEL_JOB, Role
from areal.spec.runtime import RuntimeSpec
from areal.tls import TlsIdentity

from areal_operator.kube.resources import PODS, RLJOBS, RUNTIMES, Json, Key, Resource
from areal_operator.operator import children
from areal_operator.operator.admission import JobRefusal, RunnableJob
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.observed import NodeState, Pod, read_node, read_pod
from areal_operator.operator.reports import Poller
from areal_operator.operator.sharing import Blocks
from areal_operator.runtime.api import Api
from areal_operator.runtime.cache import Cache
from areal_operator.runtime.events import Recorder


@dataclass(frozen=True)
class OperatorSettings:
    """What the operator is told at its start."""

    default_runtime: str = ""  # name of a ClusterRLRuntime for jobs that name none
    operator_namespace: str = ""  # "" outside of a cluster
    metrics_from: Mapping[str, str] | None = None  # labels of namespaces that may scrape a job's pods


@dataclass
class Notes:
    """What this process knows of one job beside its status. Forgotten with the process, and nothing is lost."""

    uid: str
    admitted: dict[object, RunnableJob | JobRefusal] = field(default_factory=dict)  # newest look-up only
    tried: dict[object, JobRefusal | None] = field(default_factory=dict)  # newest dry run only
    inputs: tuple[RunnableJob, str] | None = None  # hash of what pod templates are made from
    secret: Mapping[str, str] | None = None
    secret_at: float = 0.0
    tls: TlsIdentity | None = None  # the operator's own
    tls_due: float = 0.0
    recipe: str | None = None
    granted: tuple[RunnableJob, list[Json], RunnableJob] | None = None  # newest admission by a queue only
    sized: tuple[RunnableJob, int, RunnableJob] | None = None  # newest size of an elastic fleet only
    hot_ordered: HotFields | None = None  # and not yet in the controller's report
    refused: Mapping[Role, str] = field(default_factory=dict)  # newest dry runs of pods only
    refused_at: float = 0.0
    uncertified: tuple[float, str] = (0.0, "")  # newest words of cert-manager only, and when it was asked
    flushed_at: float = 0.0
    settled: dict[str, tuple[tuple[object, ...], object]] = field(
        default_factory=dict
    )  # part → made of what, what it looked like
    applied: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)  # kind, name → digest, mark


class OperatorWorld:
    """Everything that a reconcile touches."""

    def __init__(
        self,
        api: Api,
        caches: Mapping[Resource, Cache],
        recorder: Recorder,
        reports: Poller,
        clock: Callable[[], float] = time.time,
        settings: OperatorSettings | None = None,
        *,
        build: Any = children,  # who makes a job's objects
        deleted_pods: "DeletedPods | None" = None,
    ) -> None:
        self.api = api
        self.caches = caches
        self.recorder = recorder
        self.reports = reports
        self.settings = settings or OperatorSettings()
        self.build = build
        self.runtimes: WeakValueDictionary[str, RuntimeSpec] = WeakValueDictionary()
        """By hash, one of each: most jobs keep equal ones."""
        self.blocks: Blocks = WeakValueDictionary()
        self.deleted_pods = deleted_pods or DeletedPods(clock)
        self._clock = clock
        self._notes: dict[Key, Notes] = {}

    def now(self) -> float:
        """Seconds since 1970."""
        return self._clock()

    def job(self, key: Key) -> Json | None:
        """The job; None when it is gone or going."""
        found = self.caches[RLJOBS].get(*key)
        return None if found is None or found["metadata"].get("deletionTimestamp") else found

    def notes(self, key: Key, uid: str) -> Notes:
        """Notes on this very job: one that was made again under the same name starts afresh."""
        notes = self._notes.get(key)
        if notes is None or notes.uid != uid:
            if notes is not None:
                self.reports.forget(key)
            notes = self._notes[key] = Notes(uid)
        return notes

    def forget(self, key: Key) -> None:
        """The job is no concern of ours any more."""
        self._notes.pop(key, None)
        self.deleted_pods.forget(key)
        self.reports.forget(key)

    def cached(self, resource: Resource) -> Cache | None:
        """The cache of a resource; None when it is not watched, or not to be seen."""
        cache = self.caches.get(resource)
        return cache if cache is not None and cache.synced else None


def keys_of(obj: Json) -> Iterable[Key]:
    """The job that an object concerns by itself: the job's own object, or one that carries its label."""
    metadata = obj["metadata"]
    if obj.get("kind") == RLJOBS.kind:
        return [(metadata.get("namespace", ""), metadata["name"])]
    job = (metadata.get("labels") or {}).get(LABEL_JOB)
    return [(metadata.get("namespace", ""), job)] if job else []


def keys_of_runtime(obj: Json, caches: Mapping[Resource, Cache]) -> Iterable[Key]:
    """Jobs that may have waited for a runtime: those that are not accepted."""
    namespace = obj["metadata"].get("namespace", "") if obj.get("kind") == RUNTIMES.kind else ""
    for job in caches[RLJOBS].all():
        accepted = any(
            condition.get("type") == "Accepted" and condition.get("status") == "True"
            for condition in job.get("status", {}).get("conditions", [])
        )
        if not accepted and namespace in ("", job["metadata"]["namespace"]):
            yield job["metadata"]["namespace"], job["metadata"]["name"]


def keys_of_node(obj: Json, caches: Mapping[Resource, Cache]) -> Iterable[Key]:
    """Jobs with a pod on a machine, when the machine's state may matter to them."""
    if read_node(obj) == NodeState():
        return set()
    return {key for pod in caches[PODS].indexed(obj["metadata"]["name"]) for key in keys_of(pod)}


def node_of(pod: Json) -> str:
    """The machine that a pod is bound to; empty while there is none."""
    return str(pod.get("spec", {}).get("nodeName") or "")


_DELETED_KEPT = 64  # a job: more than its pods that can be deleted between two reconciles, but for very large fleets
_DELETED_KEPT_S = 600.0  # far above the time between two reconciles


class DeletedPods:
    """By job, then by the pod's uid; oldest first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: dict[Key, dict[str, tuple[float, Pod]]] = {}

    def add(self, obj: Json) -> None:
        """A pod was deleted; `obj` is its last state."""
        metadata = obj["metadata"]
        job = (metadata.get("labels") or {}).get(LABEL_JOB)
        pod = read_pod(obj)
        if not job or pod is None:
            return
        found = self._of.setdefault((metadata.get("namespace", ""), job), {})
        found[pod.uid] = self._clock(), pod
        while len(found) > _DELETED_KEPT:
            del found[next(iter(found))]

    def of(self, key: Key) -> Mapping[str, Pod]:
        """The last states of a job's deleted pods, by uid."""
        found = self._of.get(key)
        if found is None:
            return {}
        since = self._clock() - _DELETED_KEPT_S
        for uid in [uid for uid, (at, _) in found.items() if at < since]:
            del found[uid]
        if not found:
            del self._of[key]
        return {uid: pod for uid, (_, pod) in found.items()}

    def forget(self, key: Key) -> None:
        """The job is no concern any more."""
        self._of.pop(key, None)
