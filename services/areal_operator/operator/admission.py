"""Admission of a job: accepted with everything resolved, or refused with the reason.

Owns the order of the questions, from what the author wrote to what the platform owns, and the words of a refusal.
Pure: runtime and recipe are given, or said to be missing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from areal.admit.cluster import ClusterRefusal, resolve_for_pods, roles_of
from areal.admit.pod_rules import TierOffer, box_refusal, offer_of, refusal, refusal_by_runtime
from areal.errors import ConfigError
from areal.plan.cluster_names import Role
from areal.plan.resolved import ResolvedJob
from areal.spec.check import check, refuse
from areal.spec.job import RLJob
from areal.spec.load import job_from_object
from areal.spec.numbers import ahead
from areal.spec.runtime import RuntimeSpec
from areal.spec.status import AcceptedReason

from areal_operator.kube.resources import Json
from areal_operator.operator.children import snapshot_hash
from areal_operator.operator.children.pods import pod_template
from areal_operator.operator.children.wanted import JobBlueprint
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.job_state import reason_of


@dataclass(frozen=True)
class JobRefusal:
    """Why a job can't run."""

    reason: AcceptedReason
    message: str


@dataclass(frozen=True)
class RunnableJob:
    """A job that may run. `replicas` has its long-running roles, in the order in which they are needed."""

    job: RLJob
    resolved: ResolvedJob
    runtime: RuntimeSpec  # as the job keeps it
    runtime_hash: str
    replicas: Mapping[Role, int]
    placement: Mapping[str, Json] = field(default_factory=dict)  # by its queue: a pod spec's fields

    @property
    def hot(self) -> HotFields:
        """Hot fields of the spec."""
        spec = self.job.spec
        if (block := spec.supervised) is not None:
            return HotFields(max_steps=block.max_steps or 0, max_staleness=0, max_concurrent_rollouts=0)
        return HotFields(
            max_steps=spec.algorithm.max_steps,
            max_staleness=spec.algorithm.max_staleness,
            max_concurrent_rollouts=spec.rollout.max_concurrent_rollouts,
            ahead=ahead(self.job),
        )


@dataclass(frozen=True)
class Material:
    """What a job refers to, as far as it is there."""

    runtime: RuntimeSpec | None  # the snapshot that was taken, else what the job or the operator names
    runtime_problem: str = ""  # why there is none
    recipe: str | None = None  # text of the recipe, when it comes from a ConfigMap that is there


def parse(raw: Json, *, running: bool = False) -> RLJob | JobRefusal:
    """The job behind an object, when every field and every rule holds.

    A job that is `running` was accepted by rules that may have been fewer: it goes on. Labels and annotations are the
    API server's to judge: none is read here.
    """
    metadata = {key: raw["metadata"][key] for key in ("name", "namespace") if key in raw["metadata"]}
    try:
        job = job_from_object({**raw, "metadata": metadata})
        if not running:
            refuse(check(job), "the job")
    except ConfigError as error:
        return JobRefusal(AcceptedReason.INVALID_SPEC, words_of(error))
    return job


def admit(raw: Json, job: RLJob, material: Material) -> RunnableJob | JobRefusal:
    """The job with everything decided, or why it can't run."""
    metadata = raw["metadata"]
    try:
        resolved = resolve_for_pods(
            job, namespace=metadata["namespace"], uid=metadata["uid"], recipe_source=material.recipe
        )
    except ClusterRefusal as error:
        return JobRefusal(reason_of(AcceptedReason, error.reason), words_of(error))
    except ConfigError as error:
        return JobRefusal(AcceptedReason.INVALID_SPEC, words_of(error))
    if material.runtime is None:
        return JobRefusal(AcceptedReason.RUNTIME_NOT_FOUND, material.runtime_problem)
    if (message := refusal_by_runtime(job, material.runtime)) is not None:
        return JobRefusal(AcceptedReason.NOT_ALLOWED, message)
    if (message := _unjudgeable(raw, job, resolved, material.runtime)) is not None:
        return JobRefusal(AcceptedReason.NOT_AVAILABLE, message)
    return RunnableJob(job, resolved, material.runtime, snapshot_hash(material.runtime), roles_of(resolved))


def _unjudgeable(raw: Json, job: RLJob, resolved: ResolvedJob, runtime: RuntimeSpec) -> str | None:
    """Why the pods that this job would get can't run its programs or its boxes; None when they can, or it has none."""
    wanted = JobBlueprint(job=job, raw=raw, runtime=runtime, resolved=resolved, replicas={}, operator_namespace="")
    asked: dict[Role, Callable[[TierOffer], tuple[str, str] | None]] = {}
    if resolved.verifier == "code":
        asked[Role.REWARD] = partial(refusal, job)
    if resolved.endpoints.boxes is not None:
        asked[Role.BOXES] = box_refusal
    for role, refuses in asked.items():
        try:
            spec = pod_template(wanted, role)["spec"]
        except ConfigError:
            continue  # whoever makes the pods says what is wrong with them
        if (refused := refuses(offer_of(spec, runtime.sandbox))) is not None:
            return f"{refused[0]}. {refused[1]}"
    return None


def words_of(error: ConfigError) -> str:
    """Message and fix, as two sentences."""
    return f"{error.message.rstrip('.')}. {error.fix}".strip() if error.fix else error.message
