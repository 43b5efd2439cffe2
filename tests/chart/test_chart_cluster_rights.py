"""Who may do what once the chart is installed, asked of a real API server."""

from __future__ import annotations

from typing import Any

import pytest
from chart.chart_release import HOME, Helm, api_resources, job, may, namespace_object
from chart.chart_rendering import CHART
from chart.test_chart_access import needed, needed_for_kueue
from kube.harness import tools
from kube.harness.client import Refused
from kube.harness.control_plane import ControlPlane
from kube.harness.processes import eventually

pytestmark = pytest.mark.kube_api


def test_the_operators_account_may_do_what_it_must_and_nothing_else_in_the_whole_api(
    plane: ControlPlane, helm: Helm, clean: set[str]
) -> None:
    helm("install", "areal", str(CHART), "--set-json=rbac.runtimeReaders=[]")  # which would be the operator too
    account = f"system:serviceaccount:{HOME}:areal-operator"
    verbs = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
    public = {"selfsubjectaccessreviews", "selfsubjectreviews", "selfsubjectrulesreviews"}  # everybody's
    allowed = {
        (version.rpartition("/")[0], resource["name"], verb)
        for version, resource in api_resources(plane.admin)
        if resource["name"] not in public
        for verb in verbs
        if may(plane.admin, account, verb, version.rpartition("/")[0], resource["name"], "team-a")
    }
    # Leases are changed by name, but made under any, and discovery doesn't list finalizers.
    lease = ("coordination.k8s.io", "leases")
    unlisted = {(*lease, "get"), (*lease, "update"), ("areal.dev", "rljobs/finalizers", "update")}
    assert allowed == needed() - needed_for_kueue() - unlisted
    assert may(
        plane.admin, account, "update", "areal.dev", "rljobs/finalizers", "team-a"
    )  # which discovery doesn't list
    assert may(plane.admin, account, "update", *lease, "team-a", "areal-jobs")
    assert not may(plane.admin, account, "update", *lease, "team-a", "areal-operator")
    assert may(plane.admin, account, "update", *lease, HOME, "areal-operator")
    assert may(plane.admin, account, "create", *lease, HOME)
    assert not may(plane.admin, account, "update", *lease, HOME, "another")
    assert not may(plane.admin, account, "list", "", "secrets", HOME)


USERS = [
    # role, namespace or "" for the whole cluster, verb, resource, allowed
    ("view", "team-a", "get", "rljobs", True),
    ("view", "team-a", "watch", "rljobs", True),
    ("view", "team-a", "get", "rljobs/scale", True),
    ("view", "team-a", "list", "rlruntimes", True),
    ("view", "team-a", "create", "rljobs", False),
    ("view", "team-a", "delete", "rljobs", False),
    ("view", "team-a", "patch", "rljobs/scale", False),
    ("view", "team-b", "get", "rljobs", False),
    ("edit", "team-a", "create", "rljobs", True),
    ("edit", "team-a", "patch", "rljobs", True),
    ("edit", "team-a", "delete", "rljobs", True),
    ("edit", "team-a", "deletecollection", "rljobs", True),
    ("edit", "team-a", "update", "rljobs/scale", True),
    ("edit", "team-a", "patch", "rljobs/status", False),
    ("edit", "team-a", "create", "rlruntimes", False),
    ("edit", "team-b", "create", "rljobs", False),
    ("admin", "team-a", "create", "rlruntimes", True),
    ("admin", "team-a", "patch", "rljobs/status", False),
    ("areal-system-areal-rljob-viewer", "team-a", "list", "rljobs", True),
    ("areal-system-areal-rljob-viewer", "team-a", "create", "rljobs", False),
    ("areal-system-areal-rljob-editor", "team-a", "create", "rljobs", True),
    ("areal-system-areal-rljob-editor", "team-a", "create", "rlruntimes", False),
]


def test_people_may_do_what_their_role_says(plane: ControlPlane, helm: Helm, clean: set[str]) -> None:
    helm("install", "areal", str(CHART), "--set=rbac.runtimeReaders={data-science}")
    for name in ("team-a", "team-b"):
        plane.admin.apply(namespace_object(name))
    for role in {row[0] for row in USERS}:
        plane.admin.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": role, "namespace": "team-a"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"{role}-user"}],
            }
        )

    def verdicts() -> list[bool]:
        return [
            may(plane.admin, f"{role}-user", verb, "areal.dev", resource, namespace)
            for role, namespace, verb, resource, _ in USERS
        ]

    wanted = [row[4] for row in USERS]
    eventually(lambda: verdicts() == wanted, "the aggregated roles")
    wrong = [row for row, verdict in zip(USERS, verdicts(), strict=True) if row[4] != verdict]
    assert wrong == []
    assert may(plane.admin, "reader", "list", "areal.dev", "clusterrlruntimes", of="data-science")
    assert not may(plane.admin, "reader", "list", "areal.dev", "clusterrlruntimes")
    assert not may(plane.admin, "reader", "create", "areal.dev", "clusterrlruntimes", of="data-science")


def test_admission_policies_bound_what_jobs_ask_for(plane: ControlPlane, helm: Helm, clean: set[str]) -> None:
    values = ["admissionPolicies.enabled=true", "admissionPolicies.maxGenerationReplicas=2"]
    values += ["admissionPolicies.maxTrainerReplicas=1", "admissionPolicies.allowNamespacedRuntimes=false"]
    values += ["admissionPolicies.allowedRuntimes={areal-cpu}", "admissionPolicies.allowedPriorityClasses={research}"]
    helm("install", "areal", str(CHART), *(f"--set={value}" for value in values))

    def refusal(name: str, **spec: Any) -> str:
        try:
            plane.admin.create(job(name, **spec), dry_run=True)
        except Refused as refused:
            return refused.message
        return ""

    too_many = "spec.generation.replicas may be 2 at most in this cluster"
    eventually(lambda: too_many in refusal("a", generation={"replicas": 3}), "the policy to hold")
    assert "spec.trainer.replicas may be 1 at most" in refusal("a", trainer={"replicas": 2})
    assert "must be one of: areal-cpu" in refusal("a", runtimeRef={"kind": "ClusterRLRuntime", "name": "other"})
    assert "must be ClusterRLRuntime" in refusal("a", runtimeRef={"kind": "RLRuntime", "name": "mine"})
    assert "spec.scheduling.priorityClassName must be one of: research" in refusal(
        "a", scheduling={"priorityClassName": "system-node-critical"}
    )
    assert "spec.podTemplate.trainer.priorityClassName must be one of: research" in refusal(
        "a", podTemplate={"trainer": {"priorityClassName": "other"}}
    )
    assert refusal("a", generation={"replicas": 2}, scheduling={"priorityClassName": "research"}) == ""
    plane.admin.create(job("a"))
    scale = tools.kubectl(plane.kubeconfig, "scale", "rljob/a", "--replicas=3", namespace=HOME, check=False)
    assert "generation may be scaled to 2 replicas at most" in scale.stderr
    tools.kubectl(plane.kubeconfig, "scale", "rljob/a", "--replicas=2", namespace=HOME)
