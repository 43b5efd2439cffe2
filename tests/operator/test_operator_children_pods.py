"""A role's pod: what the platform and the job may change of it, what nobody can, and what it sees."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from areal.errors import ConfigError
from areal.operator.children import Wanted, prepare_job, workloads
from areal.operator.children.pods import pod_template
from areal.plan.cluster_names import LONG_RUNNING, Role, launch_command, role_labels
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support.cluster_jobs import (
    CPU_RUNTIME,
    large_wanted,
    quickstart,
    quickstart_wanted,
    wanted,
    with_pod_template,
)
from support.restricted import problems

Json = dict[str, Any]


def main_of(template: Json) -> Json:
    found: Json = next(c for c in template["spec"]["containers"] if c["name"] == "main")
    return found


def patched(role: str = "trainer", **fields: Any) -> Wanted:
    """The quickstart with a podTemplate of one role."""
    return wanted(with_pod_template(quickstart(), **{role: fields}), CPU_RUNTIME)


def under(runtime_spec: Json, *, role: str = "", **container: Any) -> Wanted:
    """The quickstart under a runtime with this pod spec, and these fields of the container main."""
    runtime = copy.deepcopy(CPU_RUNTIME)
    template = runtime["roles"].setdefault(role, {"template": {}})["template"] if role else runtime["template"]
    spec = template.setdefault("spec", {})
    spec.update(runtime_spec)
    if container:
        mains = spec.setdefault("containers", [{"name": "main"}])
        mains[0].update(container)
    return wanted(quickstart(), runtime)


def mounted(w: Wanted, role: Role) -> dict[str, str]:
    """Path → what is there: `volume:subPath`, and `ro` when it can't be written."""
    found = {}
    for mount in main_of(pod_template(w, role))["volumeMounts"]:
        place = mount["name"] + (f":{mount['subPath']}" if "subPath" in mount else "")
        found[mount["mountPath"]] = f"{place} ro" if mount.get("readOnly") else place
    return found


# What each role sees


def test_workers_reach_nothing_of_the_run_directory_but_the_recipe_and_their_trajectories() -> None:
    run = "run:rljobs/digits-5f0c9a52"
    assert mounted(quickstart_wanted(), Role.WORKER) == {
        "/tmp": "tmp",
        "/areal/job": "job ro",
        "/areal/access": "access ro",
        "/areal/run/recipe": f"{run}/recipe ro",
        "/areal/run/trajectories": f"{run}/trajectories",
        "/areal/claims/inputs/digits/model": "claim-0:digits/model ro",
    }


def test_a_generation_pod_reads_weights_and_the_model_and_writes_nothing_that_lasts() -> None:
    run = "run:rljobs/digits-5f0c9a52"
    assert mounted(quickstart_wanted(), Role.GENERATION) == {
        "/tmp": "tmp",
        "/dev/shm": "shm",
        "/areal/job": "job ro",
        "/areal/access": "access ro",
        "/areal/run/weights": f"{run}/weights ro",
        "/areal/claims/inputs/digits/model": "claim-0:digits/model ro",
    }


def test_the_recipe_s_reward_reads_the_recipe_only() -> None:
    assert mounted(quickstart_wanted(), Role.REWARD_CUSTOM) == {
        "/tmp": "tmp",
        "/areal/job": "job ro",
        "/areal/access": "access ro",
        "/areal/run/recipe": "run:rljobs/digits-5f0c9a52/recipe ro",
    }


def test_a_built_in_verifier_sees_no_volume_of_the_run() -> None:
    values = quickstart()
    values["spec"]["reward"] = {"verifier": "exact"}
    assert mounted(wanted(values, CPU_RUNTIME), Role.REWARD) == {
        "/tmp": "tmp",
        "/areal/job": "job ro",
        "/areal/access": "access ro",
    }


def test_redis_sees_its_configuration_its_access_rules_and_its_data() -> None:
    assert mounted(quickstart_wanted(), Role.REDIS) == {
        "/tmp": "tmp",
        "/areal/job": "job ro",
        "/areal/access": "access ro",
        "/data": "data",
    }


def test_controller_and_trainer_have_the_whole_run_directory() -> None:
    for role in (Role.CONTROLLER, Role.TRAINER):
        assert mounted(quickstart_wanted(), role)["/areal/run"] == "run:rljobs/digits-5f0c9a52"


def test_prepare_sees_every_named_claim_whole_and_the_recipe_s_config_map() -> None:
    assert mounted(quickstart_wanted(), Role.PREPARE) == {
        "/tmp": "tmp",
        "/areal/job": "job ro",
        "/areal/recipe": "recipe ro",
        "/areal/run": "run:rljobs/digits-5f0c9a52",
        "/areal/claims/inputs": "claim-0 ro",
    }


def test_a_claim_that_is_the_run_s_and_an_input_s_is_one_volume() -> None:
    assert mounted(large_wanted(), Role.TRAINER) == {
        "/tmp": "tmp",
        "/dev/shm": "shm",
        "/areal/job": "job ro",
        "/areal/access": "access ro",
        "/areal/run": "run:rljobs/gsm8k-grpo-5f0c9a52",
        "/areal/claims/models/qwen3-8b": "claim-0:qwen3-8b ro",  # holds the tokenizer, too
        "/areal/claims/shared/hooks.py": "run:hooks.py ro",
    }


def _secrets(w: Wanted, role: Role) -> dict[str, list[str]]:
    """Secret → the files that a role gets of it."""
    found: dict[str, list[str]] = {}
    for volume in pod_template(w, role)["spec"]["volumes"]:
        assert "secret" not in volume
        for source in volume.get("projected", {}).get("sources", []):
            assert source["secret"]["items"], "without items a pod would see the whole Secret"
            found[source["secret"]["name"]] = [item["path"] for item in source["secret"]["items"]]
    return found


@pytest.mark.parametrize(
    ("role", "files"),
    [
        (Role.CONTROLLER, ["token", "controller.password"]),
        (Role.TRAINER, ["token", "trainer.password"]),
        (Role.WORKER, ["token", "worker.password"]),
        (Role.GENERATION, ["token"]),
        (Role.REWARD_CUSTOM, ["token"]),
        (Role.REDIS, ["users.acl"]),
    ],
)
def test_a_role_gets_its_own_items_of_the_secret_only(role: Role, files: list[str]) -> None:
    assert _secrets(quickstart_wanted(), role) == {"digits-access": files}


@pytest.mark.parametrize("role", [Role.PREPARE, Role.FINISH])
def test_tools_get_no_secret(role: Role) -> None:
    assert _secrets(quickstart_wanted(), role) == {}


def test_with_an_external_redis_a_role_gets_its_own_url_only() -> None:
    w = large_wanted()
    assert _secrets(w, Role.WORKER) == {"gsm8k-grpo-access": ["token"], "our-redis": ["worker.url"]}
    assert _secrets(w, Role.GENERATION) == {"gsm8k-grpo-access": ["token"]}
    assert str(w.resolved.redis_urls["worker"]) == "/areal/access/worker.url"


def test_no_secret_is_in_the_environment() -> None:
    for role in quickstart_wanted().roles:
        for variable in main_of(pod_template(quickstart_wanted(), role))["env"]:
            assert "secretKeyRef" not in variable.get("valueFrom", {})


def test_the_run_directory_is_made_by_the_user_who_writes_to_it() -> None:
    job = prepare_job(quickstart_wanted())["spec"]["template"]
    maker = job["spec"]["initContainers"][0]
    assert maker["command"] == [
        "mkdir", "-p", "-m", "2775", "/areal/volume/rljobs", "/areal/volume/rljobs/digits-5f0c9a52",
    ]  # fmt: skip
    assert maker["volumeMounts"] == [{"name": "run", "mountPath": "/areal/volume"}]
    assert maker["image"] == main_of(job)["image"]


# What the job may change


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
    plain, changed = quickstart_wanted(), patched(labels={"team": "a"})
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


@settings(max_examples=40, deadline=None)
@given(patch=_PATCHES, role=st.sampled_from(["worker", "rewardCustom", "trainer"]))
def test_no_patch_of_a_job_changes_security_volumes_command_or_identity(patch: Json, role: str) -> None:
    plain, changed = quickstart_wanted(), patched(role, **patch)
    for one in plain.roles:
        before, after = pod_template(plain, one), pod_template(changed, one)
        for field in ("securityContext", "volumes", "serviceAccountName", "automountServiceAccountToken"):
            assert before["spec"][field] == after["spec"][field]
        for field in ("securityContext", "command", "volumeMounts", "image", "ports", "livenessProbe"):
            assert main_of(before)[field] == main_of(after)[field]
        assert before["metadata"]["labels"].items() <= after["metadata"]["labels"].items()
        assert problems(after["spec"]) == []


# What the platform may change, and what it can't


def test_the_platform_may_loosen_confinement_of_one_role() -> None:
    context = {"readOnlyRootFilesystem": False, "capabilities": {"add": ["IPC_LOCK"]}}
    w = under({"securityContext": {"runAsUser": 1000}}, role="trainer", securityContext=context)
    trainer, worker = pod_template(w, Role.TRAINER), pod_template(w, Role.WORKER)
    assert main_of(trainer)["securityContext"]["readOnlyRootFilesystem"] is False
    assert main_of(trainer)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert trainer["spec"]["securityContext"]["runAsUser"] == 1000
    assert worker["spec"]["securityContext"]["runAsUser"] == 65532
    assert problems(worker["spec"]) == []


def test_null_leaves_the_user_to_the_cluster() -> None:
    """As OpenShift wants it, which gives every namespace a range of users."""
    w = under({"securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}})
    security = pod_template(w, Role.WORKER)["spec"]["securityContext"]
    assert security.keys() == {"runAsNonRoot", "fsGroupChangePolicy", "seccompProfile"}


def test_a_container_of_the_platform_starts_as_confined_as_ours() -> None:
    w = under({"initContainers": [{"name": "warm", "image": "warm:1", "restartPolicy": "Always"}]}, role="worker")
    spec = pod_template(w, Role.WORKER)["spec"]
    assert [c["name"] for c in spec["initContainers"]] == ["warm"]
    assert problems(spec) == []
    assert "/areal/access" not in str(spec["initContainers"])


def test_a_role_s_template_wins_over_the_one_for_all() -> None:
    runtime = copy.deepcopy(CPU_RUNTIME)
    runtime["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": "all"}, {"name": "B", "value": "all"}]
    runtime["roles"]["trainer"]["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": "trainer"}]
    w = wanted(with_pod_template(quickstart(), trainer={"env": [{"name": "B", "value": "job"}]}), runtime)
    env = {one["name"]: one.get("value") for one in main_of(pod_template(w, Role.TRAINER))["env"]}
    assert (env["A"], env["B"]) == ("trainer", "job")


def test_a_platform_gives_more_time_to_end_but_not_less() -> None:
    for asked, given_s in ((1, 660), (900, 900)):
        w = under({"terminationGracePeriodSeconds": asked}, role="trainer")
        assert pod_template(w, Role.TRAINER)["spec"]["terminationGracePeriodSeconds"] == given_s


def test_a_runtime_without_an_image_is_refused_with_the_field() -> None:
    w = wanted(quickstart(), {"roles": {"worker": {"template": CPU_RUNTIME["template"]}}})
    pod_template(w, Role.WORKER)
    with pytest.raises(ConfigError, match="no image for trainer") as refusal:
        pod_template(w, Role.TRAINER)
    assert "spec.roles.trainer.template" in refusal.value.fix


def test_a_runtime_that_sets_what_is_the_operator_s_is_refused_with_the_field() -> None:
    with pytest.raises(ConfigError, match=r"the runtime's spec\.template\.spec\.containers\[main\]\.env\[0\]\.name"):
        pod_template(under({}, env=[{"name": "AREAL_INDEX", "value": "7"}]), Role.WORKER)


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 5) | st.sampled_from(["", "a", "/tmp", "/areal/run"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["name", "mountPath", "value", "limits", "memory", "drop"]), inner, max_size=2
        )
    ),
    max_leaves=5,
)
_MOUNTS = st.lists(
    st.fixed_dictionaries(
        {"mountPath": st.sampled_from(["/areal/run", "/areal/access/token", "/areal", "/data", "/tmp", "/x"])},
        optional={
            "name": st.sampled_from(["run", "tmp", "access"]),
            "subPath": st.just(".."),
            "readOnly": st.booleans(),
        },
    )
)
_MAP = st.dictionaries(st.sampled_from(["limits", "requests", "grpc", "runAsUser", "capabilities"]), _JUNK, max_size=2)


def _runtimes(*, map_: st.SearchStrategy[Any], list_: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """Runtime templates whose maps and lists are drawn from these."""
    env = st.lists(st.fixed_dictionaries({"name": st.sampled_from(["HOME", "X"]), "value": st.just("1")}))
    port = st.fixed_dictionaries({"containerPort": st.sampled_from([9000, 8080])}, optional={"hostPort": st.just(80)})
    main = st.fixed_dictionaries(
        {"name": st.just("main"), "image": st.just("image:1")},
        optional={
            "command": _JUNK,
            "args": _JUNK,
            "env": env | list_,
            "ports": st.lists(port) | list_,
            "resources": st.just({"limits": {"memory": "1Gi"}}) | map_,
            "securityContext": _MAP | map_,
            "volumeMounts": _MOUNTS | list_,
            "livenessProbe": _MAP | map_,
        },
    )
    volume = st.fixed_dictionaries(
        {"name": st.sampled_from(["run", "access", "job", "mine"])}, optional={"hostPath": _JUNK}
    )
    spec = st.fixed_dictionaries(
        {"containers": st.lists(main, min_size=1, max_size=1)},
        optional={
            "volumes": st.lists(volume),
            "serviceAccountName": _JUNK,
            "automountServiceAccountToken": _JUNK,
            "restartPolicy": _JUNK,
            "terminationGracePeriodSeconds": _JUNK,
            "affinity": st.just({"podAffinity": {}}) | map_,
            "hostname": _JUNK,
            "nodeName": _JUNK,
            "tolerations": st.just([{"key": "gpu"}]) | list_,
            "securityContext": _MAP | map_,
            "enableServiceLinks": _JUNK,
        },
    )
    metadata = st.fixed_dictionaries({}, optional={"labels": st.just({"a": "b"}) | map_, "annotations": map_})
    return st.fixed_dictionaries({"spec": spec}, optional={"metadata": metadata})


@settings(max_examples=100, deadline=None)
@given(template=_runtimes(map_=_JUNK, list_=_JUNK), role=st.sampled_from([Role.TRAINER, Role.PREPARE]))
def test_a_malformed_runtime_is_refused_and_nothing_worse(template: Json, role: Role) -> None:
    with contextlib.suppress(ConfigError, ValidationError):
        pod_template(wanted(quickstart(), {"template": template}), role)


@settings(max_examples=100, deadline=None)
@given(
    template=_runtimes(map_=st.just({}), list_=st.just([])),
    role=st.sampled_from([role for role in LONG_RUNNING if role is not Role.REWARD]),
)
def test_what_is_the_operator_s_survives_every_runtime(template: Json, role: Role) -> None:
    made = pod_template(wanted(quickstart(), {"template": template}), role)
    plain = pod_template(quickstart_wanted(), role)
    spec, main = made["spec"], main_of(made)
    ours = {volume["name"]: volume for volume in plain["spec"]["volumes"] if volume["name"] not in ("tmp", "shm")}
    assert {volume["name"]: volume for volume in spec["volumes"] if volume["name"] in ours} == ours
    mounts = {m["mountPath"]: m for m in main["volumeMounts"] if m["mountPath"].startswith(("/areal", "/data"))}
    expected = {
        m["mountPath"]: m for m in main_of(plain)["volumeMounts"] if m["mountPath"].startswith(("/areal", "/data"))
    }
    assert {path: mount for path, mount in mounts.items() if role is Role.REDIS or path != "/data"} == expected
    assert main["command"] == launch_command(role)
    assert "args" not in main
    assert role_labels("digits", role).items() <= made["metadata"]["labels"].items()
    assert main["env"][:3] == main_of(plain)["env"][:3]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("digits", False)
    assert (spec["restartPolicy"], spec["enableServiceLinks"]) == ("Always", False)
    assert spec["terminationGracePeriodSeconds"] >= plain["spec"]["terminationGracePeriodSeconds"]
    assert not {"hostname", "nodeName"} & spec.keys()


# Placement


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


def test_a_trainer_is_drained_by_the_operator_only_and_a_quarter_of_the_servers_at_a_time() -> None:
    budgets = {one["metadata"]["name"]: one["spec"] for one in workloads(large_wanted()) if "Budget" in one["kind"]}
    assert {name: spec["maxUnavailable"] for name, spec in budgets.items()} == {
        "gsm8k-grpo-trainer": 0,
        "gsm8k-grpo-generation": "25%",
    }


def test_the_template_s_hash_changes_with_the_template_only() -> None:
    def marked(w: Wanted) -> str:
        return str(pod_template(w, Role.TRAINER)["metadata"]["annotations"]["areal.dev/template-hash"])

    assert marked(quickstart_wanted()) == marked(
        quickstart_wanted(replicas=dict.fromkeys(quickstart_wanted().replicas, 0))
    )
    assert marked(quickstart_wanted()) != marked(patched(env=[{"name": "X", "value": "1"}]))
