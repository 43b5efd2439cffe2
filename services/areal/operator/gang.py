"""The trainer gang: who belongs to it, whether it is whole, what happened to it, whom to tell.

Owns the protocol by which trainers restart together. A gang forms when every pod has a launcher that answers; its
members and a new epoch are written into the status, and only then is each launcher told to run in that epoch. While
an epoch has members, a missing or replaced one, or a child that ended, is an incident; an epoch without members is
over, and nothing that belongs to it is an incident any more. So a failure is counted once, whatever the operator sees
how often. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from areal.operator.failure import Incident, shell_code
from areal.operator.memory import Memory
from areal.operator.observed import ChildPhase, LauncherReport, Node, Observed, Pod
from areal.operator.times import FRESH_S
from areal.plan.cluster_names import Role

_RUNS = (ChildPhase.STARTING, ChildPhase.READY)


@dataclass(frozen=True)
class Gang:
    """The trainer's pods and what their launchers said. `size` pods make it whole."""

    size: int
    pods: tuple[Pod, ...]  # of its ordinals, by index
    seen: Observed
    now: float

    @property
    def memory(self) -> Memory:
        return self.seen.memory

    def report(self, pod: Pod) -> LauncherReport | None:
        """What the pod's launcher said last; None when that is too long ago."""
        found = self.seen.reports.launchers.get(pod.uid)
        return found if found is not None and self.now - found.at <= FRESH_S else None

    def node(self, pod: Pod) -> Node:
        """The machine under a pod; one that is not known is taken to be fine."""
        return (self.seen.nodes or {}).get(pod.node, Node())

    @property
    def missing(self) -> list[str]:
        """Why the gang isn't whole, a phrase a pod. Empty: it is."""
        found = (
            [f"{self.size - len(self.pods)} of {self.size} pods are not there"] if len(self.pods) < self.size else []
        )
        return found + [f"{pod.name} {why}" for pod in self.pods if (why := self._unfit(pod))]

    def _unfit(self, pod: Pod) -> str:
        report = self.report(pod)
        if pod.terminating:
            return "is terminating"
        if not pod.running:
            return f"does not run{f' ({pod.waiting})' if pod.waiting else ''}"
        if report is None:
            return "has a launcher that does not answer"
        if report.phase is ChildPhase.STOPPED:
            return "was drained and is replaced"
        return ""

    @property
    def members(self) -> tuple[str, ...]:
        """Who forms the next epoch."""
        return tuple(pod.incarnation for pod in self.pods)

    @property
    def next_epoch(self) -> int:
        """Above every epoch that anyone has heard of: a status may have come from a backup."""
        heard = [report.epoch for pod in self.pods if (report := self.report(pod))]
        return max(self.memory.epoch, *heard, 0) + 1

    @property
    def overtaken(self) -> bool:
        """Whether launchers run in an epoch that the status has never heard of: it came from a backup."""
        heard = [report.epoch for pod in self.pods if (report := self.report(pod))]
        return max(heard, default=0) > self.memory.epoch

    @property
    def formed(self) -> bool:
        """Whether an epoch runs, or should."""
        return bool(self.memory.members)

    @property
    def complete(self) -> bool:
        """Whether rank 0 has trained to the end in an epoch of ours: everything is committed then."""
        first = self.report(self.pods[0]) if self.pods and self.pods[0].index == 0 else None
        return first is not None and first.phase is ChildPhase.COMPLETE and first.epoch == self.memory.epoch > 0

    def incidents(self) -> list[Incident]:
        """What happened to the gang of this epoch; nothing while it forms."""
        if not self.formed:
            return []
        here = {pod.incarnation: pod for pod in self.pods}
        found = [incident for pod in self.pods if (incident := self._incident(pod)) is not None]
        gone = [member for member in self.memory.members if member not in here]
        uids = {pod.uid for pod in self.pods}
        lost = [member for member in gone if member.partition("/")[0] not in uids]  # of others `_incident` speaks
        at = float(int(self.now))
        return found + [Incident(Role.TRAINER, "", at, "PodGone", "a trainer pod is gone") for _ in lost]

    def _incident(self, pod: Pod) -> Incident | None:
        member = pod.incarnation in self.memory.members
        was_member = any(name.partition("/")[0] == pod.uid for name in self.memory.members)
        report = self.report(pod)
        conditions = {name: condition.status for name, condition in pod.conditions.items()}

        def incident(reason: str, message: str, code: int | None = None) -> Incident:
            return Incident(Role.TRAINER, pod.name, float(int(self.now)), reason, message, code, conditions)

        ending = pod.ending
        if was_member and (not member or not pod.running) and ending is not None:
            return incident(ending.reason or "Error", ending.message or "its launcher ended", ending.code)
        if not was_member:
            return None  # its predecessor is gone, which is said once
        if pod.terminating:
            disruption = pod.conditions.get("DisruptionTarget")
            why = disruption.message if disruption and disruption.status == "True" else "the pod is being deleted"
            return incident(disruption.reason if disruption and disruption.reason else "PodDeleted", why)
        if pod.over:
            return incident(pod.phase, "the pod has ended")
        if report is None or report.epoch != self.memory.epoch:
            return None
        if report.phase in (ChildPhase.BACKING_OFF, ChildPhase.FAILED):
            return incident("Error", report.exit_reason, shell_code(report.exit_code))
        if report.phase is ChildPhase.STOPPED:
            return incident("Drained", "its launcher was told to stop")
        return None

    def to_tell(self) -> tuple[Pod, ...]:
        """Members whose launcher has not confirmed the epoch. Telling twice is telling once."""
        if not self.formed:
            return ()
        behind = []
        for pod in self.pods:
            report = self.report(pod)
            if pod.incarnation in self.memory.members and (report is None or report.epoch < self.memory.epoch):
                behind.append(pod)
        return tuple(behind)

    def to_replace(self) -> tuple[Pod, ...]:
        """Pods whose launcher can't start a child any more: drained for a suspension that was taken back."""
        return tuple(
            pod
            for pod in self.pods
            if not pod.terminating and (report := self.report(pod)) and report.phase is ChildPhase.STOPPED
        )

    def silent(self) -> tuple[Pod, ...]:
        """Pods whose launcher doesn't answer."""
        return tuple(pod for pod in self.pods if not pod.terminating and pod.running and self.report(pod) is None)

    def leaving(self) -> tuple[Pod, ...]:
        """Members on machines that are about to go."""
        return tuple(pod for pod in self.pods if not pod.terminating and pod.running and self.node(pod).leaving)

    def outdated(self) -> tuple[Pod, ...]:
        """Pods of an older template."""
        workload = self.seen.workload(Role.TRAINER)
        if workload is None or not workload.revision:
            return ()
        return tuple(pod for pod in self.pods if not pod.terminating and pod.revision not in ("", workload.revision))

    def to_drain(self) -> tuple[Pod, ...]:
        """Pods whose child should save and stop before they go."""
        return tuple(pod for pod in self.pods if pod.running and (r := self.report(pod)) and r.phase in _RUNS)

    def unsaved(self) -> bool:
        """Whether a child may have something to save still. One whose launcher is silent may."""
        phases = [report.phase if (report := self.report(pod)) else None for pod in self.pods if pod.running]
        return any(phase in (None, ChildPhase.DRAINING, *_RUNS) for phase in phases)

    @property
    def heard(self) -> bool:
        """Whether any launcher answers at all: else the operator is blind, and silence means nothing."""
        return any(self.report(pod) for pod in self.pods)

    @property
    def up(self) -> int:
        """How many children are ready in this epoch."""
        return sum(
            (report := self.report(pod)) is not None
            and report.phase is ChildPhase.READY
            and report.epoch == self.memory.epoch
            for pod in self.pods
        )


def gang_of(seen: Observed, size: int, now: float) -> Gang:
    """The gang of a job whose trainer has `size` pods."""
    pods = [pod for pod in seen.of(Role.TRAINER) if pod.index is not None and pod.index < size]
    return Gang(size, tuple(sorted(pods, key=lambda pod: pod.index or 0)), seen, now)
