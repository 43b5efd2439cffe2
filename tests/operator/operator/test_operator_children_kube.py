"""A real API server's opinion of the children, in a namespace that enforces restricted pods."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from areal.tls import CA_FILE, KEY_FILE
from areal_operator.operator.children import JobBlueprint, access_secret, finish_job, foundation, prepare_job, workloads
from areal_operator.operator.children.tls import certificate_names, tls_secret
from kube.harness.client import Client, Refused
from support.cluster_jobs import CPU_RUNTIME, large_wanted, quickstart, quickstart_wanted, viewed_wanted, wanted

pytestmark = pytest.mark.kube_api

Json = dict[str, Any]


def everything(w: JobBlueprint, namespace: str) -> list[Json]:
    """All objects of the job as it would be in `namespace`."""
    raw = {**w.raw, "metadata": {**w.raw["metadata"], "namespace": namespace}}
    moved = replace(w, raw=raw)
    made = [tls_secret(moved, who, {CA_FILE: "a", KEY_FILE: "b"}) for who in certificate_names(moved)]
    secret = access_secret(moved, lambda: "not-random")
    return [*foundation(moved), secret, *made, prepare_job(moved), *workloads(moved), finish_job(moved)]


def apply(admin: Client, one: Json, *, dry_run: bool = False) -> Json:
    """Server-side apply as the operator does it: forced, unknown fields refused."""
    metadata = one["metadata"]
    path = admin.path(one["apiVersion"], one["kind"], metadata["namespace"], metadata["name"])
    params = {"fieldManager": "areal-operator", "force": "true", "fieldValidation": "Strict"}
    if dry_run:
        params["dryRun"] = "All"
    headers = {"content-type": "application/apply-patch+yaml"}
    return dict(admin.raw("PATCH", path, content=json.dumps(one), params=params, headers=headers))


def _name(one: Json) -> str:
    return f"{one['kind']}/{one['metadata']['name']}"


def without_owner(one: Json) -> Json:
    """The object as its own: the garbage collector deletes what an unknown job owns."""
    metadata = {name: value for name, value in one["metadata"].items() if name != "ownerReferences"}
    return {**one, "metadata": metadata}


def encrypted_wanted() -> JobBlueprint:
    """The quickstart under a runtime whose jobs have certificates of the operator's own."""
    return wanted(quickstart(), {**CPU_RUNTIME, "tls": {"mode": "SelfSigned"}})


@pytest.mark.parametrize(
    "make",
    [quickstart_wanted, large_wanted, viewed_wanted, encrypted_wanted],
    ids=["quickstart", "large", "with its page", "with certificates"],
)
def test_the_api_server_accepts_every_child(make: Any, admin: Client, namespace: str) -> None:
    for one in everything(make(), namespace):
        answer = apply(admin, one, dry_run=True)
        assert answer["metadata"]["name"] == one["metadata"]["name"]


def test_applying_the_children_again_changes_none_of_them(admin: Client, namespace: str) -> None:
    made = [without_owner(one) for one in everything(quickstart_wanted(), namespace)]
    before = {_name(one): apply(admin, one) for one in made}
    after = {_name(one): apply(admin, one) for one in made}
    for name, one in before.items():
        assert after[name]["metadata"].get("generation") == one["metadata"].get("generation"), name
        if one["kind"] in ("ConfigMap", "NetworkPolicy", "Secret", "Service"):  # nobody else writes these
            assert after[name]["metadata"]["resourceVersion"] == one["metadata"]["resourceVersion"], name


def test_a_job_may_be_suspended_and_scaled_and_its_pods_templates_changed(admin: Client, namespace: str) -> None:
    running = quickstart_wanted()
    for one in everything(running, namespace):
        apply(admin, without_owner(one))
    values = quickstart()
    values["spec"]["podTemplate"] = {"trainer": {"env": [{"name": "X", "value": "1"}]}}
    changed = replace(wanted(values, CPU_RUNTIME), replicas={**dict.fromkeys(running.replicas, 0), "generation": 3})
    raw = {**changed.raw, "metadata": {**changed.raw["metadata"], "namespace": namespace}}
    for one in workloads(replace(changed, raw=raw)):
        apply(admin, without_owner(one))

    def replicas(name: str) -> int:
        found = admin.get("apps/v1", "StatefulSet", namespace, name)
        assert found is not None
        return int(found["spec"]["replicas"])

    assert replicas("digits-generation") == 3
    assert replicas("digits-trainer") == 0


def test_no_pod_violates_the_namespace_s_pod_security(admin: Client, namespace: str) -> None:
    """A StatefulSet is accepted whatever its pods are like; the pods themselves are asked here."""
    accepted = []
    for one in everything(large_wanted(), namespace):
        template = one.get("spec", {}).get("template")
        if template is None:
            continue
        spec = {name: value for name, value in template["spec"].items() if name != "priorityClassName"}
        spec["serviceAccountName"] = "default"  # the job's own is not there in a dry run
        name = f"{one['metadata']['name']}-x"
        metadata = {"name": name, "namespace": namespace, "labels": template["metadata"]["labels"]}
        spec.pop("runtimeClassName", None)
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        apply(admin, pod, dry_run=True)
        accepted.append(name)
    roles = {name.removesuffix("-x").rpartition("-")[2] for name in accepted}
    assert {"trainer", "generation", "worker"} <= roles


def test_a_pod_that_a_platform_loosened_is_refused_there(admin: Client, namespace: str) -> None:
    runtime = copy.deepcopy(CPU_RUNTIME)
    runtime["template"]["spec"]["hostNetwork"] = True
    template = workloads(wanted(quickstart(), runtime))[-1]["spec"]["template"]
    spec = {**template["spec"], "serviceAccountName": "default"}
    metadata = {"name": "loose", "namespace": namespace, "labels": template["metadata"]["labels"]}
    with pytest.raises(Refused, match="violates PodSecurity"):
        apply(admin, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, dry_run=True)
