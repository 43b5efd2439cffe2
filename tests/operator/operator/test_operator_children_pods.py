"""What a job may change of its pods, and where its scheduling sends them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from areal.errors import ConfigError
from areal.plan.cluster_names import Role
from areal.spec.check import check
from areal.spec.job import RLJob
from areal_operator.operator.children import JobBlueprint, workloads
from areal_operator.operator.children.pods import pod_template
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support.cluster_jobs import (
    CPU_RUNTIME,
    GPU_RUNTIME,
    large,
    large_wanted,
    quickstart,
    quickstart_wanted,
    wanted,
    with_pod_template,
)
from support.examples import examples
from support.restricted import problems

Json = dict[str, Any]


def main_of(template: Json) -> Json:
    found: Json = next(c for c in template["spec"]["containers"] if c["name"] == "main")
    return found


def patched(role: str = "trainer", **fields: Any) -> JobBlueprint:
    """The quickstart with a podTemplate of one role."""
    return wanted(with_pod_template(quickstart(), **{role: fields}), CPU_RUNTIME)


def test_a_job_sets_resources_environment_placement_and_labels() -> None:
    w = patched(
        labels={"team": "a"},
        annotations={"example.com/note": "x"},
        env=[{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "HOME", "value": "/tmp/home"}],
        resources={"limits": {"nvidia.com/gpu": 1, "memory": "64Gi"}},
        nodeSelector={"zone": "a"},
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        runtimeClassName="nvidia",
        priorityClassName="high",
    )
    template = pod_template(w, Role.TRAINER)
    spec, main = template["spec"], main_of(template)
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"]["example.com/note"] == "x"
    env = {variable["name"]: variable.get("value") for variable in main["env"]}
    assert (env["NCCL_DEBUG"], env["HOME"]) == ("INFO", "/tmp/home")
    assert main["resources"]["limits"] == {"nvidia.com/gpu": "1", "memory": "64Gi"}
    assert spec["nodeSelector"] == {"zone": "a"}
    assert {"key": "gpu", "operator": "Exists"} in spec["tolerations"]
    assert (spec["runtimeClassName"], spec["priorityClassName"]) == ("nvidia", "high")


def test_one_role_s_patch_changes_no_other_role() -> None:
    plain, changed = (replace(w, files="same") for w in (quickstart_wanted(), patched(labels={"team": "a"})))
    for role in plain.roles:
        assert (pod_template(plain, role) == pod_template(changed, role)) is (role is not Role.TRAINER)


def test_the_job_s_priority_holds_for_every_role_but_those_with_their_own() -> None:
    w = large_wanted()
    priorities = {role.value: pod_template(w, role)["spec"]["priorityClassName"] for role in w.roles}
    assert priorities == {
        "reward-custom": "research",
        "controller": "research",
        "generation": "spare",
        "worker": "research",
        "gateway": "research",
        "trainer": "research",
    }


@pytest.mark.parametrize(
    "name", ["AREAL_INDEX", "AREAL_ANYTHING", "MASTER_ADDR", "RANK", "PET_NNODES", "TORCHELASTIC_RUN_ID"]
)
def test_a_reserved_variable_is_refused_with_the_field(name: str) -> None:
    w = patched(env=[{"name": "FINE", "value": "1"}, {"name": name, "value": "1"}])
    with pytest.raises(ConfigError, match=rf"spec\.podTemplate\.trainer\.env\[1\]\.name: {name}"):
        pod_template(w, Role.TRAINER)


def test_the_log_format_is_everybody_s_to_choose() -> None:
    w = patched(env=[{"name": "AREAL_LOG_FORMAT", "value": "json"}])
    assert {"name": "AREAL_LOG_FORMAT", "value": "json"} in main_of(pod_template(w, Role.TRAINER))["env"]


@pytest.mark.parametrize(
    "label", ["areal.dev/rljob", "areal.dev/new", "app.kubernetes.io/name", "apps.kubernetes.io/pod-index"]
)
def test_a_reserved_label_is_refused_with_the_field(label: str) -> None:
    with pytest.raises(ConfigError, match=rf"spec\.podTemplate\.worker\.labels: the label {label}"):
        pod_template(patched("worker", labels={label: "x"}), Role.WORKER)


@pytest.mark.parametrize("annotation", ["areal.dev/x", "container.apparmor.security.beta.kubernetes.io/main"])
def test_an_annotation_that_could_loosen_a_pod_is_refused(annotation: str) -> None:
    with pytest.raises(ConfigError, match=rf"spec\.podTemplate\.worker\.annotations: the annotation {annotation}"):
        pod_template(patched("worker", annotations={annotation: "unconfined"}), Role.WORKER)


@pytest.mark.parametrize(
    "field", ["securityContext", "image", "command", "volumes", "serviceAccountName", "hostNetwork"]
)
def test_a_job_can_say_nothing_about_its_pods_confinement(field: str) -> None:
    with pytest.raises(ValidationError):
        patched(**{field: {}})


def test_gpus_and_network_cards_are_requests_and_limits_of_the_pods_that_use_them() -> None:
    w = large_wanted()
    asked = {role: main_of(pod_template(w, role))["resources"] for role in (Role.TRAINER, Role.GENERATION, Role.WORKER)}
    for kind in ("requests", "limits"):
        assert asked[Role.TRAINER][kind]["nvidia.com/gpu"] == "8"
        assert asked[Role.TRAINER][kind]["rdma/hca"] == "8"
        assert asked[Role.GENERATION][kind]["nvidia.com/gpu"] == "2"
        assert "rdma/hca" not in asked[Role.GENERATION][kind], "it reads the volume"
        assert "nvidia.com/gpu" not in asked[Role.WORKER].get(kind, {})


def test_servers_that_take_weights_by_nccl_have_network_cards_too() -> None:
    job = large()
    job["spec"]["weightSync"] = {**job["spec"].get("weightSync", {}), "mode": "Group"}
    asked = main_of(pod_template(wanted(job, GPU_RUNTIME, recipe=None), Role.GENERATION))["resources"]
    assert [asked[kind]["rdma/hca"] for kind in ("requests", "limits")] == ["8", "8"]


def test_a_claim_keeps_compiled_kernels_for_trainers_and_engines() -> None:
    values = quickstart()
    values["spec"]["storage"] = {"cacheClaimName": "kernels"}
    w = wanted(values, CPU_RUNTIME)
    for role in (Role.TRAINER, Role.GENERATION, Role.WORKER):
        template = pod_template(w, role)
        claims = {
            v["name"]: v["persistentVolumeClaim"]["claimName"]
            for v in template["spec"]["volumes"]
            if "persistentVolumeClaim" in v
        }
        mounted = {mount["mountPath"]: claims.get(mount["name"]) for mount in main_of(template)["volumeMounts"]}
        assert mounted.get("/areal/kernels") == (None if role is Role.WORKER else "kernels")


@pytest.mark.parametrize(
    ("role", "says"), [("generation", "embedded engine runs on CPUs"), ("trainer", "trainer.gpus is 0")]
)
def test_gpus_of_a_runtime_that_would_stand_idle_are_refused(role: str, says: str) -> None:
    gpu = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}
    runtime = {**CPU_RUNTIME, "roles": {**CPU_RUNTIME.get("roles", {}), role: {"template": gpu}}}
    with pytest.raises(ConfigError, match=says):
        pod_template(wanted(quickstart(), runtime), Role(role))


_LABELS = st.dictionaries(st.sampled_from(["team", "x.org/y"]), st.sampled_from(["a", "b"]))
_AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "ephemeral-storage"]), st.sampled_from(["1", "2Gi", "500m"])
)
_PATCHES = st.fixed_dictionaries(
    {},
    optional={
        "labels": _LABELS,
        "annotations": _LABELS,
        "env": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from(["HOME", "PATH", "X"]), "value": st.just("v")}),
            unique_by=lambda variable: variable["name"],
        ),
        "resources": st.fixed_dictionaries({}, optional={"requests": _AMOUNTS, "limits": _AMOUNTS}),
        "nodeSelector": _LABELS,
        "tolerations": st.lists(st.just({"key": "gpu", "operator": "Exists"}), max_size=2),
        "runtimeClassName": st.just("gvisor"),
        "priorityClassName": st.just("low"),
    },
)


@settings(max_examples=examples(40), deadline=None)
@given(patch=_PATCHES, role=st.sampled_from(["worker", "rewardCustom", "trainer"]))
def test_no_patch_of_a_job_changes_security_volumes_command_or_identity(patch: Json, role: str) -> None:
    plain, changed = (replace(w, files="same") for w in (quickstart_wanted(), patched(role, **patch)))
    for one in plain.roles:
        before, after = pod_template(plain, one), pod_template(changed, one)
        for field in ("securityContext", "volumes", "serviceAccountName", "automountServiceAccountToken"):
            assert before["spec"][field] == after["spec"][field]
        for field in ("securityContext", "command", "volumeMounts", "image", "ports", "livenessProbe"):
            assert main_of(before)[field] == main_of(after)[field]
        assert before["metadata"]["labels"].items() <= after["metadata"]["labels"].items()
        assert problems(after["spec"]) == []


def _affinity(**scheduling: Any) -> dict[str, Json]:
    values = quickstart()
    values["spec"]["scheduling"] = scheduling
    w = wanted(values, CPU_RUNTIME)
    return {role.value: found for role in w.roles if (found := pod_template(w, role)["spec"].get("affinity"))}


def test_nothing_is_said_about_placement_unless_asked() -> None:
    assert _affinity() == {}


def test_exclusive_nodes_keep_every_trainer_and_server_of_any_job_away_from_a_trainer() -> None:
    assert _affinity(exclusiveNodes=True) == {
        "trainer": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "labelSelector": {
                            "matchExpressions": [
                                {"key": "areal.dev/role", "operator": "In", "values": ["generation", "trainer"]}
                            ]
                        },
                        "namespaceSelector": {},
                        "topologyKey": "kubernetes.io/hostname",
                    }
                ]
            }
        }
    }


def test_a_gang_is_drawn_to_one_topology_domain() -> None:
    affinity = _affinity(topologyKey="example.com/rack")["trainer"]["podAffinity"]
    [term] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"] == {
        "labelSelector": {"matchLabels": {"areal.dev/rljob": "digits", "areal.dev/role": "trainer"}},
        "topologyKey": "example.com/rack",
    }


def test_the_platform_s_own_affinity_stays_beside_the_job_s() -> None:
    term = {"labelSelector": {"matchLabels": {"noisy": "yes"}}, "topologyKey": "kubernetes.io/hostname"}
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    runtime = copy.deepcopy(CPU_RUNTIME)
    runtime["template"]["spec"]["affinity"] = {"podAntiAffinity": {rule: [term]}}
    values = quickstart()
    values["spec"]["scheduling"] = {"exclusiveNodes": True}
    terms = pod_template(wanted(values, runtime), Role.TRAINER)["spec"]["affinity"]["podAntiAffinity"][rule]
    assert terms[0] == term
    assert len(terms) == 2


def test_a_pod_leaves_a_lost_node_after_half_a_minute() -> None:
    for role in quickstart_wanted().roles:
        waits = {
            one["key"]: one["tolerationSeconds"]
            for one in pod_template(quickstart_wanted(), role)["spec"]["tolerations"]
        }
        assert waits == {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}


def test_a_drain_takes_one_trainer_and_a_quarter_of_the_servers_at_a_time() -> None:
    budgets = {one["metadata"]["name"]: one["spec"] for one in workloads(large_wanted()) if "Budget" in one["kind"]}
    assert {name: spec["maxUnavailable"] for name, spec in budgets.items()} == {
        "gsm8k-grpo-trainer": 1,
        "gsm8k-grpo-generation": "25%",
        "gsm8k-grpo-gateway": 1,
    }


def test_the_template_s_hash_changes_with_the_template_only() -> None:
    def marked(w: JobBlueprint) -> str:
        return str(pod_template(w, Role.TRAINER)["metadata"]["annotations"]["areal.dev/template-hash"])

    assert marked(quickstart_wanted()) == marked(
        quickstart_wanted(replicas=dict.fromkeys(quickstart_wanted().replicas, 0))
    )
    assert marked(quickstart_wanted()) != marked(patched(env=[{"name": "X", "value": "1"}]))


def on_one_node(role: str, **blocks: Any) -> bool:
    """Whether a role's pods have to be where the others that mount the run's volume are."""
    values = quickstart()
    values["spec"] |= blocks
    w = wanted(values, CPU_RUNTIME)
    pod_affinity = pod_template(w, Role(role))["spec"].get("affinity", {}).get("podAffinity", {})
    terms = pod_affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    if not terms:
        return False
    [term] = terms
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"] == {"areal.dev/rljob": "digits"}
    [listed] = term["labelSelector"]["matchExpressions"]
    assert role in listed["values"], "the first of them must be allowed anywhere"
    assert "redis" not in listed["values"]
    return True


@pytest.mark.parametrize(
    ("mode", "fetch", "together"),
    [
        ("ReadWriteOnce", False, {"controller", "worker", "trainer", "generation", "reward-custom"}),
        ("ReadWriteOnce", True, {"controller", "worker", "trainer", "reward-custom", "weights"}),
        ("ReadWriteMany", True, set()),
    ],
)
def test_pods_that_mount_a_volume_of_one_node_are_put_together(mode: str, fetch: bool, together: set[str]) -> None:
    blocks = {"storage": {"accessMode": mode}, "weightSync": {"servers": "Fetch" if fetch else "Mount"}}
    roles = ["controller", "worker", "trainer", "generation", "reward-custom", "redis", *(["weights"] if fetch else [])]
    assert {role for role in roles if on_one_node(role, **blocks)} == together


def test_a_claim_of_the_user_s_own_puts_nobody_together() -> None:
    assert not on_one_node("trainer", storage={"claimName": "shared"})


def test_surge_servers_are_the_fleets_own_in_all_but_place() -> None:
    own = {"env": [{"name": "HF_HUB_OFFLINE", "value": "1"}], "nodeSelector": {"pool": "reserved", "arch": "amd64"}}
    spot = {
        "env": [{"name": "SPOT", "value": "1"}],
        "nodeSelector": {"pool": "spot"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "priorityClassName": "cheap",
    }
    values = with_pod_template(quickstart(), generation=own, surge=spot)
    values["spec"]["generation"] = {"replicas": 5, "elastic": {"minReplicas": 2, "maxReplicas": 8}}
    written = RLJob.model_validate(values).model_dump(mode="json", by_alias=True)
    assert "surge-pool" not in {finding.rule for finding in check(RLJob.model_validate(written))}
    assert workloads(wanted(written, CPU_RUNTIME)) == workloads(wanted(values, CPU_RUNTIME)), "defaults change nothing"
    made = {
        one["metadata"]["name"]: one for one in workloads(wanted(values, CPU_RUNTIME)) if one["kind"] == "StatefulSet"
    }
    core, surge = made["digits-generation"]["spec"], made["digits-surge"]["spec"]
    assert (core["replicas"], surge["replicas"]) == (2, 3)
    assert "ordinals" not in core
    assert surge["ordinals"] == {"start": 1024}
    assert surge["serviceName"] == "digits-generation", "callers find them where they find the others"
    assert surge["selector"] == core["selector"]
    pods = {name: one["template"]["spec"] for name, one in (("core", core), ("surge", surge))}
    assert pods["core"]["nodeSelector"] == {"pool": "reserved", "arch": "amd64"}
    assert pods["surge"]["nodeSelector"] == {"pool": "spot", "arch": "amd64"}
    assert pods["surge"].pop("priorityClassName") == "cheap"
    assert "priorityClassName" not in pods["core"]
    env = {
        name: [each["name"] for each in main_of(one["template"])["env"]] for name, one in (("c", core), ("s", surge))
    }
    assert [name for name in env["s"] if name != "SPOT"] == env["c"]
    assert "HF_HUB_OFFLINE" in env["c"]
    more = [one for one in pods["surge"]["tolerations"] if one not in pods["core"]["tolerations"]]
    assert more == spot["tolerations"]
    for pod in pods.values():
        del pod["nodeSelector"], pod["tolerations"]
        main = main_of({"spec": pod})
        main["env"] = [each for each in main["env"] if each["name"] != "SPOT"]
    assert pods["core"] == pods["surge"]
