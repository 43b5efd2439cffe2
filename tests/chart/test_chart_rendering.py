"""The chart's objects: valid for every Kubernetes it claims, restricted, ready for server-side apply."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import kubernetes_validate
import pytest
import yaml
from areal.errors import ConfigError
from areal.plan.cluster_names import LABEL_JOB, LABEL_NAME, MANAGED_BY, Role
from areal.plan.role_specs import spec_of
from areal.spec.runtime import Runtime
from areal_operator.operator.main import namespace_labels
from chart.chart_rendering import (
    CHART,
    EVERYTHING,
    MATRIX,
    Object,
    containers,
    deployment_of,
    hook,
    named,
    of_kind,
    pod_specs,
    render,
    runtimes_of,
    title,
    walk,
)
from kube.harness import tools
from support.scripts import script

pytestmark = pytest.mark.kube_api

VERSIONS = ["1.29", "1.31", "1.34", "1.37"]
OWN_GROUPS = ("areal.dev/", "monitoring.coreos.com/")
SELECTING = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}


@pytest.mark.parametrize("values", MATRIX)
def test_lint_finds_nothing(values: str) -> None:
    said = tools.helm(None, "lint", "--strict", str(CHART), f"--values={CHART / 'ci' / values}").stdout
    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said


@pytest.mark.parametrize(
    ("values", "version"),
    # Admission policies need 1.30; that 1.29 is told so is tested in test_chart_values.py.
    [
        pytest.param(name, version, marks=pytest.mark.nightly if version in VERSIONS[1:-1] else ())
        for name in MATRIX
        for version in VERSIONS
        if (name, version) != ("gpu-values.yaml", "1.29")
    ],
)
def test_every_object_is_valid_for_every_kubernetes(values: str, version: str) -> None:
    checked = 0
    for found in render(values, version=f"{version}.0"):
        if not found["apiVersion"].startswith(OWN_GROUPS):
            kubernetes_validate.validate(found, version, strict=True)
            checked += 1
    assert checked >= 10


def test_a_kubernetes_that_is_too_old_is_refused() -> None:
    with pytest.raises(tools.CommandFailed, match=re.escape("requires kubeVersion: >=1.29.0-0")):
        render(version="1.28.9")


@pytest.mark.parametrize("values", MATRIX)
def test_every_container_is_restricted(values: str) -> None:
    pods = list(pod_specs(render(values)))
    assert pods
    for name, spec in pods:
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), name
        for container in containers(spec):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["readOnlyRootFilesystem"] is True, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["limits"]["memory"], name
            assert container["resources"]["requests"], name


@pytest.mark.parametrize("values", MATRIX)
def test_only_pods_that_ask_the_api_server_get_a_token(values: str) -> None:
    for name, spec in pod_specs(render(values)):
        assert spec["automountServiceAccountToken"] is not name.endswith(("-volume", "-network", "-gpu", "-jobs")), name
        assert spec["enableServiceLinks"] is False, name
    for account in of_kind(render(values), "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@pytest.mark.parametrize("values", [*MATRIX, None])
def test_nothing_is_in_the_way_of_server_side_apply(values: str | None) -> None:
    for found in render(values) if values else render(values=EVERYTHING):
        for path, value in walk(found):
            where = f"{title(found)} {path}"
            assert value is not None, where
            if path and path[-1] in ("ports", "env", "volumes", "volumeMounts") and isinstance(value, list):
                assert all("protocol" in port for port in value if path[-1] == "ports"), where
                key = "mountPath" if path[-1] == "volumeMounts" else "name"
                names = [item[key] for item in value if isinstance(item, dict) and key in item]
                assert len(names) == len(set(names)), where


@pytest.mark.parametrize("values", [*MATRIX, None])
def test_no_two_objects_have_one_identity(values: str | None) -> None:
    """Hooks among them: `kubectl apply`, kustomize and Argo CD apply them all, and the last one of a name wins."""
    names = [title(found) for found in (render(values) if values else render(values=EVERYTHING))]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("values", MATRIX)
def test_selectors_hold_what_never_changes_and_find_the_pods(values: str) -> None:
    objects = render(values)
    deployments = of_kind(objects, "Deployment")
    assert all(each["spec"]["selector"]["matchLabels"].keys() == SELECTING for each in deployments)
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in deployments]
    lasting = [each for each in objects if not hook(each)]
    services = [each["spec"]["selector"] for each in of_kind(lasting, "Service")]
    budgets = [each["spec"]["selector"]["matchLabels"] for each in of_kind(objects, "PodDisruptionBudget")]
    policies = [each["spec"]["podSelector"]["matchLabels"] for each in of_kind(lasting, "NetworkPolicy")]
    for selector in [*services, *budgets, *policies]:
        assert selector.keys() == SELECTING
        assert sum(selector.items() <= each.items() for each in labels) == 1


def test_selectors_of_two_releases_are_disjoint() -> None:
    first, second = (
        deployment_of(render(release=release), "operator")["spec"]["selector"]["matchLabels"] for release in ("a", "b")
    )
    assert first != second


@pytest.mark.parametrize("values", MATRIX)
def test_objects_are_in_the_releases_namespace_or_in_one_that_a_value_names(values: str) -> None:
    named_by_values = {"monitoring", "research-a", "research-b"}
    for found in render(values):
        assert found["metadata"].get("namespace", "system") in {"system", *named_by_values}, title(found)


@pytest.mark.parametrize("values", MATRIX)
def test_common_labels_are_everywhere(values: str) -> None:
    common = (yaml.safe_load((CHART / "ci" / values).read_text()) or {}).get("global", {}).get("commonLabels", {})
    for found in render(values):
        if "extraObjects" not in title(found) and found["metadata"]["name"] not in ("areal-extra", "text"):
            assert common.items() <= found["metadata"]["labels"].items(), title(found)
            assert found["metadata"]["labels"]["app.kubernetes.io/part-of"] == "areal", title(found)


def images(objects: list[Object]) -> set[str]:
    """Every image that an object of the chart names."""
    return {
        value
        for found in [*objects, *runtimes_of(objects)]
        for path, value in walk(found)
        if path and path[-1] == "image"
    }


def test_images_have_the_charts_version_and_the_registry_of_all() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    found = images(render(values={"global": {"imageRegistry": "registry.example.com/mirror/"}}))
    assert len(found) >= 6
    assert all(
        re.fullmatch(rf"registry\.example\.com/mirror/areal/[a-z]+:{re.escape(version)}", each) for each in found
    )


def test_images_that_were_loaded_have_the_names_that_make_images_load_gives_them() -> None:
    built = {image.reference for image in script("images").images(environ={"REGISTRY": script("images").LOADED})}
    assert images(render("cpu-values.yaml")) == {each for each in built if "sglang" not in each}
    loaded = render(values={"global": {"imageRegistry": "", "imagesLoaded": True}})
    assert images(loaded) == built


def test_a_digest_wins_over_a_tag_and_a_registry_of_ones_own_over_that_of_all() -> None:
    digest = "sha256:" + "0" * 64
    own = {"registry": "own.example.com", "tag": "1.2", "digest": digest}
    objects = render(values={"global": {"imageRegistry": "all.example.com"}, "images": {"operator": own}})
    operator = named(objects, "Deployment", "areal-operator")["spec"]["template"]["spec"]["containers"][0]
    assert operator["image"] == f"own.example.com/areal/operator@{digest}"


def test_the_operator_is_told_what_the_values_say() -> None:
    objects = render("namespaced-values.yaml")
    main = named(objects, "Deployment", "areal-research-operator")["spec"]["template"]["spec"]["containers"][0]
    told = [main["command"], *main["args"]]
    assert told[:2] == [["areal"], "operator"]
    for argument in ("--namespace=research-a", "--namespace=research-b", "--default-runtime=areal-cpu", "--qps=50"):
        assert argument in told
    assert "--lease-name=areal-research-operator" in told
    assert main["image"].startswith("registry.example.com/areal/operator@sha256:")


def test_prometheus_is_let_into_jobs_where_values_say_or_a_monitor_needs_it() -> None:
    def told(*files: str, **values: object) -> list[str]:
        arguments = deployment_of(render(*files, values=values), "operator")["spec"]["template"]["spec"]["containers"][
            0
        ]["args"]
        return [each for each in arguments if each.startswith("--metrics-from")]

    def understood(arguments: list[str]) -> object:
        return namespace_labels([each.partition("=")[2] for each in arguments])

    assert told() == []
    assert understood(told("gpu-values.yaml")) == {"kubernetes.io/metadata.name": "monitoring"}
    assert understood(told(monitoring={"podMonitor": {"enabled": True}})) == {}


def test_a_namespace_label_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="monitoring is no label"):
        namespace_labels(["monitoring"])


def test_one_replica_gets_no_disruption_budget_for_it_could_never_be_drained() -> None:
    assert of_kind(render(values={"operator": {"replicas": 1}}), "PodDisruptionBudget") == []
    assert len(of_kind(render(), "PodDisruptionBudget")) == 1


@pytest.mark.parametrize("values", MATRIX)
def test_the_runtimes_are_what_the_operator_reads(values: str) -> None:
    for found in runtimes_of(render(values)):
        spec = Runtime.model_validate(found).spec
        assert spec.description
        for role in (
            "controller",
            "worker",
            "generation",
            "trainer",
            "reward",
            "rewardCustom",
            "gateway",
            "redis",
            "tools",
        ):
            [main] = spec.template_of(role)["spec"]["containers"]
            assert main["name"] == "main"
            assert main["image"]
            bounds = main["resources"]["limits"]
            assert bounds.get("memory") or (role == "reward" and spec_of(Role.REWARD).needs.limits["memory"]), role


def test_a_runtime_takes_what_values_say_about_all_roles_and_about_one() -> None:
    objects = render("gpu-values.yaml")
    spec = named(runtimes_of(objects), "ClusterRLRuntime", "areal-sglang")["spec"]
    everybody = spec["template"]["spec"]
    assert everybody == {"nodeSelector": {"pool": "training"}, "imagePullSecrets": [{"name": "registry"}]}
    trainer = spec["roles"]["trainer"]["template"]["spec"]
    assert trainer["containers"][0]["env"] == [{"name": "NCCL_DEBUG", "value": "WARN"}]
    assert trainer["containers"][0]["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert [each["key"] for each in trainer["tolerations"]] == ["nvidia.com/gpu"]
    assert spec["roles"]["reward"]["template"]["spec"]["runtimeClassName"] == "gvisor"
    assert spec["networkPolicy"] == {"mode": "Managed", "egress": {"tools": "Open", "worker": "Open"}}
    assert spec["storage"] == {"storageClassName": "shared-nfs", "size": "2Ti", "accessMode": "ReadWriteMany"}


def test_a_runtime_labels_and_annotates_the_pods_of_all_roles_and_of_one() -> None:
    role = {"annotations": {"corp.org/department": "rl"}}
    values = {
        "runtimes": {"role": {"labels": {"team": "rl"}}, "definitions": {"areal-cpu": {"roles": {"trainer": role}}}}
    }
    spec = named(runtimes_of(render(values=values)), "ClusterRLRuntime", "areal-cpu")["spec"]
    assert spec["template"] == {"metadata": {"labels": {"team": "rl"}}}
    assert spec["roles"]["trainer"]["template"]["metadata"] == {"annotations": {"corp.org/department": "rl"}}
    assert "metadata" not in spec["roles"]["worker"]["template"]


def test_pods_of_hooks_have_the_marks_of_the_operators_and_a_policy_of_their_own() -> None:
    marks = {"podLabels": {"team": "rl"}, "podAnnotations": {"note": "x"}, "priorityClassName": "urgent"}
    objects = render(values={**EVERYTHING, "operator": marks})
    hooks = [
        (each["metadata"], each["spec"])
        if each["kind"] == "Pod"
        else (each["spec"]["template"]["metadata"], each["spec"]["template"]["spec"])
        for each in objects
        if hook(each) and each["kind"] in ("Pod", "Job")
    ]
    assert len(hooks) == 6
    closed = [each["spec"]["podSelector"]["matchLabels"] for each in of_kind(objects, "NetworkPolicy") if hook(each)]
    for metadata, spec in hooks:
        assert metadata["labels"]["team"] == "rl"
        assert metadata["annotations"]["note"] == "x"
        assert spec["priorityClassName"] == "urgent"
        assert sum(selector.items() <= metadata["labels"].items() for selector in closed) == 1
    minimal = render("minimal-values.yaml", values={"tests": {"enabled": True}})
    assert not of_kind(minimal, "NetworkPolicy")


def test_a_false_in_a_roles_pod_and_container_is_not_lost() -> None:
    role = {"pod": {"enableServiceLinks": False, "hostUsers": False}, "container": {"tty": False}}
    values = {
        "runtimes": {
            "definitions": {"areal-cpu": {"all": {"pod": {"shareProcessNamespace": False}}, "roles": {"reward": role}}}
        }
    }
    spec = named(runtimes_of(render(values=values)), "ClusterRLRuntime", "areal-cpu")["spec"]
    reward = spec["roles"]["reward"]["template"]["spec"]
    assert reward["enableServiceLinks"] is False
    assert reward["hostUsers"] is False
    assert reward["containers"][0]["tty"] is False
    assert spec["template"]["spec"] == {"shareProcessNamespace": False}


def test_the_cpu_runtime_asks_for_no_gpu() -> None:
    objects = render("cpu-values.yaml")
    assert [each["metadata"]["name"] for each in runtimes_of(objects)] == ["areal-cpu"]
    assert "nvidia.com/gpu" not in str(runtimes_of(objects))


def test_crds_are_kept_unless_told_otherwise_and_hold_their_schema_unchanged() -> None:
    committed = {path.stem: yaml.safe_load(path.read_text()) for path in (CHART / "files" / "crds").glob("*.yaml")}
    assert committed.keys() == {f"{plural}.areal.dev" for plural in ("rljobs", "rlruntimes", "clusterrlruntimes")}
    for keep in (True, False):
        found = {each["metadata"]["name"]: each for each in of_kind(render(values={"crds": {"keep": keep}}), _CRD)}
        assert found.keys() == committed.keys()
        for name, definition in found.items():
            assert definition["spec"] == committed[name]["spec"]
            assert ("helm.sh/resource-policy" in definition["metadata"].get("annotations", {})) is keep
    assert of_kind(render(values={"crds": {"enabled": False}}), _CRD) == []


_CRD = "CustomResourceDefinition"


def test_a_release_fits_the_secret_that_helm_keeps_it_in() -> None:
    """Helm keeps chart and manifest, compressed and in base64, in one Secret: 1 MiB is the API server's limit."""
    stored = [path.read_bytes() for path in CHART.rglob("*") if path.is_file() and "ci" not in path.parts]
    manifest = yaml.safe_dump_all(render(values=EVERYTHING)).encode()
    assert len(gzip.compress(b"".join(stored) + manifest)) * 4 / 3 < 700_000


def test_the_guard_is_there_when_an_uninstall_would_lose_data() -> None:
    for values, guarded in (
        ({}, False),
        ({"crds": {"keep": False}}, True),
        ({"crds": {"keep": False}, "uninstallGuard": "Never"}, False),
        ({"uninstallGuard": "Always"}, True),
    ):
        jobs = [each for each in of_kind(render(values=values), "Job") if hook(each) == "pre-delete"]
        assert bool(jobs) is guarded, values


def test_the_jobs_monitor_finds_the_pods_that_the_operator_makes_and_believes_the_cluster_about_their_names() -> None:
    monitor = named(render(values=EVERYTHING), "PodMonitor", "areal-jobs")["spec"]
    assert monitor["selector"]["matchLabels"] == {LABEL_NAME: "areal", "app.kubernetes.io/managed-by": MANAGED_BY}
    assert monitor["selector"]["matchExpressions"] == [{"key": LABEL_JOB, "operator": "Exists"}]
    endpoints = monitor["podMetricsEndpoints"]
    assert [each["port"] for each in endpoints] == ["metrics", *(f"metrics-{index}" for index in range(8))]
    for endpoint in endpoints:
        assert endpoint["honorLabels"] is False
        assert {each["targetLabel"] for each in endpoint["relabelings"]} == {"namespace", "rljob", "role", "pod"}


def test_the_operators_monitor_lets_jobs_keep_their_names() -> None:
    objects = render(values=EVERYTHING)
    [endpoint] = named(objects, "PodMonitor", "areal-operator")["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    watched = render("namespaced-values.yaml")
    assert of_kind(watched, "ServiceMonitor")[0]["spec"]["endpoints"][0]["honorLabels"] is True


def test_alerts_can_be_changed_switched_off_and_linked_to_ones_own_runbook() -> None:
    groups = of_kind(render("gpu-values.yaml"), "PrometheusRule")[0]["spec"]["groups"]
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    assert "TrainerStarved" not in alerts
    stalled = alerts["RLJobStalled"]
    assert stalled["for"] == "15m"
    assert stalled["labels"] == {"severity": "warning", "team": "research"}
    assert stalled["annotations"]["runbook_url"] == "https://docs.example.com/areal/alerts.html#rljobstalled"
    assert "{{ $labels.rljob }}" in stalled["annotations"]["summary"]


def test_extra_objects_are_rendered_with_the_charts_values() -> None:
    objects = render("namespaced-values.yaml")
    assert named(objects, "ConfigMap", "areal-extra")["metadata"]["namespace"] == "system"
    assert named(objects, "ConfigMap", "text")["metadata"]["namespace"] == "system"


def test_tests_are_hooks_and_no_part_of_the_release() -> None:
    tests = [each for each in render(values=EVERYTHING) if "-test" in each["metadata"]["name"]]
    assert len(tests) == 12
    for found in tests:
        annotations = found["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "test"
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"


def test_boards_link_to_jobs_own_pages_where_the_values_say_where_those_are() -> None:
    monitoring = {"dashboards": {"enabled": True}}
    page = "https://{name}.{namespace}.rl.example.com/"
    linked = boards_of(render(values={"monitoring": monitoring, "jobsPage": {"jobAddress": page}}))
    for name in ("rljob", "generation"):
        links = [link for link in linked[name]["links"] if link["type"] == "link"]
        assert [link["url"] for link in links] == ["https://${rljob}.${namespace}.rl.example.com/"]
    of_panels = {
        panel["title"]: [link["url"] for link in panel["fieldConfig"]["defaults"].get("links", [])]
        for panel in linked["fleet"]["panels"]
    }
    series = ["https://${__field.labels.rljob}.${__field.labels.namespace}.rl.example.com/"]
    assert of_panels["Jobs"] == ["https://${__data.fields.rljob}.${__data.fields.namespace}.rl.example.com/"]
    assert of_panels["Progress"] == of_panels["Pods missing"] == series
    assert of_panels["Running"] == of_panels["Jobs by status"] == []
    plain = boards_of(render(values={"monitoring": monitoring}))
    assert plain == {
        path.stem: json.loads(path.read_text()) for path in (CHART / "files" / "dashboards").glob("*.json")
    }
    for name, board in linked.items():
        for panel in board["panels"]:
            panel.get("fieldConfig", {}).get("defaults", {}).pop("links", None)
        assert {**board, "links": plain[name]["links"]} == plain[name]


def boards_of(objects: list[Object]) -> dict[str, Any]:
    """The dashboards of a rendering, by file name."""
    maps = [each for each in of_kind(objects, "ConfigMap") if "-dashboard-" in each["metadata"]["name"]]
    assert len(maps) == 4
    return {
        key.removeprefix("areal-").removesuffix(".json"): json.loads(text)
        for each in maps
        for key, text in each["data"].items()
    }


def test_a_runtime_has_the_platforms_rules_and_device_and_none_that_nobody_gave() -> None:
    rules = {"allow": {"volumeKinds": ["pvc"], "mountPrefixes": []}, "devices": {"name": "amd.com/gpu", "perPod": 8}}
    plain, ruled = (
        {each["metadata"]["name"]: each["spec"] for each in runtimes_of(render(values=values))}["areal-sglang"]
        for values in ({}, {"runtimes": {"definitions": {"areal-sglang": rules}}})
    )
    assert {name: ruled[name] for name in rules} == rules
    assert plain.keys() & rules.keys() == set()
    assert {**plain, **rules} == ruled
