"""The chart on a real API server: what helm installs, tests, upgrades, rolls back and takes away."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from areal.plan.roles import free_ports
from chart.chart_release import (
    CRDS,
    HOME,
    REGISTRY,
    Helm,
    crds,
    everything,
    given_runtimes,
    has_mood,
    job,
    left_behind,
    may,
    namespace_object,
    newer_chart,
    operator_image,
    runtimes,
)
from chart.chart_rendering import CHART
from chart.hook_pods import HookPods
from kube.harness import tools
from kube.harness.control_plane import ControlPlane
from kube.harness.processes import Process, eventually

pytestmark = pytest.mark.kube_api


def test_a_release_lives_its_life_and_leaves_only_the_crds(
    plane: ControlPlane, helm: Helm, clean: set[str], tmp_path: Path
) -> None:
    notes = helm("install", "areal", str(CHART)).stdout
    assert "kubectl -n areal-system rollout status deployment/areal-operator" in notes
    assert crds(plane.admin).keys() >= CRDS
    assert operator_image(plane.admin) == "registry.example.com/areal/operator:0.1.0"
    assert given_runtimes(plane.admin).keys() == {"areal-cpu", "areal-sglang"}
    plane.admin.create(job("survivor"))
    assert not has_mood(plane.admin)

    helm("upgrade", "areal", str(newer_chart(tmp_path)), "--set=operator.replicas=3")
    assert has_mood(plane.admin)
    assert operator_image(plane.admin) == "registry.example.com/areal/operator:0.2.0"
    images = [str(each["spec"]["roles"]["trainer"]) for each in given_runtimes(plane.admin).values()]
    assert all("areal/trainer:0.2.0" in image for image in images)

    helm("rollback", "areal", "1")
    assert not has_mood(plane.admin)
    assert operator_image(plane.admin) == "registry.example.com/areal/operator:0.1.0"
    assert plane.admin.get("areal.dev/v1alpha1", "RLJob", HOME, "survivor") is not None

    helm("uninstall", "areal")
    left = left_behind(plane.admin, clean)
    assert {name.rpartition("/")[2] for name in left if name.startswith("customresourcedefinitions")} == CRDS
    others = {name for name in left if not name.startswith(("customresourcedefinitions", "apiservices"))}
    assert others == {"rljobs.areal.dev/v1alpha1 areal-system/survivor"}


def test_with_every_switch_off_nothing_at_all_is_left(plane: ControlPlane, helm: Helm, clean: set[str]) -> None:
    values = [f"--values={CHART / 'ci' / 'minimal-values.yaml'}", "--set=uninstallGuard=Never"]
    helm("install", "areal", str(CHART), *values)
    helm("uninstall", "areal")
    assert left_behind(plane.admin, clean) == set()


@pytest.mark.nightly  # each landing: an uninstall that is refused, and the release comes back
def test_what_an_uninstall_left_is_taken_over_by_the_next_installation(
    plane: ControlPlane, helm: Helm, clean: set[str]
) -> None:
    helm("install", "areal", str(CHART))
    plane.admin.create(job("survivor"))
    helm("uninstall", "areal")
    helm("install", "areal", str(CHART))
    assert plane.admin.get("areal.dev/v1alpha1", "RLJob", HOME, "survivor") is not None
    assert given_runtimes(plane.admin).keys() == {"areal-cpu", "areal-sglang"}
    helm("uninstall", "areal")
    assert helm("install", "another", str(CHART), check=False).returncode != 0
    helm("install", "another", str(CHART), "--take-ownership")
    assert crds(plane.admin)["rljobs.areal.dev"]["metadata"]["labels"]["app.kubernetes.io/instance"] == "another"


@pytest.mark.nightly
def test_a_second_release_is_refused_unless_it_brings_neither_crds_nor_runtimes_and_then_it_is_apart(
    plane: ControlPlane, helm: Helm, clean: set[str]
) -> None:
    helm("install", "areal", str(CHART))
    for name in ("research", "research-a", "research-b"):
        plane.admin.apply(namespace_object(name))

    def second(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return tools.helm(plane.kubeconfig, *arguments, namespace="research", check=check)

    refused = second("install", "second", str(CHART), REGISTRY, check=False)
    assert refused.returncode != 0
    assert "CustomResourceDefinition" in refused.stderr
    assert 'key "meta.helm.sh/release-name" must equal "second": current value is "areal"' in refused.stderr
    values = "crds.enabled=false,runtimes.install=false,operator.watchNamespaces={research-a,research-b}"
    second("install", "second", str(CHART), REGISTRY, f"--set={values}")
    account = "system:serviceaccount:research:second-areal-operator"
    assert may(plane.admin, account, "create", "apps", "statefulsets", "research-a")
    assert not may(plane.admin, account, "create", "apps", "statefulsets", HOME)
    second("uninstall", "second")
    assert crds(plane.admin).keys() >= CRDS


def test_helm_test_passes_with_an_operator_that_leads_and_fails_without(
    plane: ControlPlane, helm: Helm, clean: set[str], tmp_path: Path
) -> None:
    helm("install", "areal", str(CHART), "--set=tests.volume.enabled=true")
    metrics, health, network = free_ports(3)
    shared = tmp_path / "shared"
    shared.mkdir()
    stands_for = {
        "http://areal-operator.areal-system.svc:8081": f"http://127.0.0.1:{health}",
        "--directory=/shared": f"--directory={shared}",
        "--service=areal-test-network.areal-system.svc": f"--service=127.0.0.1 --host=127.0.0.1 --port={network}",
    }
    impatient = {**stands_for, "--lease=": "--deadline-s=1 --lease="}
    with HookPods(plane, HOME, tmp_path / "without", impatient) as hooks:
        failed = helm("test", "areal", check=False)
    assert failed.returncode != 0
    assert "Connection refused" in hooks.said["areal-test-operator"]

    token = tools.kubectl(plane.kubeconfig, "create", "token", "areal-operator", namespace=HOME).stdout.strip()
    main = plane.admin.get("apps/v1", "Deployment", HOME, "areal-operator")
    assert main is not None
    told = [
        argument.replace("$(POD_NAMESPACE)", HOME).replace("$(POD_NAME)", "areal-operator-0")
        for argument in main["spec"]["template"]["spec"]["containers"][0]["args"]
        if not argument.startswith(("--metrics-port", "--health-port"))
    ]
    areal = [sys.executable, "-m", "areal.cli.main", *told, "--bind=127.0.0.1"]
    areal += [f"--metrics-port={metrics}", f"--health-port={health}"]
    areal.append(f"--kubeconfig={plane.as_token('operator', token)}")
    operator = Process("operator", areal, tmp_path / "operator.log")
    try:
        with HookPods(plane, HOME, tmp_path / "with", stands_for) as hooks:
            helm("test", "areal")
        assert "areal-operator-0 leads" in hooks.said["areal-test-operator"]
        assert "a good RLJob is taken" in hooks.said["areal-test-api"]
        assert "a bad RLJob is refused" in hooks.said["areal-test-api"]
        network_said = sorted(text for name, text in hooks.said.items() if name.startswith("areal-test-network"))
        assert [text.split(":")[0] for text in network_said] == [
            "pod 0 took 16 MiB from 127.0.0.1\n",
            "pod 1 reached 127.0.0.1",
        ]
        volume = [text for name, text in hooks.said.items() if name.startswith("areal-test-volume")]
        assert sorted(volume) == ["pod 0 read 'pod 1 read: written by pod 0'\n", "pod 1 read 'written by pod 0'\n"]
    finally:
        operator.stop(grace_s=20)
    assert "orbidden" not in operator.log.read_text()
    left = {name for name in everything(plane.admin) if "/areal-test" in name}
    assert left == set()


def test_an_uninstall_that_would_lose_unfinished_jobs_is_refused_and_the_release_can_be_brought_back(
    plane: ControlPlane, helm: Helm, clean: set[str], tmp_path: Path
) -> None:
    helm("install", "areal", str(CHART), "--set=crds.keep=false")
    made = plane.admin.create(job("running"))
    with HookPods(plane, HOME, tmp_path / "first", {}) as hooks:
        refused = helm("uninstall", "areal", check=False)
    assert refused.returncode != 0
    [said] = hooks.said.values()
    assert "1 RLJobs are not finished: areal-system/running" in said
    assert plane.admin.get("areal.dev/v1alpha1", "RLJob", HOME, "running") is not None

    helm("rollback", "areal", "1")
    [release] = yaml.safe_load(helm("list", "--output=json").stdout)
    assert release["status"] == "deployed"

    now = "2026-01-01T00:00:00Z"
    complete = {
        "type": "Complete", "status": "True", "reason": "StepsMade", "message": "", "lastTransitionTime": now,
    }  # fmt: skip
    plane.admin.patch(made, {"status": {"conditions": [complete]}}, subresource="status")
    with HookPods(plane, HOME, tmp_path / "second", {}) as hooks:
        helm("uninstall", "areal")
    assert list(hooks.said.values()) == ["no unfinished RLJobs\n"]
    assert left_behind(plane.admin, clean) == set()
    assert not CRDS & crds(plane.admin).keys()


def test_one_apply_of_a_rendering_is_enough_and_the_operator_brings_the_runtimes_which_stay(
    plane: ControlPlane, clean: set[str], tmp_path: Path
) -> None:
    """As kustomize and Argo CD do it: no Helm in the cluster, no second apply."""
    text = tools.helm(None, "template", "areal", str(CHART), REGISTRY, "--no-hooks", namespace=HOME).stdout
    rendered = tmp_path / "all.yaml"
    rendered.write_text(text)
    tools.kubectl(plane.kubeconfig, "apply", "--server-side", "-f", str(rendered), namespace=HOME)
    mounted = tmp_path / "runtimes"
    mounted.mkdir()
    for name, made in given_runtimes(plane.admin).items():
        (mounted / f"{name}.json").write_text(json.dumps(made))
    token = tools.kubectl(plane.kubeconfig, "create", "token", "areal-operator", namespace=HOME).stdout.strip()
    areal = [sys.executable, "-m", "areal.cli.main", "operator", f"--runtimes={mounted}", "--bind=127.0.0.1"]
    areal += ["--metrics-port=0", "--health-port=0", f"--lease-namespace={HOME}", "--default-runtime=areal-cpu"]
    areal.append(f"--kubeconfig={plane.as_token('operator', token)}")
    operator = Process("operator", areal, tmp_path / "operator.log")
    try:
        eventually(lambda: runtimes(plane.admin).keys() == {"areal-cpu", "areal-sglang"}, "the runtimes", timeout_s=60)
    finally:
        operator.stop(grace_s=20)
    assert "orbidden" not in operator.log.read_text()
    for made in list(yaml.safe_load_all(text)):
        if made and made["kind"] != "CustomResourceDefinition":
            plane.admin.delete(made)
    assert runtimes(plane.admin).keys() == {"areal-cpu", "areal-sglang"}
