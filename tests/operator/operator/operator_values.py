"""What an operator sees, made by hand: one job, its pods, what its roles said. Tests change one thing at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from areal.admit.cluster import resolve_for_pods, roles_of
from areal.plan.cluster_names import Role
from areal.processes.core import ChildPhase
from areal.spec.load import job_from_object
from areal.spec.runtime import RuntimeSpec
from areal.spec.status import ConditionType
from areal_operator.operator.admission import RunnableJob
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.job_state import Condition, JobFailure, JobState, StepEvidence
from areal_operator.operator.observed import (
    BatchJob,
    BatchStage,
    ControllerReport,
    LauncherReport,
    Observation,
    Pod,
    PodEnd,
    Reports,
    TrainerProgress,
    Workload,
)
from support.operator_jobs import job_object

NOW = 1_800_000_000.0
STARTED = NOW - 1000


def admitted(**spec: Any) -> RunnableJob:
    """A job that may run: two trainers, two servers, a verifier."""
    return admitted_as(job_object(**spec))


def admitted_as(raw: dict[str, Any]) -> RunnableJob:
    """A job that may run, as it was written."""
    job = job_from_object(raw)
    resolved = resolve_for_pods(job, namespace="team", uid="job-uid", recipe_source=None)
    return RunnableJob(job, resolved, RuntimeSpec(), "hash", roles_of(resolved))


def trainer(index: int, **changes: Any) -> Pod:
    """A trainer's pod that runs."""
    made = Pod(
        name=f"digits-trainer-{index}", uid=f"t{index}", role=Role.TRAINER, index=index, node=f"n{index}",
        ip="10.0.0.1", phase="Running", running=True, ready=True, revision="r1",
    )  # fmt: skip
    return replace(made, **changes)


def server(index: int, **changes: Any) -> Pod:
    """A generation pod that runs."""
    changes = {"name": f"digits-generation-{index}", "uid": f"g{index}", "role": Role.GENERATION, **changes}
    return trainer(index, **changes)


def others() -> tuple[Pod, ...]:
    """One pod of each role that trainers need beside servers."""
    roles = (Role.REDIS, Role.CONTROLLER, Role.WORKER, Role.REWARD)
    return tuple(trainer(0, name=f"digits-{role.value}", uid=role.value, role=role) for role in roles)


def ended(code: int, at: float = NOW - 5, reason: str = "Error", message: str = "") -> PodEnd:
    return PodEnd(code, reason, message, at)


def disrupted(at: float = NOW - 5) -> dict[str, Condition]:
    return {"DisruptionTarget": Condition("True", "EvictionByEvictionAPI", "evicted", at)}


def says(phase: ChildPhase, epoch: int = 1, code: int = 0, at: float = NOW) -> LauncherReport:
    return LauncherReport(phase, epoch, phase is ChildPhase.IDLE, code, "", at)


def controller(step: int = 5, at: float = NOW, stalled: str = "", hot: HotFields | None = None) -> ControllerReport:
    return ControllerReport(hot or HotFields(12, 1, 8, 1), step, step, step - 1, 0.5, 0.25, stalled, at)


def fleet(revision: str = "r1", role: Role = Role.GENERATION) -> Workload:
    return Workload(f"digits-{role.value}", "w", role, "StatefulSet", 2, 2, 2, revision)


def remembered(**changes: Any) -> JobState:
    """A job that trains in epoch 1."""
    ready = Condition("True", "RendezvousComplete", "", STARTED, 1)
    made = JobState(
        accepted=True, prepared=True, started_at=STARTED, epoch=1, members=("t0", "t1"), step=5, step_at=NOW - 10,
        proven_epoch=1, evidence=StepEvidence(1, "p1", 5),
        conditions={ConditionType.TRAINER_READY: ready},
    )  # fmt: skip
    return replace(made, **changes)


def seen(state: JobState | None = None, **changes: Any) -> Observation:
    """A job that trains, all well. `spec` changes the job."""
    spec = changes.pop("spec", {})
    raw = job_object(**spec)
    raw["metadata"] |= {"uid": "job-uid", "generation": 1, "resourceVersion": "1", "creationTimestamp": ""}
    ready = {"t0": says(ChildPhase.READY), "t1": says(ChildPhase.READY)}
    made = Observation(
        key=("team", "digits"), raw=raw, state=state or remembered(), admitted=admitted(**spec), refusal=None,
        pods=(trainer(0), trainer(1), server(0), server(1), *others()), nodes={},
        workloads=(fleet(), fleet(role=Role.TRAINER)),
        prepare=BatchJob(BatchStage.COMPLETE, "digits-prepare", "p", NOW - 900),
        reports=Reports(controller(), TrainerProgress(5, 0, 0.0, NOW, evidence=StepEvidence(1, "p1", 5)), ready, NOW),
    )  # fmt: skip
    return replace(made, **changes)


def on_rows(training: str) -> Observation:
    """A training on fixed rows: trainers, and nothing else."""
    raw = seen().raw
    kept = {name: block for name, block in raw["spec"].items() if name in ("model", "dataset", "trainer")}
    raw = {**raw, "spec": {**kept, "training": {"name": training, "batchSize": 4}}}
    reports = replace(seen().reports, controller=None)
    pods, workloads = (trainer(0), trainer(1)), (fleet(role=Role.TRAINER),)
    return replace(seen(), raw=raw, admitted=admitted_as(raw), pods=pods, workloads=workloads, reports=reports)


def launchers(base: Observation, **reports: LauncherReport | None) -> Observation:
    """The same, but for what some launchers say: `t0=None` is one that doesn't answer."""
    heard = {**base.reports.launchers, **reports}
    known = {uid: report for uid, report in heard.items() if report is not None}
    return replace(base, reports=replace(base.reports, launchers=known))


def a_failure(at: float, role: str = "generation", pod: str = "digits-generation-0", **changes: Any) -> JobFailure:
    return replace(JobFailure(at=at, role=role, pod=pod, exit_code=1, reason="Error", action="RestartPod"), **changes)
