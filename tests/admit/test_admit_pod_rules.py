"""What a runtime lets a job's pods ask for, and which Secrets they may read."""

from __future__ import annotations

from typing import Any

import pytest
from areal.admit.machine import check_environment
from areal.admit.pod_rules import refusal_by_runtime, refusal_of_secret, secrets_of
from areal.errors import ConfigError
from areal.spec import RLJob
from areal.spec.load import job_from_object
from areal.spec.runtime import Allow, RuntimeSpec
from support.operator_jobs import job_object

Json = dict[str, Any]


def job(**pod_template: Json) -> RLJob:
    return job_from_object(job_object(podTemplate=pod_template))


def gpu_job(trained: int, servers: int, **pod_template: Json) -> RLJob:
    engine = {"type": "sglang", "gpus": servers, "tensorParallel": servers or 1}
    made = {"trainer": {"gpus": trained, "replicas": 1}, "generation": {"engine": engine, "replicas": 1}}
    return job_from_object(job_object(**made, podTemplate=pod_template))


def refused(job: RLJob, **rules: Json) -> str | None:
    return refusal_by_runtime(job, RuntimeSpec.model_validate(rules))


EVERYTHING: Json = {
    "nodeSelector": {"pool": "a"},
    "tolerations": [{"operator": "Exists"}],
    "volumes": [{"pvc": "a", "mountPath": "/scratch"}, {"secret": "b", "mountPath": "/mnt/keys"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
}


def test_a_runtime_without_rules_lets_jobs_ask_for_everything():
    assert refused(job(trainer=EVERYTHING, tools=EVERYTHING)) is None


@pytest.mark.parametrize(
    ("allow", "words"),
    [
        ({"volumeKinds": ["pvc"]}, "volumes: secret is not in the runtime's allow.volumeKinds (pvc)"),
        ({"volumeKinds": []}, "volumes: pvc is not in the runtime's allow.volumeKinds (nothing)"),
        ({"mountPrefixes": ["/scratch"]}, "volumes: /mnt/keys is not in the runtime's allow.mountPrefixes (/scratch)"),
        ({"mountPrefixes": ["/scrat", "/mnt/"]}, "volumes: /scratch is not in"),
        ({"nodeSelectorKeys": ["zone"]}, "nodeSelector: pool is not in the runtime's allow.nodeSelectorKeys (zone)"),
        ({"tolerationKeys": ["spot"]}, "tolerations: every key is not in the runtime's allow.tolerationKeys (spot)"),
    ],
)
def test_what_a_rule_leaves_out_is_refused_by_field_value_and_rule(allow: Json, words: str):
    assert words in str(refused(job(rewardCustom=EVERYTHING), allow=allow))
    assert str(refused(job(rewardCustom=EVERYTHING), allow=allow)).startswith("spec.podTemplate.rewardCustom.")
    assert refused(job(), allow=allow) is None


def test_keys_of_a_node_affinity_count_at_any_depth_and_a_prefix_admits_all_below_it():
    term = {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    one = job(trainer={"affinity": {"nodeAffinity": required}})
    assert "affinity.nodeAffinity: nvidia.com/gpu.product" in str(refused(one, allow={"nodeSelectorKeys": ["zone"]}))
    assert refused(one, allow={"nodeSelectorKeys": ["nvidia.com/gpu.product"]}) is None
    assert refused(one, allow={"nodeSelectorKeys": ["nvidia.com"]}) is None
    assert refused(one, allow={"nodeSelectorKeys": ["nvidia"]}) is not None


@pytest.mark.parametrize(
    ("devices", "trainer", "servers", "words"),
    [
        ({}, 8, 8, None),
        ({"perPod": 4}, 4, 4, None),
        ({"perPod": 4}, 8, 0, "spec.trainer.gpus is 8, and the runtime's devices.perPod 4"),
        ({"perPod": 4}, 4, 8, "spec.generation.engine.gpus is 8, and the runtime's devices.perPod 4"),
        ({"name": "amd.com/gpu"}, 8, 8, None),
        ({"name": "nvidia.com/mig-3g.40gb"}, 1, 1, None),
        ({"name": "nvidia.com/mig-3g.40gb"}, 2, 1, "a process sees one MIG instance. Set trainer.gpus 1"),
        ({"name": "nvidia.com/mig-3g.40gb"}, 1, 2, "a process sees one MIG instance. Set generation.engine.gpus 1"),
        ({"name": "nvidia.com/gpu.shared"}, 1, 1, "a time-sliced GPU bounds no pod's memory"),
        ({"name": "nvidia.com/gpu.shared"}, 0, 1, None),
    ],
)
def test_devices_are_refused_where_they_cannot_do_what_is_asked(devices: Json, trainer: int, servers: int, words: str):
    found = refused(gpu_job(trainer, servers), devices=devices)
    assert (found is None) if words is None else (words in str(found))


def test_a_pod_names_no_device_but_the_runtimes_and_as_many_as_the_job_says():
    amd: Json = {"name": "amd.com/gpu"}
    two = {"resources": {"limits": {"amd.com/gpu": 2}}}
    assert refused(gpu_job(2, 2, trainer=two, generation=two), devices=amd) is None
    assert "amd.com/gpu 2, and 4 of the runtime's" in str(refused(gpu_job(4, 1, trainer=two), devices=amd))
    other = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    assert "nvidia.com/gpu 1, and 1 of the runtime's" in str(refused(gpu_job(1, 1, trainer=other), devices=amd))


def variable(name: str, secret: str, **more: Any) -> Json:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": "k", **more}}}


def test_every_secret_is_found_once_and_is_needed_when_one_reader_needs_it():
    read = {"env": [variable("A", "one", optional=True), variable("B", "two"), {"name": "C", "value": "x"}]}
    held = {"volumes": [{"secret": "one", "mountPath": "/mnt/one"}, {"configMap": "no", "mountPath": "/mnt/no"}]}
    only_maybe = {"env": [variable("A", "three", optional=True)]}
    assert secrets_of(job(worker=read, trainer=held, tools=only_maybe)) == {
        "one": ("spec.podTemplate.trainer.volumes", False),
        "two": ("spec.podTemplate.worker.env", False),
        "three": ("spec.podTemplate.tools.env", True),
    }
    assert secrets_of(job()) == {}


def labelled(**labels: str) -> Json:
    return {"metadata": {"name": "wandb", "labels": labels}} if labels else {"metadata": {"name": "wandb"}}


NEEDED, OPTIONAL = ("spec.podTemplate.worker.env", False), ("spec.podTemplate.worker.env", True)


@pytest.mark.parametrize("wanted", [NEEDED, OPTIONAL])
def test_a_secret_is_read_by_its_label_only(wanted: tuple[str, bool]):
    assert refusal_of_secret("team", "wandb", labelled(**{"areal.dev/use": "env"}), wanted, Allow()) is None
    for other in (labelled(), labelled(**{"areal.dev/use": "model"}), labelled(use="env")):
        words = str(refusal_of_secret("team", "wandb", other, wanted, Allow()))
        assert "the Secret wandb lacks the label areal.dev/use=env" in words
        assert "`kubectl label secret wandb -n team areal.dev/use=env`" in words


def test_the_platform_chooses_the_labels_and_all_of_them_count():
    two = Allow.model_validate({"secretLabels": {"a": "1", "b": "2"}})
    assert refusal_of_secret("team", "wandb", labelled(a="1", b="2", c="3"), NEEDED, two) is None
    assert "a=1 b=2" in str(refusal_of_secret("team", "wandb", labelled(a="1"), NEEDED, two))
    assert refusal_of_secret("team", "wandb", labelled(), NEEDED, Allow(secret_labels={})) is None


def test_a_secret_that_is_missing_is_refused_unless_it_may_be():
    assert "kubectl create secret generic wandb -n team" in str(
        refusal_of_secret("team", "wandb", None, NEEDED, Allow())
    )
    assert refusal_of_secret("team", "wandb", None, OPTIONAL, Allow()) is None


def test_a_run_here_takes_such_variables_from_its_own_environment(monkeypatch: pytest.MonkeyPatch):
    wanted = job(worker={"env": [variable("WANDB_API_KEY", "wandb"), variable("HF_TOKEN", "hub", optional=True)]})
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="WANDB_API_KEY is k of wandb on a cluster") as refusal:
        check_environment(wanted)
    assert "export WANDB_API_KEY" in str(refusal.value.fix)
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    check_environment(wanted)
    assert secrets_of(wanted).keys() == {"wandb", "hub"}
