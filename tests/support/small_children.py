"""Builders of children that have names, owners and a template, and nothing else; and a runtime for them."""

from __future__ import annotations

from areal.plan.cluster_names import LABEL_JOB, SURGE_FROM, Role, role_labels, surge, workload
from areal.plan.role_specs import spec_of
from areal_operator.kube.resources import Json
from areal_operator.operator.children import JobBlueprint
from areal_operator.operator.children.foundation import runtime_snapshot


class SmallChildren:
    """Builders of children that have names, owners and a template, and nothing else."""

    def __init__(self) -> None:
        self._snapshots: dict[tuple[int, str], Json] = {}

    def foundation(self, w: JobBlueprint) -> list[Json]:
        config = {**self._child(w, "v1", "ConfigMap", f"{w.name}-job"), "data": {"name": w.name}}
        known = (id(w.runtime), w.uid)
        if known not in self._snapshots:
            self._snapshots[known] = runtime_snapshot(w)
        return [config, self._snapshots[known]]

    def access_secret(self, w: JobBlueprint) -> Json:
        return {**self._child(w, "v1", "Secret", f"{w.name}-access"), "data": {"token": "c2VjcmV0"}}

    def prepare_job(self, w: JobBlueprint) -> Json:
        return self._batch(w, Role.PREPARE)

    def finish_job(self, w: JobBlueprint) -> Json:
        return self._batch(w, Role.FINISH)

    def quota_request(self, w: JobBlueprint, queue: str, priority: Json) -> Json:
        counts = {role: count for role, count in w.replicas.items() if count}
        sets = [{"name": role, "count": count} for role, count in counts.items()]
        made = self._child(w, "kueue.x-k8s.io/v1beta2", "Workload", w.name)
        return {**made, "spec": {"queueName": queue, **priority, "podSets": sets}}

    def workloads(self, w: JobBlueprint) -> list[Json]:
        awake = int(any(w.replicas.values()))
        beside = [self._workload(w, role, awake) for role in w.beside]
        counts, more = w.pools()
        made = [self._workload(w, role, counts[role.value]) for role in w.roles]
        if more is not None:
            servers = self._workload(more, Role.GENERATION, more.replicas[Role.GENERATION])
            servers["metadata"]["name"] = surge(w.name)
            servers["spec"]["ordinals"] = {"start": SURGE_FROM}
            made.append(servers)
        return [*made, *beside]

    def _workload(self, w: JobBlueprint, role: Role, replicas: int) -> Json:
        patch = w.job.spec.pod_template.generation if role is Role.GENERATION else w.job.spec.pod_template.trainer
        template = {
            "marks": [variable.value for variable in patch.env] if role in (Role.GENERATION, Role.TRAINER) else []
        }
        kind = spec_of(role).workload
        made = self._child(w, "apps/v1", kind, workload(w.name, role), role)
        return {**made, "spec": {"replicas": replicas, "template": template}}

    def _batch(self, w: JobBlueprint, role: Role) -> Json:
        return {**self._child(w, "batch/v1", "Job", workload(w.name, role), role), "spec": {"template": {}}}

    def _child(self, w: JobBlueprint, version: str, kind: str, name: str, role: Role | None = None) -> Json:
        labels = role_labels(w.name, role) if role else {LABEL_JOB: w.name}
        metadata = {
            "name": name, "namespace": w.namespace, "labels": labels, "ownerReferences": [w.owner()],
            "annotations": {"areal.dev/operator-version": "1"},
        }  # fmt: skip
        return {"apiVersion": version, "kind": kind, "metadata": metadata}


def runtime_object(name: str = "cpu", image: str = "registry.test/areal:1") -> Json:
    """A ClusterRLRuntime."""
    template = {"spec": {"containers": [{"name": "main", "image": image}]}}
    return {
        "apiVersion": "areal.dev/v1alpha1", "kind": "ClusterRLRuntime", "metadata": {"name": name},
        "spec": {"template": template},
    }  # fmt: skip
