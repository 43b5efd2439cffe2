"""Last states of deleted pods, kept for a while: a pod that is gone can't say any more why it went.

Owns how many are kept and for how long. In memory only: an operator that starts later knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from areal.plan.cluster_names import LABEL_JOB

from areal_operator.kube.resources import Json, Key
from areal_operator.operator.observed import Pod, read_pod

KEPT = 64  # a job: more than its pods that can be deleted between two reconciles, but for very large fleets
KEPT_S = 600.0  # far above the time between two reconciles


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
        while len(found) > KEPT:
            del found[next(iter(found))]

    def of(self, key: Key) -> Mapping[str, Pod]:
        """The last states of a job's deleted pods, by uid."""
        found = self._of.get(key)
        if found is None:
            return {}
        since = self._clock() - KEPT_S
        for uid in [uid for uid, (at, _) in found.items() if at < since]:
            del found[uid]
        if not found:
            del self._of[key]
        return {uid: pod for uid, (_, pod) in found.items()}

    def forget(self, key: Key) -> None:
        """The job is no concern any more."""
        self._of.pop(key, None)
