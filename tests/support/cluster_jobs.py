"""Jobs whose children the tests look at: the quickstart on one CPU, and a large one that uses what there is to use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from areal.admit.cluster import resolve_for_pods, roles_of
from areal.spec.job import RLJob
from areal.spec.runtime import RuntimeSpec
from areal_operator.operator.children import JobBlueprint

NAMESPACE = "team-a"
UID = "5f0c9a52-8f43-4a3e-9c1b-1f3a6f0f7d11"
RECIPE = "def reward(sample):\n    return 1.0\n"

Json = dict[str, Any]

CPU_RUNTIME: Json = {
    "template": {"spec": {"containers": [{"name": "main", "image": "registry.test/areal:0.1.0"}]}},
    "roles": {
        "trainer": {
            "template": {"spec": {"containers": [{"name": "main", "image": "registry.test/areal-torch:0.1.0"}]}}
        },
        "generation": {
            "template": {"spec": {"containers": [{"name": "main", "image": "registry.test/areal-torch:0.1.0"}]}}
        },
        "redis": {"template": {"spec": {"containers": [{"name": "main", "image": "registry.test/areal-redis:0.1.0"}]}}},
    },
}

GPU_RUNTIME: Json = {
    "template": {
        "metadata": {"labels": {"team": "research"}},
        "spec": {
            "imagePullSecrets": [{"name": "registry"}],
            "containers": [{"name": "main", "image": "registry.test/areal:0.1.0", "imagePullPolicy": "IfNotPresent"}],
        },
    },
    "roles": {
        "trainer": {
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "image": "registry.test/areal-cuda:0.1.0",
                            "env": [{"name": "NCCL_SOCKET_IFNAME", "value": "eth0"}],
                        }
                    ],
                    "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "50Gi"}}],
                }
            }
        },
        "generation": {
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "image": "registry.test/areal-sglang:0.1.0",
                            "startupProbe": {"failureThreshold": 300},
                        },
                        {"name": "exporter", "image": "registry.test/dcgm:1", "ports": [{"containerPort": 9400}]},
                    ]
                }
            }
        },
        "rewardCustom": {"template": {"spec": {"runtimeClassName": "gvisor"}}},
    },
    "storage": {"storageClassName": "fast-nfs"},
    "networkPolicy": {"egress": {"worker": "Open"}},
}


def quickstart() -> Json:
    """As `areal submit` sends examples/quickstart.yaml."""
    return {
        "apiVersion": "areal.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "digits"},
        "spec": {
            "model": {"uri": "pvc://inputs/digits/model"},
            "recipe": {"configMap": {"name": "digits-recipe", "key": "digits.py"}},
            "dataset": {
                "train": {"jsonl": "pvc://inputs/digits/train.jsonl"},
                "evaluation": {"jsonl": "pvc://inputs/digits/heldout.jsonl"},
            },
            "rollout": {"workflow": "rlvr", "maxConcurrentRollouts": 128, "maxSampleTokens": 16},
            "algorithm": {"name": "GRPO", "batchSize": 64, "maxSteps": 160},
        },
    }


def large() -> Json:
    """Two trainer nodes, SGLang, the recipe's reward, somebody else's Redis, a claim shared with other jobs."""
    much = {"limits": {"memory": "900Gi"}, "requests": {"cpu": "32", "memory": "900Gi"}}
    gpu_taint = {"key": "nvidia.com/gpu", "operator": "Exists"}
    return {
        "apiVersion": "areal.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "gsm8k-grpo"},
        "spec": {
            "model": {"uri": "pvc://models/qwen3-8b", "tokenizer": "pvc://models/qwen3-8b/tokenizer"},
            "recipe": {"file": "pvc://shared/recipes/gsm8k.py"},
            "dataset": {"train": {"huggingFace": {"path": "openai/gsm8k", "name": "main"}}},
            "rollout": {"workers": 4, "maxConcurrentRollouts": 512, "gateway": {"replicas": 2}},
            "algorithm": {"name": "GRPO", "batchSize": 512, "maxSteps": 2000, "maxStaleness": 4},
            "reward": {"verifier": "custom", "replicas": 4},
            "generation": {"engine": {"type": "sglang", "tensorParallel": 2}, "replicas": 4},
            "trainer": {"replicas": 2, "gpus": 8, "hooks": "pvc://shared/hooks.py"},
            "replay": {"backend": "External", "external": {"secretName": "our-redis"}, "budgetBytes": "8Gi"},
            "storage": {"claimName": "shared"},
            "scheduling": {
                "priorityClassName": "research",
                "topologyKey": "topology.kubernetes.io/rack",
                "exclusiveNodes": True,
                "rdma": {"resource": "rdma/hca", "count": 8},
            },
            "podTemplate": {
                "trainer": {
                    "labels": {"cost-centre": "42"},
                    "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
                    "resources": much,
                    "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"},
                    "tolerations": [gpu_taint],
                },
                "generation": {
                    "resources": {"requests": {"memory": "64Gi"}},
                    "tolerations": [gpu_taint],
                    "priorityClassName": "spare",
                },
                "worker": {"resources": {"requests": {"memory": "8Gi"}}},
            },
        },
    }


def wanted(values: Json, runtime: Json, *, recipe: str | None = RECIPE, **changes: Any) -> JobBlueprint:
    """A job with all its pods wanted; `changes` are fields of `Wanted`."""
    job = RLJob.model_validate(values)
    resolved = resolve_for_pods(job, namespace=NAMESPACE, uid=UID, recipe_source=recipe)
    raw = {**values, "metadata": {**values["metadata"], "namespace": NAMESPACE, "uid": UID}}
    made = JobBlueprint(
        job=job,
        raw=raw,
        runtime=RuntimeSpec.model_validate(runtime),
        resolved=resolved,
        replicas={f"{role}": pods for role, pods in roles_of(resolved).items()},
        operator_namespace="areal-system",
        metrics_from={"kubernetes.io/metadata.name": "monitoring"},
    )
    return replace(made, **changes)


def quickstart_wanted(**changes: Any) -> JobBlueprint:
    return wanted(quickstart(), CPU_RUNTIME, **changes)


def viewed_wanted(**changes: Any) -> JobBlueprint:
    """The quickstart with a pod that shows it."""
    values = quickstart()
    return wanted({**values, "spec": {**values["spec"], "observability": {"view": True}}}, CPU_RUNTIME, **changes)


def large_wanted(**changes: Any) -> JobBlueprint:
    return wanted(large(), GPU_RUNTIME, recipe=None, **changes)


def claiming_wanted() -> JobBlueprint:
    """The same of a runtime whose GPUs are claimed of a device class."""
    return wanted(large(), {**GPU_RUNTIME, "devices": {"deviceClass": "gpu.nvidia.com"}}, recipe=None)


def grouped_wanted() -> JobBlueprint:
    """The same of a cluster with PodGroups, its trainer of two pods."""
    values = large()
    values["spec"]["trainer"]["replicas"] = 2
    return wanted(values, {**GPU_RUNTIME, "podGroups": "v1alpha2"}, recipe=None)


def with_pod_template(values: Json, **roles: Json) -> Json:
    """The job with other patches of its pods."""
    return {**values, "spec": {**values["spec"], "podTemplate": roles}}
