"""What a job brings to its pods: variables of other objects, volumes, affinity, spread; beside the platform's."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from areal.errors import ConfigError
from areal.plan.cluster_names import Role
from areal_operator.operator.children import JobBlueprint, finish_job, prepare_job, workloads
from areal_operator.operator.children.pods import pod_template
from support.cluster_jobs import CPU_RUNTIME, GPU_RUNTIME, large, quickstart, wanted, with_pod_template
from support.restricted import problems

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def main_of(template: Json) -> Json:
    found: Json = next(c for c in template["spec"]["containers"] if c["name"] == "main")
    return found


def patched(role: str = "trainer", runtime: Json = CPU_RUNTIME, **fields: Any) -> JobBlueprint:
    return wanted(with_pod_template(quickstart(), **{role: fields}), runtime)


def term(key: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}


def nodes(*terms: Json) -> Json:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def test_a_variable_of_a_secret_takes_the_place_of_the_platforms_value() -> None:
    runtime = copy.deepcopy(CPU_RUNTIME)
    runtime["template"]["spec"]["containers"][0]["env"] = [{"name": "WANDB_API_KEY", "value": "the platform's"}]
    source = {"secretKeyRef": {"name": "wandb", "key": "key"}}
    w = patched("worker", runtime, env=[{"name": "WANDB_API_KEY", "valueFrom": source}])
    (found,) = [one for one in main_of(pod_template(w, Role.WORKER))["env"] if one["name"] == "WANDB_API_KEY"]
    assert found == {
        "name": "WANDB_API_KEY",
        "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "key", "optional": False}},
    }


def test_each_kind_of_volume_is_mounted_in_the_main_container_of_that_role_alone() -> None:
    w = patched(
        "worker",
        volumes=[
            {"mountPath": "/data", "pvc": "corpus"},
            {"mountPath": "/mnt/out", "pvc": "results", "readOnly": False},
            {"mountPath": "/mnt/settings", "configMap": "settings"},
            {"mountPath": "/mnt/keys", "secret": "keys"},
        ],
    )
    spec = pod_template(w, Role.WORKER)["spec"]
    volumes = {volume.pop("name"): volume for volume in copy.deepcopy(spec["volumes"])}
    places = {place["mountPath"]: place for place in main_of({"spec": spec})["volumeMounts"]}
    sources = {path: volumes[places[path]["name"]] for path in ("/data", "/mnt/out", "/mnt/settings", "/mnt/keys")}
    assert sources == {
        "/data": {"persistentVolumeClaim": {"claimName": "corpus"}},
        "/mnt/out": {"persistentVolumeClaim": {"claimName": "results"}},
        "/mnt/settings": {"configMap": {"name": "settings"}},
        "/mnt/keys": {"secret": {"secretName": "keys", "defaultMode": 0o440}},
    }
    assert [path for path in sources if "readOnly" not in places[path]] == ["/mnt/out"]
    assert problems(spec) == []
    assert "corpus" not in str(pod_template(w, Role.TRAINER))


def test_a_claim_that_a_pod_has_already_is_one_volume() -> None:
    w = patched("worker", volumes=[{"mountPath": "/data", "pvc": "inputs"}])
    spec = pod_template(w, Role.WORKER)["spec"]
    claims = [v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"] if "persistentVolumeClaim" in v]
    assert sorted(claims) == ["digits-run", "inputs"]
    names = [place["name"] for place in main_of({"spec": spec})["volumeMounts"] if place["mountPath"] != "/tmp"]
    assert names.count("claim-0") == 2


def test_volumes_of_tools_are_in_the_pods_that_prepare_and_finish() -> None:
    w = patched("tools", volumes=[{"mountPath": "/mnt/raw", "pvc": "raw"}])
    for batch in (prepare_job(w), finish_job(w)):
        assert "/mnt/raw" in str(batch["spec"]["template"]["spec"]["containers"])


@pytest.mark.parametrize(
    ("role", "volume", "words"),
    [
        (Role.TRAINER, {"mountPath": "/mnt/run", "pvc": "digits-run"}, "digits-run is the run's own claim"),
        (Role.WORKER, {"mountPath": "/mnt/redis", "pvc": "digits-redis"}, "digits-redis is the run's own claim"),
        (Role.REDIS, {"mountPath": "/data", "pvc": "corpus"}, "/data is in the way of /data"),
        (Role.REDIS, {"mountPath": "/data/more", "pvc": "corpus"}, "/data/more is in the way of /data"),
        (Role.TRAINER, {"mountPath": "/areal/run/x", "pvc": "corpus"}, "/areal/run/x is in the way of /areal/run"),
    ],
)
def test_what_would_hide_or_reach_the_runs_own_files_is_refused(role: Role, volume: Json, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"spec\.podTemplate\.{role}\.volumes: {words}"):
        pod_template(patched(f"{role}", volumes=[volume]), role)


def test_a_shared_claim_of_the_run_is_the_runs_own_too() -> None:
    values = with_pod_template(large(), worker={"volumes": [{"mountPath": "/mnt/x", "pvc": "shared"}]})
    with pytest.raises(ConfigError, match="shared is the run's own claim"):
        pod_template(wanted(values, GPU_RUNTIME, recipe=None), Role.WORKER)


def test_a_platforms_mount_gives_way_to_the_jobs_at_the_same_path_and_keeps_its_own_volume() -> None:
    runtime = copy.deepcopy(CPU_RUNTIME)
    main = runtime["template"]["spec"]["containers"][0]
    main["volumeMounts"] = [{"name": "given-0", "mountPath": "/cache"}, {"name": "scratch", "mountPath": "/scratch"}]
    runtime["template"]["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}, {"name": "given-0", "emptyDir": {}}]
    w = patched("worker", runtime, volumes=[{"mountPath": "/scratch", "pvc": "corpus"}])
    spec = pod_template(w, Role.WORKER)["spec"]
    places = {place["mountPath"]: place["name"] for place in main_of({"spec": spec})["volumeMounts"]}
    assert (places["/scratch"], places["/cache"]) == ("claim-0", "given-0")
    assert {"name": "scratch", "emptyDir": {}} in spec["volumes"]


def test_scheduling_is_added_to_the_jobs_affinity() -> None:
    values = large()
    own = {**nodes(term("zone", "a")), "podAntiAffinity": {REQUIRED: [{"topologyKey": "rack"}]}}
    values["spec"]["podTemplate"]["trainer"]["affinity"] = own
    affinity = pod_template(wanted(values, GPU_RUNTIME, recipe=None), Role.TRAINER)["spec"]["affinity"]
    assert affinity["nodeAffinity"] == own["nodeAffinity"]
    assert affinity["podAntiAffinity"][REQUIRED][0] == {"topologyKey": "rack"}
    assert len(affinity["podAntiAffinity"][REQUIRED]) == 2
    assert len(affinity["podAffinity"][PREFERRED]) == 1


def under(platform: Json, own: Json) -> Json:
    runtime = copy.deepcopy(CPU_RUNTIME)
    runtime["template"]["spec"]["affinity"] = platform
    found: Json = pod_template(patched("worker", runtime, affinity=own), Role.WORKER)["spec"]["affinity"]
    return found


def test_a_jobs_nodes_are_among_the_platforms() -> None:
    found = under(nodes(term("pool", "a"), term("pool", "b")), nodes(term("zone", "x"), term("zone", "y")))
    terms = found["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    said = [[(one["key"], one["values"][0]) for one in each["matchExpressions"]] for each in terms]
    assert said == [
        [("pool", "a"), ("zone", "x")],
        [("pool", "a"), ("zone", "y")],
        [("pool", "b"), ("zone", "x")],
        [("pool", "b"), ("zone", "y")],
    ]


def test_preferences_of_both_count_and_a_requirement_of_one_stays() -> None:
    like, want = {"weight": 1, "preference": term("a", "1")}, {"weight": 2, "preference": term("b", "2")}
    platform = {"nodeAffinity": {**nodes(term("pool", "a"))["nodeAffinity"], PREFERRED: [like]}}
    found = under(platform, {"nodeAffinity": {PREFERRED: [want]}})["nodeAffinity"]
    assert found[PREFERRED] == [like, want]
    assert found[REQUIRED]["nodeSelectorTerms"] == [term("pool", "a")]
    assert under(platform, {"podAffinity": {REQUIRED: []}})["nodeAffinity"] == platform["nodeAffinity"]


@pytest.mark.parametrize(
    "odd", [{REQUIRED: "zone"}, {REQUIRED: {"nodeSelectorTerms": ["zone"]}}, {REQUIRED: {"nodeSelectorTerms": 1}}]
)
def test_an_affinity_of_another_shape_is_a_mistake_of_the_jobs(odd: Json) -> None:
    with pytest.raises(ConfigError, match=r"spec\.podTemplate\.worker\.affinity\.nodeAffinity"):
        under(nodes(term("pool", "a")), {"nodeAffinity": odd})


def test_a_spread_counts_the_roles_own_pods_unless_it_says_which() -> None:
    zone = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    rack = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}
    own = {"labelSelector": {"matchLabels": {"foo": "bar"}}}
    w = patched("worker", topologySpreadConstraints=[zone, {**rack, **own}])
    assert pod_template(w, Role.WORKER)["spec"]["topologySpreadConstraints"] == [
        {"labelSelector": {"matchLabels": {"areal.dev/rljob": "digits", "areal.dev/role": "worker"}}, **zone},
        {**own, **rack},
    ]


@pytest.mark.parametrize("device", ["amd.com/gpu", "nvidia.com/mig-3g.40gb"])
def test_gpus_have_the_runtimes_name(device: str) -> None:
    w = wanted(large(), {**GPU_RUNTIME, "devices": {"name": device}}, recipe=None)
    for role, count in ((Role.TRAINER, "8"), (Role.GENERATION, "2")):
        resources = main_of(pod_template(w, role))["resources"]
        assert resources["limits"][device] == resources["requests"][device] == count
        assert "nvidia.com/gpu" not in resources["limits"]


def test_gpus_of_a_device_class_are_claimed_and_no_plugin_is_asked() -> None:
    model = 'device.attributes["gpu.nvidia.com"].productName.startsWith("NVIDIA H100")'
    given = {"deviceClass": "gpu.nvidia.com", "selectors": [model]}
    w = wanted(large(), {**GPU_RUNTIME, "devices": given}, recipe=None)
    claims = {one["metadata"]["name"]: one for one in workloads(w) if one["kind"] == "ResourceClaimTemplate"}
    assert len(claims) == 2
    for role, count in ((Role.TRAINER, 8), (Role.GENERATION, 2)):
        template = pod_template(w, role)
        resources = main_of(template)["resources"]
        asked = [name for kind in ("limits", "requests") for name in resources.get(kind, {})]
        assert not [name for name in asked if "gpu" in name]
        assert resources["claims"] == [{"name": "gpus"}]
        (claim,) = template["spec"]["resourceClaims"]
        assert claim["name"] == "gpus"
        assert template["metadata"]["labels"]["areal.dev/claimed-gpus"] == str(count)
        (request,) = claims[claim["resourceClaimTemplateName"]]["spec"]["spec"]["devices"]["requests"]
        wanted_devices = {
            "deviceClassName": "gpu.nvidia.com",
            "count": count,
            "selectors": [{"cel": {"expression": model}}],
        }
        assert request == {"name": "gpus", "exactly": wanted_devices}
    assert "resourceClaims" not in pod_template(w, Role.CONTROLLER)["spec"]


def test_another_number_of_claimed_gpus_has_another_template_of_claims() -> None:
    """A suspended job may change it, and Kubernetes lets nobody change a template."""
    values = large()
    made = {}
    for count in (8, 4):
        values["spec"]["trainer"]["gpus"] = count
        w = wanted(values, {**GPU_RUNTIME, "devices": {"deviceClass": "gpu.nvidia.com"}}, recipe=None)
        (claim,) = pod_template(w, Role.TRAINER)["spec"]["resourceClaims"]
        name = claim["resourceClaimTemplateName"]
        (template,) = (one for one in workloads(w) if one["metadata"]["name"] == name)
        (request,) = template["spec"]["spec"]["devices"]["requests"]
        made[name] = request["exactly"]["count"]
    assert sorted(made.values()) == [4, 8]


def test_a_trainer_of_several_pods_has_a_group_where_the_cluster_has_them() -> None:
    values = large()
    values["spec"]["trainer"]["replicas"] = 4
    w = wanted(values, {**GPU_RUNTIME, "podGroups": "v1alpha2"}, recipe=None)
    made = {(one["kind"], one["metadata"]["name"]): one for one in workloads(w)}
    name = f"{w.name}-trainer-4"
    group = made["PodGroup", name]
    assert group["apiVersion"] == "scheduling.k8s.io/v1alpha2"
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 4}}}
    assert group["metadata"]["ownerReferences"][0]["uid"] == w.uid
    templates = {key: one["spec"]["template"]["spec"] for key, one in made.items() if "template" in one["spec"]}
    of_groups = {key: spec["schedulingGroup"] for key, spec in templates.items() if "schedulingGroup" in spec}
    assert of_groups == {("StatefulSet", f"{w.name}-trainer"): {"podGroupName": name}}
    alone = {**values, "spec": {**values["spec"], "trainer": {**values["spec"]["trainer"], "replicas": 1}}}
    for others in (replace(w, replicas={**w.replicas, "trainer": 0}), wanted(values, GPU_RUNTIME, recipe=None),
                   wanted(alone, {**GPU_RUNTIME, "podGroups": "v1alpha2"}, recipe=None)):  # fmt: skip
        assert not [one for one in workloads(others) if one["kind"] == "PodGroup"]
        assert "schedulingGroup" not in str(workloads(others))


def test_an_engine_s_own_container_has_the_claim() -> None:
    runtime = {**GPU_RUNTIME, "devices": {"deviceClass": "gpu.nvidia.com"}, "engineImage": "lmsysorg/sglang:v0.5.23"}
    template = pod_template(wanted(large(), runtime, recipe=None), Role.GENERATION)
    by_name = {one["name"]: one.get("resources", {}) for one in template["spec"]["containers"]}
    assert [name for name, resources in by_name.items() if resources.get("claims")] == ["engine"]


def test_gpus_of_a_runtime_that_a_job_has_no_use_for_are_refused_by_their_name() -> None:
    runtime = copy.deepcopy(CPU_RUNTIME) | {"devices": {"name": "amd.com/gpu"}}
    main = runtime["roles"]["trainer"]["template"]["spec"]["containers"][0]
    main["resources"] = {"limits": {"amd.com/gpu": 1}}
    with pytest.raises(ConfigError, match=r"the runtime gives trainer pods amd\.com/gpu: 1, and trainer\.gpus is 0"):
        pod_template(wanted(quickstart(), runtime), Role.TRAINER)
