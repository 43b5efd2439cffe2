"""Accounts of a fleet that jobs share, kept from every version of pods, Workloads and jobs that the API server showed.

Quota is looked at after each write, in the order of writes; GPU-seconds are counted from the lives of pods.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from areal_operator.operator.times import POLL_S
from kube import kueue
from kube.follow import History
from kube.jobs import Object
from kube.test_kube_gpus import GPU

LATE_S = 2 * POLL_S + 1.0  # a change is seen by the second look, and times are written to the second


def cards(spec: Object) -> int:
    """GPUs of a pod's spec, or of that of a pod set."""
    asked = [one.get("resources", {}).get("limits", {}).get(GPU, 0) for one in spec["containers"]]
    return sum(int(count) for count in asked)


def over(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


@dataclass
class Ledger:
    """State of two namespaces as their histories are read in the order of writes, and what was wrong at any moment."""

    quota: int
    pods: dict[tuple[str, str], Object] = field(default_factory=dict)
    workloads: dict[tuple[str, str], Object] = field(default_factory=dict)
    deleted: set[tuple[str, str]] = field(default_factory=set)
    most: int = 0
    looks: int = 0
    wrong: list[str] = field(default_factory=list)

    def read(self, kind: str, obj: Object) -> None:
        """Take the next version of an object, and look."""
        metadata = obj["metadata"]
        key = (metadata["namespace"], metadata["name"])
        known = {"Pod": self.pods, "Workload": self.workloads}.get(obj["kind"])
        if known is not None and kind == "DELETED":
            known.pop(key, None)
        elif known is not None:
            known[key] = obj
        elif kind == "DELETED" or "deletionTimestamp" in metadata:
            self.deleted.add(key)
        self.look(f"{kind} {obj['kind']} {key} at {metadata['resourceVersion']}")

    def look(self, after: str) -> None:
        self.looks += 1
        mine: dict[tuple[str, str], list[Object]] = {}
        for (namespace, _), pod in self.pods.items():
            if not over(pod):
                mine.setdefault((namespace, pod["metadata"]["labels"]["areal.dev/rljob"]), []).append(pod)
        total = 0
        for job, there in mine.items():
            if job in self.deleted:
                continue
            total += sum(cards(pod["spec"]) for pod in there)
            found = self.workloads.get(job, {})
            if not kueue.holds(found, "QuotaReserved"):
                self.wrong.append(f"after {after}: {job} has {len(there)} pods and no quota")
                continue
            granted = {one["name"]: one["count"] for one in found["status"]["admission"]["podSetAssignments"]}
            granted["generation"] = granted.get("generation", 0) + granted.pop("surge", 0)
            for role, count in granted.items():
                have = sum(pod["metadata"]["labels"].get("areal.dev/role") == role for pod in there)
                if have > count:
                    self.wrong.append(f"after {after}: {job} has {have} pods of {role}, {count} are admitted")
        self.most = max(self.most, total)
        if total > self.quota:
            self.wrong.append(f"after {after}: {total} GPUs of {self.quota}")


def in_order(*histories: History) -> list[tuple[str, Object, float]]:
    """All that they saw, in the order of the API server's writes, each with the time when it came."""
    seen = [
        (kind, obj, history.came[obj["metadata"]["resourceVersion"]])
        for history in histories
        for kind, obj in history.events
    ]
    return sorted(seen, key=lambda one: int(one[1]["metadata"]["resourceVersion"]))


@dataclass
class Spent:
    """GPU-seconds of one job by its pods' life, and by how many GPUs their number changed in all."""

    seconds: float = 0.0
    changed: int = 0
    now: int = 0
    since: float = 0.0

    def turn(self, gpus: int, at: float) -> None:
        """It holds so many from a moment on."""
        if gpus != self.now:
            self.seconds += self.now * (at - self.since)
            self.changed += abs(gpus - self.now)
            self.now, self.since = gpus, at

    @property
    def tolerance(self) -> float:
        """By how many GPU-seconds an operator may be off that sees each change within `LATE_S`."""
        return self.changed * LATE_S


def unaccounted(versions: list[tuple[str, Object, float]]) -> list[str]:
    """Numbers in a status that its pods didn't have, in this order, and GPU-seconds that aren't numbers times spans."""
    sums: dict[tuple[str, str], list[int]] = {}
    holding: dict[tuple[str, str], dict[str, int]] = {}
    seen: dict[tuple[str, str], int] = {}  # how far in its sums
    last: dict[tuple[str, str], Object] = {}
    wrong: list[str] = []
    for kind, obj, _ in versions:
        if obj["kind"] == "Pod":
            job, count = holder(kind, obj)
            holding.setdefault(job, {})[obj["metadata"]["uid"]] = count
            sums.setdefault(job, [0]).append(sum(holding[job].values()))
        elif obj["kind"] == "RLJob" and (usage := obj.get("status", {}).get("usage")):
            job = (obj["metadata"]["namespace"], obj["metadata"]["name"])
            if usage == last.get(job):
                continue
            try:
                seen[job] = sums[job].index(usage["gpus"], seen.get(job, 0))
            except ValueError:
                wrong.append(f"{job}: {usage} is of no moment")
            before = last.get(job, {**usage, "gpuSeconds": 0})
            span = datetime.fromisoformat(usage["since"]) - datetime.fromisoformat(before["since"])
            if usage["gpuSeconds"] != before["gpuSeconds"] + before["gpus"] * span.total_seconds():
                wrong.append(f"{job}: {before} → {usage}")
            last[job] = usage
    return wrong


def holder(kind: str, pod: Object) -> tuple[tuple[str, str], int]:
    """A pod's job, and the GPUs that it holds: those of a pod that has a node and is neither over nor gone."""
    holds = kind != "DELETED" and pod["spec"].get("nodeName") and not over(pod)
    job = (pod["metadata"]["namespace"], pod["metadata"]["labels"]["areal.dev/rljob"])
    return job, cards(pod["spec"]) if holds else 0


def spent(versions: list[tuple[str, Object, float]]) -> dict[tuple[str, str], Spent]:
    """What each job's pods held, from when they had a node until they were over or gone."""
    found: dict[tuple[str, str], Spent] = {}
    holding: dict[tuple[str, str], dict[str, int]] = {}
    for kind, pod, at in versions:
        if pod["kind"] != "Pod":
            continue
        job, count = holder(kind, pod)
        holding.setdefault(job, {})[pod["metadata"]["uid"]] = count
        found.setdefault(job, Spent()).turn(sum(holding[job].values()), at)
    return found
