"""The example jobs on GPUs, on fake nodes that have some: accepted, bound, with all that such pods need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from areal.spec import load_job
from kube.harness import tools
from kube.harness.client import Client
from kube.harness.fixtures import Runner
from kube.jobs import wait_for
from kube.operators import CHART, runtimes_in
from support.scripted_pods import ScriptedPods

pytestmark = [pytest.mark.kube_api, pytest.mark.usefixtures("operator", "gpu_runtime")]

GPU = "nvidia.com/gpu"
Object = dict[str, Any]


@pytest.fixture(scope="module")
def gpu_runtime(admin: Client) -> None:
    """The chart's runtime for SGLang, as the operator would apply it."""
    values = f"--values={CHART / 'ci' / 'default-values.yaml'}"
    command = ["template", "areal", str(CHART), values, "--show-only=templates/runtimes.yaml"]
    for runtime in runtimes_in(yaml.safe_load(tools.helm(None, *command, namespace="areal-system").stdout)):
        if runtime["metadata"]["name"] == "areal-sglang":
            admin.apply(runtime)


def claim(admin: Client, namespace: str, name: str) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"namespace": namespace, "name": name}
    admin.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})


def asked(pod: Object, resource: str) -> int:
    resources = pod["spec"]["containers"][0].get("resources", {})
    limit = int(resources.get("limits", {}).get(resource, 0))
    assert int(resources.get("requests", {}).get(resource, 0)) == limit
    return limit


@pytest.mark.parametrize(
    ("example", "each", "cards"),
    [
        ("qwen2.5-7b-gsm8k", {"trainer": [4], "generation": [1] * 4}, 0),
        ("qwen3-32b-math", {"trainer": [8] * 4, "generation": [4] * 8}, 8),
        ("lora-8b", {"trainer": [1], "generation": [1]}, 0),
    ],
)
def test_an_example_is_accepted_and_its_pods_have_gpus_network_cards_shared_memory_and_kernels(
    admin: Client, kubectl: Runner, namespace: str, pods: ScriptedPods, example: str, each: Object, cards: int
) -> None:
    file = tools.ROOT / "examples" / f"{example}.yaml"
    name = load_job(file).metadata.name
    for volume in ("models", "kernels"):
        claim(admin, namespace, volume)
    pods.run(namespace, name).pace_s = 5.0
    kubectl("create", "--filename", str(file), namespace=namespace)
    wait_for(admin, namespace, name, TrainerReady="True", GenerationReady="AllReplicasReady", timeout_s=120)

    found: dict[str, list[Object]] = {}
    for pod in admin.list("v1", "Pod", namespace):
        found.setdefault(pod["metadata"]["labels"].get("areal.dev/role", ""), []).append(pod)
    gpus = {role: [asked(pod, GPU) for pod in there] for role, there in found.items()}
    assert {role: counts for role, counts in gpus.items() if any(counts)} == each
    assert {asked(pod, "rdma/hca") for pod in found["trainer"]} == {cards}
    for pod in found["trainer"] + found["generation"]:
        assert pod["spec"]["nodeName"].startswith("fake-")
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        places = {place["mountPath"]: volumes[place["name"]] for place in pod["spec"]["containers"][0]["volumeMounts"]}
        assert places["/dev/shm"]["emptyDir"]["medium"] == "Memory"
        assert places["/areal/kernels"]["persistentVolumeClaim"]["claimName"] == "kernels"


def test_a_job_whose_cards_are_shared_has_one_pod_for_both_and_one_request_for_the_card(
    admin: Client, kubectl: Runner, namespace: str, pods: ScriptedPods, tmp_path: Path
) -> None:
    job = yaml.safe_load((tools.ROOT / "examples" / "lora-8b.yaml").read_text())
    job["spec"]["placement"] = "shared"
    job["spec"]["algorithm"]["maxStaleness"] = 1
    file, name = tmp_path / "shared.yaml", job["metadata"]["name"]
    file.write_text(yaml.safe_dump(job))
    for volume in ("models", "kernels"):
        claim(admin, namespace, volume)
    pods.run(namespace, name).pace_s = 5.0
    kubectl("create", "--filename", str(file), namespace=namespace)
    wait_for(admin, namespace, name, TrainerReady="True", GenerationReady="AllReplicasReady", timeout_s=120)

    there = admin.list("v1", "Pod", namespace)
    asking = [pod for pod in there if asked(pod, GPU)]
    assert [pod["metadata"]["name"] for pod in asking] == [f"{name}-trainer-0"]
    (both,) = asking
    assert both["spec"]["nodeName"].startswith("fake-")
    (main,) = both["spec"]["containers"]
    assert asked(both, GPU) == 1
    assert "/sglang:" in main["image"]
    assert {port["name"] for port in main["ports"]} >= {"grpc", "grpc-0", "metrics-0"}
    assert main["readinessProbe"]["grpc"]["service"] == "beside"
    assert not [pod for pod in there if pod["metadata"]["labels"].get("areal.dev/role") == "generation"]
    policy = admin.get("networking.k8s.io/v1", "NetworkPolicy", namespace, f"{name}-trainer")
    assert policy is not None
    opened = {port["port"]: rule["from"] for rule in policy["spec"]["ingress"] for port in rule.get("ports", ())}
    (worker,) = opened[9010]
    assert worker["podSelector"]["matchLabels"]["areal.dev/role"] == "worker"
