"""Pod specs that people bring: secret environment, volumes, affinity, spread, devices; what a platform refuses.

The shapes are those of public pages: a hub's token and a Weights & Biases key from Secrets (KubeRay's example of
vLLM), a dataset's claim, a spread and a node affinity over topology domains (Kubernetes' documentation).
"""

from __future__ import annotations

from typing import Any

import pytest
from areal_operator.runtime.transport import METADATA
from kube.harness.client import Client
from kube.harness.fixtures import Runner
from kube.jobs import condition, rljob, wait_for
from kube.operators import RUNTIME, children

pytestmark = [pytest.mark.kube_api, pytest.mark.usefixtures("operator")]

Object = dict[str, Any]
RACK = "topology.kubernetes.io/rack"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

STRANGERS: Object = {
    "labels": {"foo": "bar"},
    "env": [
        {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "api-key"}}},
        {
            "name": "HF_TOKEN",
            "valueFrom": {"secretKeyRef": {"name": "hf-secret", "key": "hf_api_token", "optional": True}},
        },
        {"name": "LOG_LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}},
    ],
    "volumes": [
        {"pvc": "dataset", "mountPath": "/data"},
        {"configMap": "settings", "mountPath": "/mnt/settings"},
        {"secret": "wandb", "mountPath": "/mnt/wandb"},
    ],
    "affinity": {
        "nodeAffinity": {
            REQUIRED: {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": RACK, "operator": "NotIn", "values": ["rack-2"]}]}]
            }
        }
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": RACK,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"foo": "bar"}},
        }
    ],
}


def secret(namespace: str, name: str, **labels: str) -> Object:
    metadata = {"namespace": namespace, "name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"api-key": "not-for-operators"}}


def claim(namespace: str, name: str) -> Object:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def runtime(admin: Client, namespace: str, **rules: Object) -> Object:
    """The chart's runtime for CPUs under rules of this namespace's platform team."""
    shared = admin.get("areal.dev/v1alpha1", "ClusterRLRuntime", "", RUNTIME) or {}
    made = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLRuntime", "spec": {**shared["spec"], **rules}}
    return admin.apply({**made, "metadata": {"namespace": namespace, "name": "ours"}})


def under(namespace: str, name: str, **blocks: Any) -> Object:
    return rljob(namespace, name, runtimeRef={"kind": "RLRuntime", "name": "ours"}, **blocks)


def message(job: Object) -> str:
    return str(condition(job, "Accepted")["message"])


def test_a_strangers_pod_spec_is_taken_and_its_pods_have_all_of_it(admin: Client, namespace: str) -> None:
    admin.create(secret(namespace, "wandb", **{"areal.dev/use": "env"}))
    admin.create(claim(namespace, "dataset"))
    admin.create(rljob(namespace, rollout={"workers": 2}, podTemplate={"worker": STRANGERS}))
    wait_for(admin, namespace, Progressing="True")

    found = admin.list("v1", "Pod", namespace, "areal.dev/role=worker")
    assert len(found) == 2
    racks = {node["metadata"]["name"]: node["metadata"]["labels"].get(RACK) for node in admin.list("v1", "Node", "")}
    assert {racks[pod["spec"]["nodeName"]] for pod in found} == {"rack-0", "rack-1"}
    for pod in found:
        spec, main = pod["spec"], pod["spec"]["containers"][0]
        env = {variable["name"]: variable for variable in main["env"]}
        for variable in STRANGERS["env"]:
            [(kind, wanted)] = variable["valueFrom"].items()
            assert env[variable["name"]]["valueFrom"] == {kind: {"optional": False, **wanted}}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        places = {place["mountPath"]: place for place in main["volumeMounts"]}
        assert {path: places[path].get("readOnly") for path in ("/data", "/mnt/settings", "/mnt/wandb")} == {
            "/data": True,
            "/mnt/settings": True,
            "/mnt/wandb": True,
        }
        assert volumes[places["/data"]["name"]]["persistentVolumeClaim"]["claimName"] == "dataset"
        assert volumes[places["/mnt/settings"]["name"]]["configMap"]["name"] == "settings"
        assert volumes[places["/mnt/wandb"]["name"]]["secret"]["secretName"] == "wandb"
        assert spec["affinity"] == STRANGERS["affinity"]
        [spread] = spec["topologySpreadConstraints"]
        assert spread.items() >= STRANGERS["topologySpreadConstraints"][0].items()
    others = admin.list("v1", "Pod", namespace, "areal.dev/role=trainer")
    assert others
    assert all("wandb" not in str(pod["spec"]) for pod in others)


def test_a_secret_that_jobs_may_not_read_is_named_and_one_command_lets_them(
    admin: Client, kubectl: Runner, namespace: str
) -> None:
    admin.create(secret(namespace, "wandb"))
    admin.create(claim(namespace, "dataset"))
    admin.create(rljob(namespace, podTemplate={"worker": STRANGERS}))
    job = wait_for(admin, namespace, Accepted="SecretRefused", summary="Rejected")
    words = message(job)
    assert "spec.podTemplate.worker.env: the Secret wandb lacks the label areal.dev/use=env" in words
    assert not children(admin, namespace), "nothing is made before all is accepted"
    command = words.partition("`")[2].partition("`")[0].split()
    assert command[:2] == ["kubectl", "label"]
    kubectl(*command[1:])
    wait_for(admin, namespace, Progressing="True", timeout_s=90)


def test_a_secret_that_is_missing_is_named_unless_the_variable_is_optional(admin: Client, namespace: str) -> None:
    optional = {"secretKeyRef": {"name": "gone", "key": "k", "optional": True}}
    needed = {"secretKeyRef": {"name": "gone", "key": "k"}}
    admin.create(rljob(namespace, "soft", podTemplate={"trainer": {"env": [{"name": "A", "valueFrom": optional}]}}))
    admin.create(rljob(namespace, "hard", podTemplate={"trainer": {"env": [{"name": "A", "valueFrom": needed}]}}))
    job = wait_for(admin, namespace, "hard", Accepted="SecretRefused")
    assert f"there is no Secret gone in {namespace}" in message(job)
    assert "kubectl create secret generic gone" in message(job)
    wait_for(admin, namespace, "soft", Progressing="True")


def test_what_the_operator_asks_of_a_secret_holds_none_of_its_data(admin: Client, namespace: str) -> None:
    made = admin.create(secret(namespace, "wandb", **{"areal.dev/use": "env"}))
    assert "data" in made
    path = admin.path("v1", "Secret", namespace, "wandb")
    seen = admin.raw("GET", path, headers={"accept": METADATA})
    assert seen["metadata"]["labels"] == {"areal.dev/use": "env"}
    assert seen.keys() == {"kind", "apiVersion", "metadata"}


REFUSED = {
    "volumeKinds": ({"volumes": [{"secret": "wandb", "mountPath": "/data/keys"}]}, "allow.volumeKinds (pvc)"),
    "mountPrefixes": ({"volumes": [{"pvc": "dataset", "mountPath": "/scratch"}]}, "allow.mountPrefixes (/data/)"),
    "nodeSelectorKeys": ({"nodeSelector": {"pool": "other"}}, "pool is not in the runtime's allow.nodeSelectorKeys"),
    "nodeAffinity": ({"affinity": STRANGERS["affinity"]}, f"{RACK} is not in the runtime's allow.nodeSelectorKeys"),
    "tolerationKeys": (
        {"tolerations": [{"operator": "Exists"}]},
        "every key is not in the runtime's allow.tolerationKeys",
    ),
}
ALLOW: Object = {
    "volumeKinds": ["pvc"],
    "mountPrefixes": ["/data/"],
    "nodeSelectorKeys": ["type"],
    "tolerationKeys": ["nvidia.com/gpu"],
}


def test_a_job_that_breaks_a_rule_of_its_runtime_is_refused_by_the_rules_name(admin: Client, namespace: str) -> None:
    runtime(admin, namespace, allow=ALLOW)
    admin.create(claim(namespace, "dataset"))
    for rule, (patch, _) in REFUSED.items():
        admin.create(under(namespace, f"bad-{rule.lower()}", podTemplate={"worker": patch}))
    for rule, (_, words) in REFUSED.items():
        job = wait_for(admin, namespace, f"bad-{rule.lower()}", Accepted="NotAllowed", summary="Rejected")
        assert words in message(job)
        assert "spec.podTemplate.worker." in message(job)
    assert not children(admin, namespace)
    kept = {"nodeSelector": {"type": "kwok"}, "volumes": [{"pvc": "dataset", "mountPath": "/data/corpus"}]}
    admin.create(under(namespace, "good", podTemplate={"worker": kept}))
    wait_for(admin, namespace, "good", Progressing="True")


def test_gpus_are_called_as_the_runtime_says_and_some_are_not_for_trainers(admin: Client, namespace: str) -> None:
    mig = "nvidia.com/mig-3g.40gb"
    runtime(admin, namespace, devices={"name": mig, "perPod": 1})
    on_one = {"engine": {"type": "sglang", "gpus": 1, "dtype": "bfloat16"}}
    admin.create(under(namespace, "one", trainer={"gpus": 1}, generation=on_one))
    wait_for(admin, namespace, "one", Accepted="True")

    def asked(role: str) -> Object:
        sets = admin.get("apps/v1", "StatefulSet", namespace, f"one-{role}")
        assert sets is not None
        limits: Object = sets["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
        return {name: amount for name, amount in limits.items() if "/" in name}

    wait_for(admin, namespace, "one", Prepared="True")
    wait_for(admin, namespace, "one", Scheduled="Unschedulable", timeout_s=90)  # no fake node has any
    assert asked("trainer") == asked("generation") == {mig: "1"}
    admin.create(under(namespace, "two", trainer={"gpus": 2}, generation=on_one))
    job = wait_for(admin, namespace, "two", Accepted="NotAllowed")
    assert "spec.trainer.gpus is 2, and the runtime's devices.perPod 1" in message(job)
    runtime(admin, namespace, devices={"name": "nvidia.com/gpu.shared"})
    admin.create(under(namespace, "shared", trainer={"gpus": 1}, generation=on_one))
    job = wait_for(admin, namespace, "shared", Accepted="NotAllowed")
    assert "a time-sliced GPU bounds no pod's memory" in message(job)


DRIVER = "gpu.example.com"
H100 = f'device.attributes["{DRIVER}"].model == "H100"'


def devices_of(admin: Client, node: str, models: tuple[str, ...]) -> None:
    """What a driver says of a machine, and the class of its devices."""
    base = {"apiVersion": "resource.k8s.io/v1"}
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    admin.create({**base, "kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": {"selectors": selectors}})
    devices = [
        {"name": f"gpu-{number}", "attributes": {"model": {"string": model}}} for number, model in enumerate(models)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    told = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    admin.create({**base, "kind": "ResourceSlice", "metadata": {"name": f"{node}-{DRIVER}"}, "spec": told})


def test_gpus_of_a_device_class_are_claimed_and_given_by_the_scheduler(admin: Client, namespace: str) -> None:
    """Kubernetes' own scheduler and claims; of the driver what it says of its devices."""
    node = admin.list("v1", "Node")[0]["metadata"]["name"]
    devices_of(admin, node, ("H100", "L4", "H100", "H100"))
    runtime(admin, namespace, devices={"deviceClass": DRIVER, "selectors": [H100]})
    on_one = {"engine": {"type": "sglang", "gpus": 1, "dtype": "bfloat16"}}
    admin.create(under(namespace, "claims", trainer={"gpus": 2}, generation=on_one))
    job = wait_for(admin, namespace, "claims", Progressing="True", timeout_s=120)
    given = {
        claim["metadata"]["ownerReferences"][0]["name"].split("-")[1]: [
            one["device"] for one in claim["status"]["allocation"]["devices"]["results"]
        ]
        for claim in admin.list("resource.k8s.io/v1", "ResourceClaim", namespace)
    }
    assert {role: len(devices) for role, devices in given.items()} == {"trainer": 2, "generation": 1}
    assert {device for devices in given.values() for device in devices} == {"gpu-0", "gpu-2", "gpu-3"}, "no L4"
    assert job["status"]["usage"]["gpus"] == 3
    admin.create(under(namespace, "waits", trainer={"gpus": 2}, generation=on_one))
    wait_for(admin, namespace, "waits", Scheduled="Unschedulable", timeout_s=90)
    admin.delete(job)
    wait_for(admin, namespace, "waits", Progressing="True", timeout_s=180)
    waits = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "waits", "namespace": namespace}}
    admin.patch(waits, {"spec": {"suspend": True}})
    wait_for(admin, namespace, "waits", Suspended="True", timeout_s=120)
    admin.patch(waits, {"spec": {"suspend": False, "trainer": {"gpus": 1}}})
    wait_for(admin, namespace, "waits", Progressing="True", timeout_s=180)
    trainer = next(one for one in admin.list("v1", "Pod", namespace) if one["metadata"]["name"] == "waits-trainer-0")
    (state,) = trainer["status"]["resourceClaimStatuses"]
    claim = admin.get("resource.k8s.io/v1", "ResourceClaim", namespace, state["resourceClaimName"])
    assert claim is not None
    assert len(claim["status"]["allocation"]["devices"]["results"]) == 1
