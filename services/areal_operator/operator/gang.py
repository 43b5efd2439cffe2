"""Trainer gang: its members, whether it is whole, its incidents, and which launchers must be told of the epoch.

Owns the protocol by which trainers restart together. A gang forms when every pod has a launcher that answers; its
members and a new epoch are written into the status, and only then is each launcher told to run in that epoch. While
an epoch has members, a missing or replaced one, or a child that ended, is an incident; an epoch without members is
over, and nothing that belongs to it is an incident any more. So a failure is counted once, whatever the operator sees
how often. Pure.
"""

from dataclasses import dataclass, replace

from areal.errors import ExitCode
from areal.plan.cluster_names import Role
from areal.processes.core import ChildPhase

from areal_operator.operator.failure_policy import Incident, shell_code
from areal_operator.operator.fault_owner import (
    DISRUPTION,
    NODE_LOST,
    OVERTAKEN,
    PEER_GONE,
    POD_DELETED,
    POD_GONE,
    FaultOwner,
    outage,
)
from areal_operator.operator.job_state import JobState
from areal_operator.operator.observed import LauncherReport, NodeState, Observation, Pod
from areal_operator.operator.times import CAUSE_S, FRESH_S, POLL_S, QUIET_S

_OVER = (ChildPhase.STOPPED, ChildPhase.COMPLETE, ChildPhase.FAILED)


@dataclass(frozen=True)
class TrainerGang:
    """The trainer's pods and what their launchers said. `size` pods make it whole."""

    size: int
    pods: tuple[Pod, ...]  # of its ordinals, by index
    seen: Observation
    now: float

    @property
    def state(self) -> JobState:
        return self.seen.state

    def report(self, pod: Pod) -> LauncherReport | None:
        """Newest report of the pod's launcher; None when that is too long ago."""
        found = self.seen.reports.launchers.get(pod.uid)
        return found if found is not None and self.now - found.at <= FRESH_S else None

    def _answers(self, pod: Pod) -> bool:
        """Whether its launcher answered in the newest round. One that died since the round before it did not."""
        newest = max((r.at for other in self.pods if (r := self.report(other))), default=0.0)
        report = self.report(pod)
        return report is not None and newest - report.at < POLL_S

    def node(self, pod: Pod) -> NodeState:
        """The machine under a pod; one that is not known is taken to be fine."""
        return (self.seen.nodes or {}).get(pod.node, NodeState())

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
        if report is None or not self._answers(pod):
            return "has a launcher that does not answer"
        if report.phase is ChildPhase.STOPPED:
            return "was drained and is replaced"
        return ""

    @property
    def members(self) -> tuple[str, ...]:
        """Who forms the next epoch."""
        return tuple(pod.uid for pod in self.pods)

    @property
    def next_epoch(self) -> int:
        """Above every epoch that anyone has heard of: a status may have come from a backup."""
        heard = [report.epoch for pod in self.pods if (report := self.report(pod))]
        return max(self.state.epoch, *heard, 0) + 1

    @property
    def overtaken(self) -> bool:
        """Whether launchers run in an epoch that the status has never heard of: it came from a backup."""
        heard = [report.epoch for pod in self.pods if (report := self.report(pod))]
        return max(heard, default=0) > self.state.epoch

    @property
    def formed(self) -> bool:
        """Whether an epoch runs, or should."""
        return bool(self.state.members)

    @property
    def complete(self) -> bool:
        """Whether rank 0 has trained to the end in an epoch of ours: everything is committed then."""
        first = self.report(self.pods[0]) if self.pods and self.pods[0].index == 0 else None
        return first is not None and first.phase is ChildPhase.COMPLETE and first.epoch == self.state.epoch > 0

    @property
    def proven(self) -> bool:
        """Whether the epoch's rendezvous has been seen complete. Before that, pods come and go: nothing was running."""
        return self.state.proven_epoch == self.state.epoch

    def incidents(self) -> list[Incident]:
        """Incidents of the gang of this epoch; none while it forms.

        The end of a child in this epoch always is one. A pod that went or started anew is one only when the gang once
        worked together, or as the cause of such an end; before, the gang just forms again.
        """
        if not self.formed:
            return []
        found = [incident for pod in self.pods if (incident := self._child_ended(pod)) is not None]
        return found + self._members_lost() if self.proven or found else []

    def dissolved(self) -> list[Incident]:
        """Why the members can't be an epoch, though nothing failed that was running; nothing while they can."""
        if self.formed and self.overtaken:
            return [Incident(Role.TRAINER, "", float(int(self.now)), OVERTAKEN, "launchers run in a newer epoch")]
        return self._members_lost() if self.formed else []

    def quiet(self) -> Pod | None:
        """A member of which nothing is known now: its launcher missed two rounds of questions, or all."""
        if not self.formed or not self.seen.reports.at:
            return None
        for pod in self.pods:
            report = self.seen.reports.launchers.get(pod.uid)
            if pod.uid in self.state.members and (report is None or self.now - report.at > QUIET_S):
                return pod
        return None

    def ended_launchers(self) -> list[Incident]:
        """Launchers that ended by themselves, whatever the epoch: their exit code may say that no restart helps."""
        since = max((f.at for f in self.state.failures if f.role == Role.TRAINER), default=0.0)
        ended = [pod for pod in self.pods if pod.ending is not None and pod.ending.at > since and not pod.terminating]
        return [self._incident(pod, e.reason or "Error", e.message, e.code) for pod in ended if (e := pod.ending)]

    def _child_ended(self, pod: Pod) -> Incident | None:
        report = self.report(pod)
        if pod.uid not in self.state.members or report is None or report.epoch != self.state.epoch:
            return None
        if report.phase in (ChildPhase.BACKING_OFF, ChildPhase.FAILED):
            code = shell_code(report.exit_code)
            if code == ExitCode.INFRA and (lack := outage(self.seen)) is not None:
                reason = NODE_LOST if lack.owner is FaultOwner.NODE else PEER_GONE
                return replace(self._incident(pod, reason, lack.text, code), node=lack.node or pod.node)
            return self._incident(pod, "Error", report.exit_reason, code)
        if report.phase is ChildPhase.STOPPED and not pod.terminating:
            return self._incident(pod, "Drained", "its launcher was told to stop")
        return None

    def _members_lost(self) -> list[Incident]:
        """Members that are gone, going, or have forgotten their epoch."""
        pods = {pod.uid: pod for pod in self.pods}
        found = []
        for uid in self.state.members:
            pod = pods.get(uid)
            if pod is None:
                found.append(self._departed(uid))
            elif (incident := self._lost(pod)) is not None:
                found.append(incident)
        return found

    def _departed(self, uid: str) -> Incident:
        """Incident of a member whose pod object is gone, by its last state."""
        pod = self.seen.departed.get(uid)
        if pod is None:
            return Incident(Role.TRAINER, "", float(int(self.now)), POD_GONE, "a trainer pod is gone")
        disruption = pod.conditions.get(DISRUPTION)
        if disruption is not None and disruption.status == "True":
            return self._incident(pod, disruption.reason or DISRUPTION, disruption.message)
        if self.seen.nodes is not None and pod.node and pod.node not in self.seen.nodes:
            return self._incident(pod, NODE_LOST, f"its machine {pod.node} is gone")
        if self.node(pod).silent:
            return self._incident(pod, NODE_LOST, f"its machine {pod.node} does not answer")
        return self._incident(pod, POD_DELETED, "its pod was deleted")

    @property
    def unexplained(self) -> bool:
        """Whether a child's end may be the echo of a member's whose machine is not yet known to be silent.

        Children whose peer is gone end with 1 at once; Kubernetes notices a dead machine some 50 s later. While that
        member's launcher is silent no gang can form, so waiting for the cause costs nothing.
        """
        ended = [i for pod in self.pods if (i := self._child_ended(pod)) is not None]
        if not ended or any(incident.exit_code != 1 for incident in ended):
            return False
        heard = [self.seen.reports.launchers.get(pod.uid) for pod in self.pods if pod.uid in self.state.members]
        quiet = [r for r in heard if r is None or POLL_S * 2 <= self.now - r.at < CAUSE_S]
        return bool(quiet) and not self._members_lost()

    def _lost(self, pod: Pod) -> Incident | None:
        """Incident of a lost member. Its launcher's word is newer than the pod's status, so it goes first."""
        if pod.terminating or pod.over:
            disruption = pod.conditions.get(DISRUPTION)
            reason = disruption.reason if disruption and disruption.reason else POD_DELETED
            if disruption is None and self.node(pod).silent:
                reason = NODE_LOST
            return self._incident(pod, reason, disruption.message if disruption else "the pod is going")
        report = self.report(pod)
        answers = report is not None and self._answers(pod)
        if answers and report is not None and report.epoch >= self.state.epoch:
            return None
        if pod.running and not (answers and self.proven):
            return None  # not told yet, or slow; a dead one shows in the pod's status
        ending = pod.ending
        if ending is not None:
            return self._incident(pod, ending.reason or "Error", ending.message, ending.code)
        return self._incident(pod, "LauncherGone", "its launcher started anew")

    def _incident(self, pod: Pod, reason: str, message: str, code: int | None = None) -> Incident:
        return Incident.of(pod, float(int(self.now)), reason, message, code)

    def to_tell(self) -> tuple[Pod, ...]:
        """Members whose launcher has not confirmed the epoch. Telling twice is telling once."""
        if not self.formed:
            return ()
        behind = []
        for pod in self.pods:
            report = self.report(pod)
            if pod.uid in self.state.members and (report is None or report.epoch < self.state.epoch):
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
        """Pods whose child should save and stop, or never start, before they go."""
        at_rest = (*_OVER, ChildPhase.DRAINING)
        return tuple(pod for pod in self.pods if pod.running and (r := self.report(pod)) and r.phase not in at_rest)

    def unsaved(self) -> bool:
        """Whether a child may have something to save still. One whose launcher is silent may."""
        reports = [self.report(pod) for pod in self.pods if pod.running]
        return any(report is None or report.phase not in _OVER for report in reports)

    @property
    def heard(self) -> bool:
        """Whether any launcher answers at all: else the operator is blind, and silence means nothing."""
        return any(self.report(pod) for pod in self.pods)

    @property
    def up(self) -> int:
        """Number of children that are ready in this epoch."""
        return sum(
            (report := self.report(pod)) is not None
            and report.phase is ChildPhase.READY
            and report.epoch == self.state.epoch
            for pod in self.pods
        )


def gang_of(seen: Observation, size: int, now: float) -> TrainerGang:
    """The gang of a job whose trainer has `size` pods."""
    pods = [pod for pod in seen.of(Role.TRAINER) if pod.index is not None and pod.index < size]
    return TrainerGang(size, tuple(sorted(pods, key=lambda pod: pod.index or 0)), seen, now)
