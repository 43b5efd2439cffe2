"""The objects of a job: valid in every supported Kubernetes, confined, found by their selectors, always the same."""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from areal.errors import ConfigError
from areal.plan.cluster_names import Role, pod_host
from areal.plan.resolved import ResolvedJob
from areal.plan.role_specs import batch_jobs, spec_of
from areal.spec.runtime import RuntimeSpec
from areal_operator.operator.children import (
    JobBlueprint,
    access_secret,
    finish_job,
    foundation,
    prepare_job,
    read_snapshot,
    snapshot_hash,
    workloads,
)
from kubernetes_validate import utils as schemas
from support.cluster_jobs import (
    CPU_RUNTIME,
    GPU_RUNTIME,
    NAMESPACE,
    UID,
    large,
    large_wanted,
    quickstart,
    quickstart_wanted,
    wanted,
)
from support.restricted import containers, problems

Json = dict[str, Any]

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = ("1.29", "1.31", "1.33", "1.35", "1.37")
JOBS = {"quickstart": quickstart_wanted, "large": large_wanted}


def everything(w: JobBlueprint) -> list[Json]:
    """All objects of a job, in the order in which they come into being."""
    secret = access_secret(w, lambda: "not-random")
    return [*foundation(w), secret, prepare_job(w), *workloads(w), finish_job(w)]


def pods_of(w: JobBlueprint) -> dict[str, Json]:
    """Role → its pods' template."""
    made = [*workloads(w), prepare_job(w), finish_job(w)]
    with_pods = [one for one in made if "template" in one.get("spec", {})]
    return {one["metadata"]["labels"]["areal.dev/role"]: one["spec"]["template"] for one in with_pods}


def main_of(template: Json) -> Json:
    found: Json = next(c for c in template["spec"]["containers"] if c["name"] == "main")
    return found


@pytest.fixture(params=JOBS, name="w")
def job(request: pytest.FixtureRequest) -> JobBlueprint:
    """Each of the two jobs."""
    return JOBS[request.param]()


def only(objects: list[Json], kind: str, name: str = "") -> Json:
    found = [one for one in objects if one["kind"] == kind and name in ("", one["metadata"]["name"])]
    assert len(found) == 1
    return found[0]


def job_files_of(objects: list[Json]) -> Json:
    """The ConfigMap that pods read at start."""
    (found,) = (one for one in objects if one["kind"] == "ConfigMap" and "resolved.json" in one["data"])
    return found


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def as_reviewed(name: str, made: list[Json]) -> None:
    """Compare with a golden file; UPDATE_GOLDEN=1 writes it anew."""
    text = yaml.dump_all(made, Dumper=_Plain, sort_keys=False, width=120)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert list(yaml.safe_load_all(path.read_text())) == made, "look at the change, then UPDATE_GOLDEN=1"


def shown(w: JobBlueprint, monkeypatch: pytest.MonkeyPatch) -> list[Json]:
    """A job's objects as a golden file has them."""
    monkeypatch.setattr("areal_operator.operator.children.files.job_files", lambda job, _: f"{job}-job-0123456789ab")
    made = everything(w)
    job_files_of(made)["data"]["resolved.json"] = "the resolved job, which tests of its own are about\n"
    return made


@pytest.mark.parametrize("name", JOBS)
def test_the_children_are_as_reviewed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of a child shows as a change of these files."""
    as_reviewed(name, shown(JOBS[name](), monkeypatch))


def test_what_a_weight_group_changes_is_as_reviewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers reach the trainer, which sends them weights, and what asks for the mode is in no other object."""
    made = {}
    for mode in ("SharedVolume", "Group", "Auto"):
        values = quickstart()
        values["spec"]["weightSync"] = {"mode": mode}
        made[mode] = shown(wanted(values, CPU_RUNTIME), monkeypatch)
    assert made["Auto"] == made["Group"], "one trainer process, no adapters"
    volume = made["SharedVolume"]
    as_reviewed("group", [one for one in made["Group"] if one not in volume])
    assert [one["metadata"]["name"] for one in made["Group"]] == [one["metadata"]["name"] for one in volume]


def test_the_same_job_gives_the_same_objects_in_the_same_order() -> None:
    for make in JOBS.values():
        assert json.dumps(everything(make())) == json.dumps(everything(make()))


def test_building_changes_nothing_of_what_it_is_built_from() -> None:
    values, runtime = large(), copy.deepcopy(GPU_RUNTIME)
    w = wanted(values, runtime, recipe=None)
    everything(w)
    assert (values, runtime) == (large(), GPU_RUNTIME)
    assert w.runtime == RuntimeSpec.model_validate(GPU_RUNTIME)


@pytest.fixture(scope="module")
def schemas_read_once() -> Iterator[None]:
    """The library reads a megabyte of JSON for each object that it validates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schemas, "schema_contents", functools.cache(schemas.schema_contents))
        yield


@pytest.mark.usefixtures("schemas_read_once")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_child_is_valid_in_every_supported_kubernetes(w: JobBlueprint, version: str) -> None:
    children = everything(w)
    for one in children:
        kubernetes_validate.validate(one, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**children[0], "surely": "unknown"}, version, strict=True)


def test_every_pod_may_run_in_a_restricted_namespace(w: JobBlueprint) -> None:
    assert {role: problems(template["spec"]) for role, template in pods_of(w).items()} == {
        role: [] for role in pods_of(w)
    }


def test_every_container_has_a_read_only_root_and_no_kubernetes_token(w: JobBlueprint) -> None:
    for template in pods_of(w).values():
        assert template["spec"]["automountServiceAccountToken"] is False
        assert template["spec"]["enableServiceLinks"] is False
        for container in containers(template["spec"]):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_every_child_is_owned_by_the_job_and_labelled_with_it(w: JobBlueprint) -> None:
    owner = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "name": w.name, "uid": UID}
    for one in everything(w):
        metadata = one["metadata"]
        assert metadata["ownerReferences"] == [{**owner, "controller": True, "blockOwnerDeletion": True}]
        assert metadata["namespace"] == NAMESPACE
        assert metadata["labels"]["areal.dev/rljob"] == w.name
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "areal-operator"


def test_no_two_children_have_the_same_kind_and_name(w: JobBlueprint) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in everything(w)]
    assert len(set(names)) == len(names)


def test_all_names_fit_a_label_for_the_longest_job_name_and_the_largest_fleet() -> None:
    values = {**quickstart(), "metadata": {"name": "j" + "x" * 39}}
    w = wanted(values, CPU_RUNTIME)
    for one in everything(w):
        name = one["metadata"]["name"]
        assert len(name) <= 63
        if one["kind"] == "StatefulSet":
            assert len(f"{name}-{'c' * 10}") <= 63, "controller-revision-hash is a label, too"
            assert len(f"{name}-1023") <= 63


def _ports(value: Any) -> Iterator[Json]:
    """Every port of a container, a Service or a policy."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "ports" and isinstance(inner, list):
                yield from inner
            yield from _ports(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _ports(inner)


def test_every_port_names_its_protocol(w: JobBlueprint) -> None:
    ports = [port for one in everything(w) for port in _ports(one)]
    assert ports
    assert all(port.get("protocol") in ("TCP", "UDP") for port in ports)


def test_variables_volumes_mounts_and_ports_are_unique_in_their_container(w: JobBlueprint) -> None:
    for template in pods_of(w).values():
        spec = template["spec"]
        volumes = [volume["name"] for volume in spec["volumes"]]
        assert len(set(volumes)) == len(volumes)
        for container in containers(spec):
            env = [variable["name"] for variable in container.get("env", [])]
            paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
            ports = [(port["containerPort"], port["protocol"]) for port in container.get("ports", [])]
            for keys in (env, paths, ports):
                assert len(set(keys)) == len(keys)
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= set(volumes)


def test_every_volume_is_mounted_and_no_claim_is_in_a_pod_twice(w: JobBlueprint) -> None:
    for role, template in pods_of(w).items():
        spec = template["spec"]
        mounted = {mount["name"] for c in containers(spec) for mount in c.get("volumeMounts", [])}
        assert {volume["name"] for volume in spec["volumes"]} == mounted, role
        claims = [v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"] if "persistentVolumeClaim" in v]
        assert len(set(claims)) == len(claims), "a kubelet waits for ever for the second volume of a claim"


def test_no_mount_lies_inside_a_read_only_one(w: JobBlueprint) -> None:
    """The runtime could not make its mount point there."""
    for template in pods_of(w).values():
        mounts = main_of(template)["volumeMounts"]
        for outer in (mount for mount in mounts if mount.get("readOnly")):
            inside = [m for m in mounts if m["mountPath"].startswith(outer["mountPath"] + "/")]
            assert inside == []


def test_every_selector_finds_the_pods_of_its_role_and_no_others(w: JobBlueprint) -> None:
    labels = {role: template["metadata"]["labels"] for role, template in pods_of(w).items()}
    selecting = [one for one in everything(w) if one["kind"] != "Job" and "spec" in one]
    checked = 0
    for one in selecting:
        spec = one["spec"]
        found = spec.get("selector") or spec.get("podSelector")
        if found is None:
            continue
        wanted_labels = found.get("matchLabels", found)
        matching = {role for role, have in labels.items() if wanted_labels.items() <= have.items()}
        assert matching == {one["metadata"]["labels"]["areal.dev/role"]}
        checked += 1
    assert checked > 3 * len(w.roles)


def test_the_gang_s_first_member_has_the_address_that_ranks_are_told(w: JobBlueprint) -> None:
    trainer = only(everything(w), "StatefulSet", f"{w.name}-trainer")
    service = only(everything(w), "Service", trainer["spec"]["serviceName"])
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    host = pod_host(w.name, NAMESPACE, Role.TRAINER, 0)
    assert host == f"{trainer['metadata']['name']}-0.{service['metadata']['name']}.{NAMESPACE}.svc"
    assert w.resolved.endpoints.rendezvous == f"{host}:29500"


def test_every_address_in_the_resolved_job_is_a_service_with_that_port(w: JobBlueprint) -> None:
    ends = w.resolved.endpoints
    services = {one["metadata"]["name"]: one["spec"] for one in everything(w) if one["kind"] == "Service"}
    fronts = [url.removeprefix("http://") for url in ends.gateway_urls]
    for address in filter(None, (ends.controller, ends.redis, ends.reward, ends.reward_custom, *fronts)):
        host, _, port = address.rpartition(":")
        name, namespace, kind = host.split(".")
        assert (namespace, kind) == (NAMESPACE, "svc")
        assert [one["targetPort"] for one in services[name]["ports"] if one["port"] == int(port)] == [int(port)]
        assert "clusterIP" not in services[name], "its address must outlive its pod"


def test_a_pod_is_told_which_one_it_is(w: JobBlueprint) -> None:
    for role, template in pods_of(w).items():
        env = {variable["name"]: variable for variable in main_of(template)["env"]}
        assert env["AREAL_POD_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
        if role in ("redis", "generation", "trainer", "worker", "gateway"):
            path = "metadata.labels['apps.kubernetes.io/pod-index']"
            assert env["AREAL_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"] == path
        else:
            assert env["AREAL_INDEX"]["value"] == "0"


def test_a_pod_runs_its_role_s_command_and_listens_where_the_names_say(w: JobBlueprint) -> None:
    for role, template in pods_of(w).items():
        main = main_of(template)
        if role in batch_jobs():
            assert main["command"] == ["areal-role", role, "--job", "/areal/job/resolved.json"]
            assert "ports" not in main
            continue
        command = ["areal-launch", "--job", "/areal/job/resolved.json", "--role", role, "--port", "9001"]
        assert main["command"] == (["redis-server", "/areal/job/redis.conf"] if role == "redis" else command)
        public = {port for name, port in spec_of(Role(role)).pod_ports.items() if name != "engine"}
        launcher = set() if role == "redis" else {9001}
        assert {port["containerPort"] for port in main["ports"]} == public | launcher


def test_a_pod_has_more_time_to_end_than_its_role_takes(w: JobBlueprint) -> None:
    for role, template in pods_of(w).items():
        row = spec_of(Role(role))
        if row.runs_on:
            drain_s = row.drain_s if row.pod_drain_s is None else row.pod_drain_s
            assert template["spec"]["terminationGracePeriodSeconds"] >= drain_s + 20, role


def test_liveness_asks_the_launcher_and_never_the_role(w: JobBlueprint) -> None:
    for role, template in pods_of(w).items():
        main = main_of(template)
        if role in batch_jobs():
            assert not any(name.endswith("Probe") for name in main)
        elif role == "redis":
            assert main["livenessProbe"]["tcpSocket"] == {"port": 6379}
        else:
            assert main["livenessProbe"]["grpc"] == {"port": 9001}
            assert main["startupProbe"]["grpc"] == {"port": 9001}
            assert main["readinessProbe"]["grpc"] == {"port": 9001 if role == "trainer" else 9000}


def test_the_resolved_job_reaches_its_pods_unchanged(w: JobBlueprint) -> None:
    files = job_files_of(everything(w))["data"]
    assert ResolvedJob.model_validate_json(files["resolved.json"]) == w.resolved


def test_no_secret_is_in_a_config_map() -> None:
    w = quickstart_wanted()
    secret = access_secret(w, lambda: "hunter2-hunter2")
    assert set(secret["data"]) == {
        "token.generation", "token.operator", "token.trainer", "token.worker", "digests.json", "session.key",
        "controller.password", "trainer.password", "worker.password", "users.acl",
    }  # fmt: skip
    with_secret = quickstart_wanted(secrets={"token.worker": "hunter2-hunter2", "worker.password": "hunter2-hunter2"})
    assert "hunter2" not in json.dumps(foundation(with_secret) + workloads(with_secret))


def test_every_secret_is_random_and_what_is_known_is_kept() -> None:
    first, second = access_secret(quickstart_wanted())["data"], access_secret(quickstart_wanted())["data"]
    passwords = [first[key] for key in sorted(first) if key not in ("users.acl", "digests.json")]
    assert len(set(passwords)) == len(passwords)
    assert not set(passwords) & set(second.values())
    kept = access_secret(quickstart_wanted(secrets={"token.worker": "mine"}))["data"]
    assert kept["token.worker"] == "bWluZQ=="
    digests = json.loads(base64.b64decode(kept["digests.json"]))
    assert digests["worker"] == hashlib.sha256(b"mine").hexdigest()
    assert len(set(digests.values())) == len(digests) == 4


def test_an_external_redis_has_no_pod_no_claim_and_no_password_of_ours() -> None:
    w = large_wanted()
    made = everything(w)
    assert not [one for one in made if one["metadata"]["name"] == "gsm8k-grpo-redis"]
    assert {key for key in only(made, "Secret")["data"] if "password" in key or "acl" in key} == set()
    assert "redis.conf" not in job_files_of(made)["data"]


def test_a_suspended_job_has_no_pods_and_keeps_everything_else() -> None:
    running = quickstart_wanted()
    suspended = quickstart_wanted(replicas=dict.fromkeys(running.replicas, 0))
    assert foundation(suspended) == foundation(running)
    before, after = workloads(running), workloads(suspended)
    assert [one["spec"]["replicas"] for one in after if "replicas" in one["spec"]] == [0] * 6
    for one in [*before, *after]:
        one["spec"].pop("replicas", None)
    assert before == after, "pods come back as they were"


def test_only_the_operator_replaces_pods_that_hold_a_model() -> None:
    sets = {one["metadata"]["name"]: one["spec"] for one in workloads(large_wanted()) if one["kind"] == "StatefulSet"}
    strategies = {name: spec["updateStrategy"]["type"] for name, spec in sets.items()}
    assert strategies == {
        "gsm8k-grpo-generation": "OnDelete",
        "gsm8k-grpo-trainer": "OnDelete",
        "gsm8k-grpo-worker": "RollingUpdate",
        "gsm8k-grpo-gateway": "RollingUpdate",
    }
    assert {spec["podManagementPolicy"] for spec in sets.values()} == {"Parallel"}


def test_a_claim_is_made_as_the_job_says_then_as_the_runtime_says() -> None:
    values = quickstart()
    values["spec"]["storage"] = {"size": "50Gi"}
    runtime = {**CPU_RUNTIME, "storage": {"storageClassName": "fast", "accessMode": "ReadWriteOnce", "size": "1Gi"}}
    claim = only(foundation(wanted(values, runtime)), "PersistentVolumeClaim", "digits-run")
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "50Gi"}},
        "storageClassName": "fast",
    }


def test_a_named_claim_is_used_and_none_is_made() -> None:
    w = large_wanted()
    assert not [one for one in foundation(w) if one["kind"] == "PersistentVolumeClaim"]
    volumes = {volume["name"]: volume for volume in pods_of(w)["trainer"]["spec"]["volumes"]}
    assert volumes["run"] == {"name": "run", "persistentVolumeClaim": {"claimName": "shared"}}


def test_redis_claim_grows_with_the_budget_and_never_shrinks() -> None:
    def asked(budget: str, has: int) -> str:
        values = quickstart()
        values["spec"]["replay"] = {"budgetBytes": budget}
        made = foundation(wanted(values, CPU_RUNTIME, redis_bytes=has))
        return str(only(made, "PersistentVolumeClaim", "digits-redis")["spec"]["resources"]["requests"]["storage"])

    assert asked("2Gi", 0) == "8Gi"
    assert asked("64Mi", 0) == "1Gi"
    assert asked("64Mi", 8 << 30) == "8Gi"


def test_redis_may_use_more_memory_than_it_allows_itself() -> None:
    conf = job_files_of(foundation(quickstart_wanted()))["data"]["redis.conf"]
    maxmemory = int(dict(line.split(" ", 1) for line in conf.splitlines())["maxmemory"])
    limit = main_of(pods_of(quickstart_wanted())["redis"])["resources"]["limits"]["memory"]
    assert limit == "6208Mi"
    assert 2 * maxmemory <= 6208 << 20


def test_the_snapshot_gives_the_runtime_back_and_its_hash_tells_runtimes_apart() -> None:
    w = large_wanted()
    config_map = only(foundation(w), "ConfigMap", "gsm8k-grpo-runtime")
    read = read_snapshot(config_map)
    assert read == w.runtime
    assert snapshot_hash(read) == snapshot_hash(w.runtime)
    assert snapshot_hash(w.runtime) != snapshot_hash(quickstart_wanted().runtime)


def test_a_damaged_snapshot_is_refused_with_its_name() -> None:
    with pytest.raises(ConfigError, match="digits-runtime"):
        read_snapshot({"metadata": {"name": "digits-runtime"}, "data": {"runtime.json": "{"}})


def test_a_policy_with_a_teacher_alone_has_it_in_its_trainer_and_no_reward_pods() -> None:
    values = quickstart()
    spec = values["spec"]
    del spec["recipe"]
    spec["dataset"].pop("evaluation", None)
    teacher = {"path": "pvc://teachers/large"}
    spec["algorithm"] = {**spec["algorithm"], "name": "OnPolicyDistillation", "teacher": teacher}
    w = wanted(values, CPU_RUNTIME, recipe=None)
    assert "reward" not in pods_of(w)
    assert "reward-custom" not in pods_of(w)
    read = {mount["mountPath"] for mount in main_of(pods_of(w)["trainer"])["volumeMounts"]}
    assert "/areal/claims/teachers/large" in read


@pytest.mark.parametrize("training", ["SFT", "DPO", "RewardModel", "Distillation"])
def test_a_supervised_job_has_the_trainers_pods_alone(training: str) -> None:
    values = quickstart()
    kept = {name: value for name, value in values["spec"].items() if name in ("model", "dataset", "trainer", "storage")}
    teacher = {"teacher": {"path": "pvc://teachers/large"}} if training == "Distillation" else {}
    values["spec"] = {**kept, "training": {"name": training, "batchSize": 4, **teacher}}
    w = wanted(values, CPU_RUNTIME, recipe=None)
    assert pods_of(w).keys() == {"trainer", "prepare", "finish"}
    roles = {one["metadata"].get("labels", {}).get("areal.dev/role") for one in everything(w)}
    assert roles - {None} == pods_of(w).keys()
    read = {mount["mountPath"] for mount in main_of(pods_of(w)["trainer"])["volumeMounts"]}
    assert ("/areal/claims/teachers/large" in read) == bool(teacher)


def test_a_reward_model_has_pods_with_its_own_image_that_read_it_and_dial_nobody() -> None:
    values = quickstart()
    values["spec"].pop("recipe")
    values["spec"]["reward"] = {"verifier": "model", "model": {"path": "pvc://models/scores"}, "replicas": 2}
    values["spec"]["podTemplate"] = {"reward": {"resources": {"requests": {"memory": "9Gi"}}}}
    image = {"template": {"spec": {"containers": [{"name": "main", "image": "registry.test/areal-torch:0.1.0"}]}}}
    w = wanted(values, {**CPU_RUNTIME, "roles": {**CPU_RUNTIME["roles"], "rewardModel": image}}, recipe=None)
    assert {"reward", "reward-custom"}.isdisjoint(pods_of(w))
    main = main_of(pods_of(w)["reward-model"])
    assert main["image"] == "registry.test/areal-torch:0.1.0"
    assert main["resources"]["requests"]["memory"] == "9Gi"
    assert "limits" not in main["resources"]
    (read,) = [mount for mount in main["volumeMounts"] if mount["mountPath"] == "/areal/claims/models/scores"]
    assert read["readOnly"] is True
    assert "/areal/claims/models" in {mount["mountPath"] for mount in main_of(pods_of(w)["prepare"])["volumeMounts"]}
    named = {one["kind"]: one for one in everything(w) if one["metadata"]["name"] == "digits-reward-model"}
    assert named["Deployment"]["spec"]["replicas"] == 2
    sealed = named["NetworkPolicy"]["spec"]
    assert "Egress" in sealed["policyTypes"]
    assert "egress" not in sealed
    assert not [problem for one in everything(w) for problem in problems(one)]
