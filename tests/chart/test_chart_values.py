"""Wrong values are refused before anything is installed, and the message says where and what to set."""

from __future__ import annotations

from typing import Any

import pytest
from chart.chart_rendering import refusal

pytestmark = pytest.mark.kube_api

TYPOS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "top": ({"operators": {}}, ("additional properties 'operators' not allowed",)),
    "global": ({"global": {"imageRegistery": "x"}}, ("/global", "'imageRegistery' not allowed")),
    "operator": ({"operator": {"replica": 1}}, ("/operator", "'replica' not allowed")),
    "operator number": ({"operator": {"replicas": "two"}}, ("/operator/replicas", "want integer")),
    "operator none": ({"operator": {"replicas": 0}}, ("/operator/replicas", "minimum")),
    "image key": ({"images": {"trainer": {"repo": "x"}}}, ("/images/trainer", "'repo' not allowed")),
    "digest": ({"images": {"trainer": {"digest": "sha256:12"}}}, ("/images/trainer/digest", "does not match pattern")),
    "pull policy": ({"images": {"trainer": {"pullPolicy": "always"}}}, ("/images/trainer/pullPolicy", "Always")),
    "resources": ({"operator": {"resources": {"limit": {}}}}, ("/operator/resources", "'limit' not allowed")),
    "quantity": (
        {"operator": {"resources": {"limits": {"memory": "1 GB"}}}},
        ("/operator/resources/limits/memory", "does not match pattern"),
    ),
    "namespace": ({"operator": {"watchNamespaces": ["Team A"]}}, ("/operator/watchNamespaces/0", "pattern")),
    "namespaces twice": ({"operator": {"watchNamespaces": ["a", "a"]}}, ("/operator/watchNamespaces", "equal")),
    "toleration": (
        {"operator": {"tolerations": [{"key": "a", "effects": "NoSchedule"}]}},
        ("/operator/tolerations/0", "'effects' not allowed"),
    ),
    "access mode": ({"storage": {"accessMode": "RWX"}}, ("/storage/accessMode", "ReadWriteMany")),
    "size": ({"storage": {"size": "lots"}}, ("/storage/size", "does not match pattern")),
    "runtime key": (
        {"runtimes": {"definitions": {"areal-cpu": {"role": {}}}}},
        ("/runtimes/definitions/areal-cpu", "'role' not allowed"),
    ),
    "role": (
        {"runtimes": {"definitions": {"mine": {"roles": {"trainers": {}}}}}},
        ("/runtimes/definitions/mine/roles", "'trainers' not allowed"),
    ),
    "role key": (
        {"runtimes": {"definitions": {"areal-cpu": {"roles": {"trainer": {"gpu": 1}}}}}},
        ("/roles/trainer", "'gpu' not allowed"),
    ),
    "egress": (
        {"runtimes": {"definitions": {"areal-cpu": {"networkPolicy": {"egress": {"reward": "Open"}}}}}},
        ("/networkPolicy/egress", "'reward' not allowed"),
    ),
    "tls": ({"tls": {"mode": "Mutual"}}, ("/tls/mode", "Disabled")),
    "guard": ({"uninstallGuard": True}, ("/uninstallGuard", "want string")),
    "alert": (
        {"monitoring": {"prometheusRule": {"overrides": {"RLJobStaled": {"enabled": False}}}}},
        ("/monitoring/prometheusRule/overrides", "'RLJobStaled' not allowed"),
    ),
    "dashboards": ({"monitoring": {"dashboards": True}}, ("/monitoring/dashboards", "want object")),
    "priority": ({"priorityClasses": {"high": {"weight": 1}}}, ("/priorityClasses/high", "'weight'")),
    "label": ({"operator": {"podLabels": {"a": 1}}}, ("/operator/podLabels/a", "want string")),
    "action": ({"admissionPolicies": {"actions": []}}, ("/admissionPolicies/actions", "minItems")),
}

CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "budget": (
        {"operator": {"podDisruptionBudget": {"minAvailable": 2}}},
        "no node with an operator could ever be drained: set it to 1 or less",
    ),
    "burst": ({"operator": {"qps": 150}}, "operator.burst is 100, less than operator.qps 150"),
    "account": (
        {"operator": {"serviceAccount": {"create": False}}},
        "name the ServiceAccount that is there in operator.serviceAccount.name",
    ),
    "monitors": (
        {"monitoring": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}},
        "would be read twice: keep one",
    ),
    "default runtime": (
        {"runtimes": {"default": "sglang"}},
        "runtimes.default is sglang, which is not among the runtimes that are made (areal-cpu, areal-sglang)",
    ),
    "default runtime that is off": (
        {"runtimes": {"definitions": {"areal-cpu": {"enabled": False}}}},
        "runtimes.default is areal-cpu, which is not among the runtimes that are made (areal-sglang)",
    ),
    "runtime name": (
        {"runtimes": {"definitions": {"My_Runtime": {}}}},
        "runtimes.definitions.My_Runtime: a runtime's name has small letters",
    ),
    "role without image": (
        {"runtimes": {"definitions": {"mine": {"roles": {"trainer": {"image": "trainer"}}}}}},
        "runtimes.definitions.mine.roles.controller has no image",
    ),
    "unknown image": (
        {"operator": {"image": "operater"}},
        'operator.image is "operater", which is not in images (there are engine, ',
    ),
    "moving tag": ({"images": {"trainer": {"tag": "latest"}}}, 'images.trainer.tag is "latest", which moves'),
    "no repository": ({"images": {"trainer": {"repository": ""}}}, "images.trainer has no repository"),
    "containers": (
        {"runtimes": {"definitions": {"areal-cpu": {"all": {"pod": {"containers": [{"name": "main"}]}}}}}},
        "would replace the role's container: use",
    ),
    "egress without policies": (
        {
            "runtimes": {
                "definitions": {"areal-cpu": {"networkPolicy": {"mode": "Unmanaged", "egress": {"tools": "Open"}}}}
            }
        },
        "its mode is Unmanaged and no policy is made",
    ),
    "two defaults": (
        {"priorityClasses": {"a": {"value": 1, "globalDefault": True}, "b": {"value": 2, "globalDefault": True}}},
        "priorityClasses a, b are all globalDefault",
    ),
    "system priority": ({"priorityClasses": {"system-areal": {"value": 1}}}, "names that begin with system-"),
    "no policy": ({"admissionPolicies": {"enabled": True}}, "no policy is set: give maxTrainerReplicas"),
    "deny and warn": (
        {"admissionPolicies": {"enabled": True, "maxTrainerReplicas": 1, "actions": ["Deny", "Warn"]}},
        "holds both Deny and Warn",
    ),
    "no registry": (
        {"global": {"imageRegistry": ""}},
        "images.operator has no registry, and nobody publishes these images for you. Build and push them: `make images "
        "REGISTRY=registry.example.com PUSH=1`, then add `--set global.imageRegistry=registry.example.com`. For a "
        "local cluster (kind, k3d, containerd): `make images-load`, then add `--set global.imagesLoaded=true`.",
    ),
    "volume test": (
        {"storage": {"accessMode": "ReadWriteOnce"}, "tests": {"volume": {"enabled": True}}},
        "tests.volume.enabled proves ReadWriteMany, but storage.accessMode is ReadWriteOnce",
    ),
}


@pytest.mark.parametrize("case", TYPOS)
def test_a_value_that_the_chart_does_not_know_is_refused_with_its_place(case: str) -> None:
    values, parts = TYPOS[case]
    said = refusal(values)
    for part in parts:
        assert part in said


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_values_that_contradict_each_other_are_refused_with_what_to_set(case: str) -> None:
    values, part = CONTRADICTIONS[case]
    assert part in refusal(values)


def test_admission_policies_are_refused_where_the_api_server_has_none() -> None:
    values = {"admissionPolicies": {"enabled": True, "maxTrainerReplicas": 1}}
    assert "needs Kubernetes 1.30 or newer, this is v1.29.0" in refusal(values, version="1.29.0")
