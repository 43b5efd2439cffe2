"""What tests of installed releases share: questions to the cluster, and objects for it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from chart.chart_rendering import CHART
from kube.harness.client import Client, Refused
from kube.harness.processes import eventually

Object = dict[str, Any]
Helm = Callable[..., "subprocess.CompletedProcess[str]"]

HOME = "areal-system"
REGISTRY = "--set=global.imageRegistry=registry.example.com"
CRDS = {f"{plural}.areal.dev" for plural in ("rljobs", "rlruntimes", "clusterrlruntimes")}
_FLEETING = {"events", "leases", "endpointslices", "endpoints", "componentstatuses"}
"""Resources that Kubernetes itself writes as time goes by."""


def namespace_object(name: str) -> Object:
    """A namespace in which pods must be restricted."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def definition(name: str) -> Object:
    """A CRD by name."""
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name}}


def crds(admin: Client) -> dict[str, Object]:
    """The CRDs there are."""
    found = admin.list("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    return {each["metadata"]["name"]: each for each in found}


def crds_went(admin: Client) -> bool:
    """Whether no CRD is being deleted any more; pushes those that are.

    One that is deleted while the server makes its storage is tried once, and again only when it changes: so it does.
    """
    going = [each for each in crds(admin).values() if "deletionTimestamp" in each["metadata"]]
    for each in going:
        with contextlib.suppress(Refused):
            touched = {"metadata": {"annotations": {"touched": each["metadata"]["resourceVersion"]}}}
            admin.patch(definition(each["metadata"]["name"]), touched)
    return not going


def api_resources(admin: Client) -> Iterator[tuple[str, Object]]:
    """Group version and description of every resource and subresource that the server has."""
    versions = [("/api/v1", "v1")]
    for group in admin.raw("GET", "/apis")["groups"]:
        version = group["preferredVersion"]["groupVersion"]
        versions.append((f"/apis/{version}", version))
    for path, version in versions:
        try:
            resources = admin.raw("GET", path)["resources"]
        except Refused as error:
            if error.code != 404:
                raise
            continue  # a group outlives its last CRD in the list by a moment
        for resource in resources:
            yield version, {**resource, "path": f"{path}/{resource['name']}"}


def _objects(admin: Client) -> dict[str, Object]:
    return {
        f"{resource['name']}.{version} {item['metadata'].get('namespace', '')}/{item['metadata']['name']}": item
        for version, resource in api_resources(admin)
        if "list" in resource["verbs"] and resource["name"] not in _FLEETING
        for item in admin.raw("GET", resource["path"])["items"]
    }


def everything(admin: Client) -> set[str]:
    """Every object in the cluster that can be listed."""
    return set(_objects(admin))


def _comes_or_goes(admin: Client, before: set[str]) -> bool:
    """Whether something of a release is still on its way out: its pods, or what waits for its finalizers."""
    if not crds_went(admin):
        return True
    new = {name: item for name, item in _objects(admin).items() if name not in before}
    ours = [name for name in new if "areal.dev" in name]
    served, defined = (any(name.startswith(kind) for name in ours) for kind in ("apiservices.", "customresourced"))
    going = any("deletionTimestamp" in item["metadata"] for item in new.values())
    return going or served != defined or any(f" {HOME}/areal" in name for name in new)


def left_behind(admin: Client, before: set[str]) -> set[str]:
    """What is there now and wasn't, once what was deleted, or with its owner, has gone."""
    eventually(lambda: not _comes_or_goes(admin, before), "what was deleted to go", every_s=1.0, timeout_s=150)
    every_namespaces = "/kube-root-ca.crt"
    return {found for found in everything(admin) - before if not found.endswith(every_namespaces)}


def job(name: str, **spec: Any) -> Object:
    """A job that the API server takes."""
    return {
        "apiVersion": "areal.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name, "namespace": HOME},
        "spec": {
            "model": {"path": "/models/start"},
            "recipe": {"file": "/recipes/recipe.py"},
            "dataset": {"train": {"jsonl": "/data/train.jsonl"}},
            "rollout": {"maxSampleTokens": 64, "sampling": {"maxNewTokens": 8}},
            "algorithm": {"name": "GRPO", "groupSize": 8, "batchSize": 64, "maxSteps": 10},
            **spec,
        },
    }


def newer_chart(directory: Path) -> Path:
    """The chart as its next version could be: another version, and a field more in RLJob's status."""
    copy = directory / "areal"
    shutil.copytree(CHART, copy)
    path = copy / "files" / "crds" / "rljobs.areal.dev.yaml"
    made = yaml.safe_load(path.read_text())
    status = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    status["properties"]["mood"] = {"type": "string", "maxLength": 16}
    path.write_text(yaml.safe_dump(made, sort_keys=False))
    description = yaml.safe_load((copy / "Chart.yaml").read_text())
    description |= {"version": "0.2.0", "appVersion": "0.2.0"}
    (copy / "Chart.yaml").write_text(yaml.safe_dump(description))
    return copy


def has_mood(admin: Client) -> bool:
    """Whether the CRD has the newer chart's field."""
    schema = crds(admin)["rljobs.areal.dev"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return "mood" in schema["properties"]["status"]["properties"]


def operator_image(admin: Client) -> str:
    """Which operator the release runs."""
    found = admin.get("apps/v1", "Deployment", HOME, "areal-operator")
    assert found is not None
    return str(found["spec"]["template"]["spec"]["containers"][0]["image"])


def runtimes(admin: Client) -> dict[str, Object]:
    """The ClusterRLRuntimes by name."""
    return {each["metadata"]["name"]: each for each in admin.list("areal.dev/v1alpha1", "ClusterRLRuntime")}


def given_runtimes(admin: Client) -> dict[str, Object]:
    """The ClusterRLRuntimes that the release's operator is to apply, by name."""
    found = admin.get("v1", "ConfigMap", HOME, "areal-operator-runtimes")
    made = [json.loads(text) for text in (found or {"data": {}})["data"].values()]
    return {each["metadata"]["name"]: each for each in made}


def may(
    admin: Client, user: str, verb: str, group: str, resource: str, namespace: str = "", name: str = "", of: str = ""
) -> bool:
    """What the API server's authorizer says; `of` is a group of the user's."""
    plural, _, subresource = resource.partition("/")
    asked = {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "namespace": namespace}
    groups = ["system:authenticated", *([of] if of else [])]
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {"name": ""},
        "spec": {"user": user, "groups": groups, "resourceAttributes": {**asked, "name": name}},
    }
    return bool(admin.create(review)["status"]["allowed"])
