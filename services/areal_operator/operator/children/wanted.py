"""Input of the builders of a job's children, and the metadata that every child has.

Values only: the same `JobBlueprint` always gives the same objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from areal import __version__
from areal.admit.cluster import roles_of
from areal.plan.cluster_names import ANNOTATION_OPERATOR_VERSION, DIGESTS_KEY, TOKEN_KEY, Role, job_labels, role_labels
from areal.plan.resolved import ResolvedJob
from areal.plan.role_specs import beside, spec_of
from areal.spec.cluster import PodPatch
from areal.spec.job import RLJob
from areal.spec.runtime import RuntimeSpec

Json = dict[str, Any]
SURGE = "surge"  # what `placement` calls the surge pool, beside roles


@dataclass(frozen=True)
class JobBlueprint:
    """One job as it should be now.

    `runtime` is the snapshot that was taken when the job was accepted, `replicas` says how many pods of each role there
    should be now (0 while suspended or cleaned up).
    """

    job: RLJob
    raw: Mapping[str, Any]  # the object as the API server has it: uid and namespace come from there
    runtime: RuntimeSpec
    resolved: ResolvedJob
    replicas: Mapping[str, int]  # role → pods
    operator_namespace: str  # "" when the operator runs outside of the cluster
    secrets: Mapping[str, str] | None = None  # what the job's Secret holds, once there is one
    metrics_from: Mapping[str, str] | None = None  # labels of namespaces that may scrape; {} any, None nobody
    files: str = ""  # the ConfigMap that running pods read; empty when none runs
    placement: Mapping[str, Json] = field(default_factory=dict)  # by the job's queue: fields of the pod's spec
    redis_bytes: int = 0  # what Redis' claim asks for already: a claim never shrinks

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.raw["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def roles(self) -> tuple[Role, ...]:
        """The long-running roles that this job has, in the order in which they are needed."""
        return tuple(roles_of(self.resolved))

    @property
    def beside(self) -> tuple[Role, ...]:
        """The roles that run beside the job, a pod each while it has any."""
        return beside(self.resolved.spec)

    @property
    def encrypted(self) -> bool:
        """Whether the job's roles speak TLS. Of the snapshot: it stays so to the job's end."""
        return self.runtime.tls.mode != "Disabled"

    def hosted(self, role: Role) -> tuple[Role, ...]:
        """The roles whose processes are in a role's pods, itself first."""
        return (role, Role.GENERATION) if role is Role.TRAINER and self.resolved.in_one_pod else (role,)

    @property
    def one_token(self) -> bool:
        """Whether an older version made the job's Secret. Its pods' image, of the same age, knows no other token, so
        the job keeps it to its end; and the operator has no right to change a Secret."""
        return self.secrets is not None and TOKEN_KEY in self.secrets and DIGESTS_KEY not in self.secrets

    def patch(self, role: Role) -> tuple[str, PodPatch]:
        """What the job changes in a role's pods: the field's name, and the field."""
        key = spec_of(role).patch_key or spec_of(role).template_key
        return f"spec.podTemplate.{key}", self.job.spec.pod_template.by_role()[key]

    def pools(self) -> tuple[Mapping[str, int], "JobBlueprint | None"]:
        """Pods of each role without surge servers, and the job as those have it; None where the fleet is one pool."""
        spec, servers = self.job.spec, self.replicas.get(Role.GENERATION, 0)
        if (more := spec.pod_template.surge) is None:
            return self.replicas, None
        patches = spec.pod_template.model_copy(update={"generation": spec.pod_template.generation.with_more(more)})
        job = self.job.model_copy(update={"spec": spec.model_copy(update={"pod_template": patches})})
        placement = {**self.placement, Role.GENERATION: self.placement.get(SURGE, {})}
        core = spec.core_servers(servers)
        surge = replace(self, job=job, placement=placement, replicas={Role.GENERATION: servers - core})
        return {**self.replicas, Role.GENERATION: core}, surge

    def owner(self) -> Json:
        """The reference by which a child is deleted with its job."""
        return {
            "apiVersion": self.job.api_version,
            "kind": self.job.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def child(
    w: JobBlueprint, api_version: str, kind: str, name: str, *, role: Role | None = None, **fields: object
) -> Json:
    """One object of the job, in the job's namespace; `fields` are what the kind has beside its metadata."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": w.namespace,
            "labels": role_labels(w.name, role) if role else job_labels(w.name),
            "annotations": {ANNOTATION_OPERATOR_VERSION: __version__},
            "ownerReferences": [w.owner()],
        },
        **fields,
    }
