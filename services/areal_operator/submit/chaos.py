"""Fault injection into a job on a cluster: pods are deleted without notice, and what each loss costs is measured.

Owns the recovery's stamps as the API server tells them: the role's pods, and the job's status, which follows the
trainer by seconds.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from areal.errors import ConfigError, InfraError
from areal.plan.cluster_names import LABEL_JOB, LABEL_ROLE
from areal.record.fault_cost import FaultCost
from areal.spec.status import ConditionType, JobStatus

from areal_operator.submit.cluster import Cluster

_LOOK_S = 0.5
_LOST_S = 600.0  # for a new step
_SPREAD_S = 5.0  # of the moments: more than a status is behind
_BETWEEN = 2  # steps between a recovery and the next loss
_ENDS = (ConditionType.COMPLETE, ConditionType.FAILED, ConditionType.SUSPENDED)


class JobUnderLosses:
    """A job whose pods are lost, one after another."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self._cluster, self._namespace, self._name = cluster, namespace, name

    def lose(
        self, roles: Sequence[str], *, times: int, seed: int, tell: Callable[[FaultCost], None]
    ) -> list[FaultCost]:
        """Delete a pod of each role that `roles` name, `times` times; `tell` hears what each loss cost.

        The next loss comes when two more steps are trained. Raises ConfigError where no such role has a pod that is
        ready, InfraError when the job ends meanwhile.
        """
        draw, there, costs = random.Random(seed), sorted(self._ready()), list[FaultCost]()
        if not there:
            raise ConfigError(f"no pod of {self._name} is ready", fix=f"see `areal why rljob/{self._name}`")
        if unknown := [role for role in roles if role not in there]:
            raise ConfigError(
                f"no pod of {unknown[0]!r} is ready in {self._name}", fix=f"name one of {', '.join(there)}"
            )
        chosen = list(roles) or there
        for _ in range(times):
            for role in draw.sample(chosen, len(chosen)):
                costs.append(self._one(role, draw))
                tell(costs[-1])
                if not costs[-1].recovered:
                    return costs
        return costs

    def _one(self, role: str, draw: random.Random) -> FaultCost:
        """One loss, from the moment before it to the first step that was not trained before and that it is behind."""
        least = self._step() + _BETWEEN
        self._await(lambda: self._step() >= least, "two more steps")
        time.sleep(draw.uniform(0, _SPREAD_S))
        before: dict[str, str] = self._await(lambda: self._ready().get(role), f"{role} to be ready")
        newest = self._step()
        victim = draw.choice(sorted(before, key=before.__getitem__))  # by name: uids are drawn anew each time
        pod = {"kind": "Pod", "metadata": {"namespace": self._namespace, "name": before[victim]}}
        at, began = time.time(), time.monotonic()
        self._cluster.delete(pod, grace_s=0)
        detected = replaced = new_step = None
        while new_step is None and time.monotonic() - began < _LOST_S:
            time.sleep(_LOOK_S)
            ready, step = self._ready().get(role, {}), self._step()
            since = round(time.monotonic() - began, 1)
            if detected is None and victim not in ready:
                detected = since
            if replaced is None and len(ready) >= len(before) and not ready.keys() <= before.keys():
                replaced, newest = since, max(newest, step)
            elif replaced is not None and step > newest:
                new_step = since
        return FaultCost(role, "pod lost", at, detected, replaced, new_step)

    def _ready(self) -> dict[str, dict[str, str]]:
        """Of each role its ready pods: uid → name."""
        found: dict[str, dict[str, str]] = {}
        for pod in self._cluster.all_of("Pod", self._namespace, selector=f"{LABEL_JOB}={self._name},{LABEL_ROLE}"):
            metadata, conditions = pod["metadata"], pod.get("status", {}).get("conditions", ())
            held = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
            if held and "deletionTimestamp" not in metadata:
                found.setdefault(metadata["labels"][LABEL_ROLE], {})[metadata["uid"]] = metadata["name"]
        return found

    def _step(self) -> int:
        """Steps trained. Raises InfraError when no more will be."""
        job = self._cluster.get("RLJob", self._namespace, self._name) or {}
        status = JobStatus.model_validate(job.get("status", {}))
        if not job or any(map(status.holds, _ENDS)):
            raise InfraError("the job ended meanwhile", fix=f"see `areal why rljob/{self._name}`")
        return status.progress.step if status.progress is not None else 0

    def _await(self, ready: Callable[[], Any], what: str) -> Any:
        """Wait for it while the job goes on; returns what it is. Raises InfraError."""
        until = time.monotonic() + _LOST_S
        while not (found := ready()):
            self._step()
            if time.monotonic() > until:
                raise InfraError(
                    f"the job waits for {what} since {_LOST_S:g} s", fix=f"see `areal why rljob/{self._name}`"
                )
            time.sleep(_LOOK_S)
        return found
