"""What `helm template` makes of the chart, as dicts, and how tests walk through it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from kube.harness import tools

Object = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "areal"
MATRIX = sorted(path.name for path in (CHART / "ci").glob("*-values.yaml"))
"""The values files that every rendering test goes through."""
NEWEST = "1.36.0"
EVERYTHING = {
    "crds": {"keep": False},
    "admissionPolicies": {"enabled": True, "maxTrainerReplicas": 4, "maxGenerationReplicas": 4},
    "priorityClasses": {"areal-high": {"value": 10}},
    "operator": {"kueue": True},
    "rbac": {"runtimeReaders": ["system:authenticated"]},
    "monitoring": {
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "tests": {"volume": {"enabled": True}, "device": "nvidia.com/gpu"},
}
"""Values with every switch on."""


def render(
    *files: str,
    values: Object | None = None,
    version: str = NEWEST,
    release: str = "areal",
    namespace: str = "system",
    has: tuple[str, ...] = (),
) -> list[Object]:
    """The objects of one rendering, hooks among them. Raises tools.CommandFailed with what helm said.

    `has`: what the cluster has beside what every cluster has, as group/version/kind.
    """
    return [dict(found) for found in _render(files, json.dumps(values or {}), version, release, namespace, has)]


@cache
def _render(
    files: tuple[str, ...], values: str, version: str, release: str, namespace: str, has: tuple[str, ...]
) -> tuple[Object, ...]:
    arguments = [f"--values={CHART / 'ci' / name}" for name in files or ("default-values.yaml",)]
    arguments += [f"--set-json={key}={json.dumps(value)}" for key, value in json.loads(values).items()]
    arguments += [f"--api-versions={one}" for one in has]
    command = ["template", release, str(CHART), f"--kube-version={version}", *arguments]
    text = tools.helm(None, *command, namespace=namespace).stdout
    return tuple(found for found in yaml.load_all(text, Loader=yaml.CSafeLoader) if found)


def deployment_of(objects: list[Object], component: str) -> Object:
    """The Deployment of a component of the chart."""
    key = "app.kubernetes.io/component"
    [found] = [each for each in of_kind(objects, "Deployment") if each["metadata"]["labels"][key] == component]
    return found


def refusal(values: Object, version: str = NEWEST) -> str:
    """What helm says about values that it must refuse."""
    try:
        render(values=values, version=version)
    except tools.CommandFailed as failed:
        return str(failed).partition("ended with 1\n")[2]
    raise AssertionError(f"helm took {values}")


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """The objects of a kind."""
    return [found for found in objects if found["kind"] == kind]


def named(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of a kind and name."""
    found = [each for each in of_kind(objects, kind) if each["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} objects {kind}/{name}"
    return found[0]


def runtimes_of(objects: list[Object]) -> list[Object]:
    """The ClusterRLRuntimes that the operator of a rendering applies."""
    maps = [each for each in of_kind(objects, "ConfigMap") if each["metadata"]["name"].endswith("-operator-runtimes")]
    return [json.loads(text) for each in maps for text in each["data"].values()]


def hook(found: Object) -> str:
    """When helm makes the object; "" for one of the release."""
    return str(found["metadata"].get("annotations", {}).get("helm.sh/hook", ""))


def title(found: Object) -> str:
    """How messages name an object."""
    return f"{found['kind']}/{found['metadata'].get('namespace', '')}/{found['metadata']['name']}"


def pod_specs(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Every pod that the chart itself makes, with the name of what makes it."""
    for found in objects:
        if found["kind"] == "Pod":
            yield title(found), found["spec"]
        elif found["kind"] in ("Deployment", "Job", "StatefulSet", "DaemonSet"):
            yield title(found), found["spec"]["template"]["spec"]


def containers(spec: Object) -> list[Object]:
    """All containers of a pod, those that start first among them."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def walk(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value in a document with its path."""
    yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from walk(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from walk(inner, (*path, index))
