"""The roles of a fake cluster's jobs, as an operator reaches them: asked in rounds, told one by one."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from areal.observe.live import IdleCause
from areal.processes.core import ChildPhase
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as rollout
from areal_operator.kube.resources import Json, Key
from areal_operator.operator.elastic import FleetWatch, watched
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.job_state import StepEvidence
from areal_operator.operator.observed import ControllerReport, LauncherReport, Pod, Reports, TrainerProgress
from areal_operator.operator.reports import Targets
from support.fake_cluster import FakeCluster, incarnation
from support.fake_trainers import WORKS, Training


@dataclass(frozen=True)
class Told:
    """An order that a launcher got, and the epoch that the status had by then."""

    pod: str
    epoch: int
    written: int


class FakeRoles:
    """What `reports.Poller` is to an operator process. `cut`: nobody can be reached."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.cut = False
        self.stalled = ""  # what controllers say they can't go on without
        self.demand: float | None = None  # servers that a job's trainer keeps busy
        self._draws = random.Random(1)
        self.told: list[Told] = []
        self.reports: dict[Key, Reports] = {}
        self.followed: dict[Key, Targets] = {}

    def latest(self, key: Key) -> Reports:
        return self.reports.get(key, Reports())

    def follow(self, key: Key, targets: Targets) -> None:
        self.followed[key] = targets

    def forget(self, key: Key) -> None:
        self.followed.pop(key, None)
        self.reports.pop(key, None)

    def poll(self) -> None:
        """One round of questions."""
        for key, targets in self.followed.items():
            old = self.latest(key)
            heard = {pod.uid: report for pod in targets.trainers if (report := self._launcher_report(pod)) is not None}
            kept = {pod.uid: old.launchers[pod.uid] for pod in targets.trainers if pod.uid in old.launchers}
            training = self._cluster.training.get(key)
            controller, trainer = old.controller, old.trainer
            if training is not None and targets.controller is not None and self._pod_of(targets.controller) is not None:
                controller = self._controller_report(training)
                if self.demand is not None:
                    controller = replace(controller, watch=self._watch(key, training.step, old.controller))
            if training is not None and any(report.phase in WORKS for report in heard.values()):
                shown = StepEvidence(training.epoch, f"{training.epoch:016x}", training.made)
                now = self._cluster.now
                trainer = TrainerProgress(training.step, training.checkpoint, now, now, evidence=shown)
            self.reports[key] = Reports(controller, trainer, {**kept, **heard}, self._cluster.now)

    def _controller_report(self, training: Training) -> ControllerReport:
        assert training.hot is not None
        step = training.step
        return ControllerReport(training.hot, step, step, max(0, step - 1), 0.5, 0.5, self.stalled, self._cluster.now)

    def _watch(self, key: Key, step: int, last: ControllerReport | None) -> FleetWatch:
        """What the controller shows of its fleet, by chance as often as the demand makes it."""
        assert self.demand is not None
        pods = [pod for pod in self._cluster.pods() if pod["metadata"]["labels"]["areal.dev/role"] == "generation"]
        ready = sum(bool(pod["status"].get("conditions")) for pod in pods if "deletionTimestamp" not in pod["metadata"])
        waits = self._draws.random() < 1 - ready / self.demand
        ahead = ready > 0 and self._draws.random() < 1 - self.demand / ready
        answer = rollout.GetRolloutStatusResponse(
            fleet=[generation.ServerState(live=True, version=1)] * ready,
            trainer_step=step,
            batch_waits="step 7 waits for 3 of 8 groups to be complete" * waits,
        )
        before = last.watch if last is not None else None
        return watched(before, answer, IdleCause.GATE_CLOSED if ahead else None, self._cluster.now)

    def _launcher_report(self, pod: Pod) -> LauncherReport | None:
        found = self._pod_of(pod)
        if found is None:
            return None
        launcher = self._cluster.launchers[incarnation(found)]
        awaits = launcher.phase in (ChildPhase.IDLE, ChildPhase.BACKING_OFF)
        return LauncherReport(launcher.phase, launcher.epoch, awaits, launcher.code, "", self._cluster.now)

    def restart(self, key: Key, pod: Pod, epoch: int) -> None:
        found = self._pod_of(pod)
        if found is None:
            return
        job = self._cluster.api.objects.get(("RLJob", *key))
        written = (job or {}).get("status", {}).get("attempts", {}).get("epoch", 0)
        self.told.append(Told(pod.name, epoch, written))
        self._cluster.launchers[incarnation(found)].restart(epoch)

    def drain(self, key: Key, pod: Pod) -> None:
        found = self._pod_of(pod)
        if found is None:
            return
        launcher = self._cluster.launchers[incarnation(found)]
        if launcher.phase in WORKS:
            self._cluster.save(key)
        if launcher.phase not in (ChildPhase.COMPLETE, ChildPhase.FAILED):
            launcher.phase = ChildPhase.STOPPED

    def set_hot(self, key: Key, hot: HotFields) -> None:
        if self.cut:
            return
        training = self._cluster.training[key]
        training.hot, training.max_steps = hot, hot.max_steps

    def _pod_of(self, pod: Pod) -> Json | None:
        """The pod that is dialled: an address of a pod that is gone answers nothing."""
        found = [obj for obj in self._cluster.pods() if obj["metadata"]["uid"] == pod.uid]
        return found[0] if found and not self.cut and self._cluster.answers(found[0]) else None
