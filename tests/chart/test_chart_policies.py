"""Cluster policies that others published: what they deny of our objects is what the security page gives reasons for."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml
from areal.spec.runtime import RuntimeSpec
from areal_operator.operator.children import JobBlueprint
from areal_operator.submit.manifests import page_pod, upload_pod
from chart.chart_rendering import EVERYTHING, ROOT, Object, render, runtimes_of
from chart.policy_denials import POLICIES, Denials, PolicyGround, enforced, objects_of, with_pods
from kube.harness.control_plane import ControlPlane
from support.cluster_jobs import NAMESPACE, UID, large, quickstart, wanted

pytestmark = pytest.mark.kube_api

SYSTEM = "system"  # where `render` puts the chart
IMAGES = ("operator", "services", "reward", "worker", "engine", "sglang", "trainer", "redis")
ROLE_KEYS = (
    "controller", "worker", "generation", "trainer", "reward", "rewardCustom", "rewardModel", "gateway", "redis",
    "tools",
)  # fmt: skip


@pytest.fixture(scope="module")
def ground(plane: ControlPlane) -> Iterator[PolicyGround]:
    with enforced(plane.admin, [SYSTEM, NAMESPACE], "kubescape.yaml", "kyverno.yaml") as found:
        yield found


def runtime(name: str, **values: Object) -> Object:
    """The spec of one of the chart's runtimes."""
    [found] = [each["spec"] for each in runtimes_of(render(values=values)) if each["metadata"]["name"] == name]
    return dict(found)


def small(given: Object, **blocks: Object) -> JobBlueprint:
    """The quickstart with its page and a gateway, and what else `blocks` say."""
    job = quickstart()
    spec = {**job["spec"], "observability": {"view": True}, **blocks}
    return wanted({**job, "spec": {**spec, "rollout": {**spec["rollout"], "gateway": {"replicas": 2}}}}, given)


def on_gpus(given: Object) -> JobBlueprint:
    """The large job on a volume of one node, so servers fetch weights, with a Redis of its own."""
    job = large()
    spec = {**job["spec"], "weightSync": {"servers": "Fetch"}, "storage": {"accessMode": "ReadWriteOnce"}}
    del spec["replay"], spec["podTemplate"], spec["scheduling"]["priorityClassName"], spec["scheduling"]["rdma"]
    spec["trainer"] = {"replicas": 2, "gpus": 8}
    return wanted({**job, "spec": spec}, {**given, "engineImage": "mirror.example.com/sglang:v0.5.23"}, recipe=None)


def of_a_command(w: JobBlueprint) -> list[Object]:
    """The pods that `areal submit` and `areal view` make."""
    given = RuntimeSpec.model_validate(w.runtime)
    return [upload_pod(w.job, NAMESPACE, "inputs", given), page_pod(w.job, UID, NAMESPACE, "inputs", given, "abc")]


def explained() -> Denials:
    """The denials that `exceptions.yaml` expects."""
    return {policy: set(who) for policy, who in _exceptions()["denied"].items()}


def chosen() -> set[str]:
    """The policies among them that values satisfy."""
    return set(_exceptions()["byValues"])


def _exceptions() -> Object:
    found: Object = yaml.safe_load((POLICIES / "exceptions.yaml").read_text(encoding="utf-8"))
    return found


def test_published_policies_deny_what_has_a_reason_and_nothing_else(ground: PolicyGround) -> None:
    key = {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "api-key"}}}
    job = small(runtime("areal-cpu", tls={"mode": "SelfSigned"}), podTemplate={"worker": {"env": [key]}})
    chart, large_job = with_pods(render(values=EVERYTHING)), objects_of(on_gpus(runtime("areal-sglang")))
    assert ground.denials([*chart, *objects_of(job), *of_a_command(job), *large_job]) == explained()


def test_values_satisfy_the_policies_that_ask_for_what_an_organisation_chooses(ground: PolicyGround) -> None:
    amounts = {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    resources = {"requests": amounts, "limits": amounts}
    annotations, priority = {"corp.org/department": "research"}, "system-cluster-critical"
    pods = {"resources": resources, "podAnnotations": annotations, "priorityClassName": priority}
    roles = {role: {"resources": resources} for role in ROLE_KEYS}
    digest = {"digest": f"sha256:{'0' * 64}"}
    values: Object = {
        "operator": pods,
        "jobsPage": pods,
        "tests": {"resources": resources, "volume": {"enabled": True}},
        "images": dict.fromkeys(IMAGES, digest),
        "storage": {"storageClassName": "shared"},
        "crds": {"keep": False},
        "runtimes": {
            "role": {"annotations": annotations, "pod": {"priorityClassName": priority}},
            "definitions": {"areal-cpu": {"roles": roles}},
        },
    }
    job = small(runtime("areal-cpu", **values))
    objects = [*with_pods(render(values=values)), *objects_of(job), *of_a_command(job)]
    denials = ground.denials(objects)
    assert set(denials) & chosen() == set()
    assert set(denials) - set(explained()) == {"kyverno-forbid-cpu-limits"}, "which contradicts others"


def test_the_security_page_names_every_policy_that_needs_an_exception() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    table = page.partition("## Policies that need an exception")[2].partition("\n## ")[0]
    told = set(re.findall(r"`((?:kubescape|kyverno)-[a-z0-9-]+)`", table))
    assert told == set(explained())
