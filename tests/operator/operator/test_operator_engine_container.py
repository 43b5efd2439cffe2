"""An upstream image of SGLang, the runtime's one value: a container of its own in generation pods on GPUs."""

from __future__ import annotations

import copy
from typing import Any

import kubernetes_validate
import pytest
from areal.plan.cluster_names import Role
from areal.spec.runtime import RuntimeSpec
from areal_operator.operator.children import JobBlueprint
from areal_operator.operator.children.pods import pod_template
from kube.harness.client import Client
from support.cluster_jobs import CPU_RUNTIME, GPU_RUNTIME, large, large_wanted, quickstart, wanted
from support.restricted import problems

Json = dict[str, Any]
IMAGE = "lmsysorg/sglang:v0.5.23"
GPU = "nvidia.com/gpu"


def upstream(values: Json | None = None, **of_generation: Any) -> JobBlueprint:
    """The large job with a runtime that names the image; `of_generation`: of its generation's pod template's spec."""
    runtime = copy.deepcopy(GPU_RUNTIME) | {"engineImage": IMAGE}
    runtime["roles"]["generation"]["template"]["spec"] |= of_generation
    return wanted(values or large(), runtime, recipe=None)


def containers(w: JobBlueprint, role: Role = Role.GENERATION) -> dict[str, Json]:
    return {one["name"]: one for one in pod_template(w, role)["spec"]["containers"]}


def test_the_engines_container_has_the_gpus_and_what_the_agent_sees() -> None:
    before, now = containers(large_wanted())["main"], containers(upstream())
    agent, engine = now["main"], now["engine"]
    assert [*now] == ["main", "exporter", "engine"]
    assert engine["image"] == IMAGE
    assert engine["resources"] == before["resources"]
    assert int(engine["resources"]["limits"][GPU]) > 0
    assert GPU not in {**agent["resources"]["requests"], **agent["resources"].get("limits", {})}
    assert engine["volumeMounts"] == agent["volumeMounts"]
    places = {mount["mountPath"] for mount in engine["volumeMounts"]}
    assert places >= {"/dev/shm", "/tmp", "/areal/engine", *(mount["mountPath"] for mount in before["volumeMounts"])}
    told = {variable["name"]: variable.get("value") for variable in agent["env"]}
    assert told["AREAL_ENGINE_PLACE"] == "/areal/engine"
    there = {variable["name"] for variable in engine["env"]}
    assert there == {variable["name"] for variable in before["env"]} | {"USER"}, "of our images it knows nothing"
    assert agent["image"] == before["image"]
    assert "ports" not in engine, "it is asked on loopback alone"
    volumes = pod_template(upstream(), Role.GENERATION)["spec"]["volumes"]
    assert {"name": "engine", "emptyDir": {"sizeLimit": "64Mi"}} in volumes


def test_only_servers_on_gpus_have_it() -> None:
    w = upstream()
    assert all("engine" not in containers(w, role) for role in w.roles if role is not Role.GENERATION)
    on_cpus = wanted(quickstart(), {**CPU_RUNTIME, "engineImage": IMAGE})
    assert [*containers(on_cpus)] == ["main"]
    assert pod_template(on_cpus, Role.GENERATION) == pod_template(wanted(quickstart(), CPU_RUNTIME), Role.GENERATION)


def test_what_the_platform_says_of_the_container_stays() -> None:
    main = GPU_RUNTIME["roles"]["generation"]["template"]["spec"]["containers"]
    own = {
        "name": "engine", "imagePullPolicy": "Always", "image": "another",
        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "USER", "value": "me"}],
        "resources": {"limits": {GPU: "8"}},
    }  # fmt: skip
    engine = containers(upstream(containers=[*main, own]))["engine"]
    assert (engine["image"], engine["imagePullPolicy"]) == (IMAGE, "Always")
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in engine["env"]
    assert [one["value"] for one in engine["env"] if one["name"] == "USER"] == ["me"]
    assert engine["resources"] == own["resources"]


def test_memory_that_the_job_asks_for_is_the_engines() -> None:
    values = large()
    values["spec"]["podTemplate"] = {
        "generation": {"resources": {"requests": {"memory": "300Gi"}, "limits": {"memory": "1Gi"}}}
    }
    now = containers(upstream(values))
    assert now["engine"]["resources"]["limits"]["memory"] == "1Gi"
    agent = now["main"]["resources"]
    assert agent["requests"]["memory"] == agent["limits"]["memory"] == "1Gi", "requests beyond limits are refused"


def test_its_pods_are_confined_and_valid() -> None:
    template = pod_template(upstream(), Role.GENERATION)
    assert problems(template["spec"]) == []
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]}
    kubernetes_validate.validate(pod, "1.31", strict=True)
    command = containers(upstream())["engine"]["command"]
    assert command[:2] == ["sh", "-c"]
    assert command[3:] == ["/areal/engine/keeper.py", "/areal/engine/keeper.sock"]


def test_a_runtime_without_an_image_makes_the_pods_it_made() -> None:
    assert RuntimeSpec.model_validate(GPU_RUNTIME).engine_image is None
    assert "engine" not in containers(large_wanted())


@pytest.mark.kube_api
def test_the_api_server_takes_such_a_pod_with_both_containers(admin: Client, namespace: str) -> None:
    template = pod_template(upstream(), Role.GENERATION)
    metadata = {**template["metadata"], "name": "engine-container", "namespace": namespace}
    spec = {**template["spec"], "serviceAccountName": "default", "priorityClassName": ""}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    path = admin.path("v1", "Pod", namespace)
    made = dict(admin.raw("POST", path, json=pod, params={"dryRun": "All", "fieldValidation": "Strict"}))
    kept = {one["name"]: one for one in made["spec"]["containers"]}
    asked = {one["name"]: one for one in template["spec"]["containers"]}
    assert [*kept] == [*asked] == ["main", "exporter", "engine"]
    assert kept["engine"]["resources"]["limits"] == asked["engine"]["resources"]["limits"]
    assert GPU not in kept["main"]["resources"].get("requests", {})
    assert [one["mountPath"] for one in kept["engine"]["volumeMounts"]] == [
        one["mountPath"] for one in asked["engine"]["volumeMounts"]
    ]
