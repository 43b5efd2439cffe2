"""The page's pod beside a job: what it may see and reach, and that nothing of the job depends on it."""

from __future__ import annotations

import pytest
from areal.plan.cluster_names import Role, role_labels
from areal_operator.kube.resources import Json
from areal_operator.operator.children import JobBlueprint, foundation, workloads
from operator_stage import Stage
from support.cluster_jobs import quickstart_wanted, viewed_wanted
from support.policies import Pod, passes
from support.restricted import problems

HOME = {"kubernetes.io/metadata.name": "team-a"}
PAGE = Pod("team-a", role_labels("digits", Role.VIEW), HOME)
INGRESS = Pod("edge", {"app": "ingress"}, {"areal.dev/viewers": "allowed"})
OUTSIDE = Pod("somewhere", {}, {})


def of_page(w: JobBlueprint) -> dict[str, Json]:
    """Its objects by kind."""
    made = [*foundation(w), *workloads(w)]
    return {one["kind"]: one for one in made if one["metadata"]["name"] == "digits-view"}


def test_the_pod_reads_the_run_and_holds_nothing() -> None:
    made = of_page(viewed_wanted())
    assert set(made) == {"Deployment", "Service", "NetworkPolicy"}
    pod = made["Deployment"]["spec"]["template"]["spec"]
    (main,) = pod["containers"]
    assert problems(pod) == []
    assert main["securityContext"]["readOnlyRootFilesystem"] is True
    assert (pod["automountServiceAccountToken"], pod["serviceAccountName"]) == (False, "digits")
    assert main["command"] == ["areal-role", "view", "--job", "/areal/job/resolved.json"]
    assert {volume["name"] for volume in pod["volumes"]} == {"tmp", "job", "run", "cluster"}, "no Secret"
    mounts = {one["mountPath"]: one.get("readOnly") for one in main["volumeMounts"]}
    assert mounts == {"/tmp": None, "/areal/job": True, "/areal/run": True, "/areal/cluster": True}
    assert main["readinessProbe"]["tcpSocket"] == {"port": 8000}
    assert [port["port"] for port in made["Service"]["spec"]["ports"]] == [8000]


def test_browsers_come_through_named_namespaces_and_it_reaches_the_api_server_only() -> None:
    policies = [one for one in foundation(viewed_wanted()) if one["kind"] == "NetworkPolicy"]
    assert passes(policies, INGRESS, PAGE, 8000)
    for caller in (OUTSIDE, *(Pod("team-a", role_labels("digits", role), HOME) for role in Role)):
        assert not passes(policies, caller, PAGE, 8000)
    assert not passes(policies, INGRESS, PAGE, 9000)
    reached = [port for port in (53, 80, 443, 6379, 6443, 9000) if passes(policies, PAGE, OUTSIDE, port)]
    assert reached == [443, 6443]


def test_it_is_there_when_asked_for_and_rests_with_the_job() -> None:
    assert of_page(quickstart_wanted()) == {}
    w = viewed_wanted()
    asleep = viewed_wanted(replicas=dict.fromkeys(w.replicas, 0))
    assert [of_page(one)["Deployment"]["spec"]["replicas"] for one in (w, asleep)] == [1, 0]


@pytest.mark.parametrize(("policy", "left"), [("DeletePods", 0), ("KeepPods", 1)])
def test_nothing_of_the_job_depends_on_it_and_it_goes_with_the_others(policy: str, left: int) -> None:
    cleanup = [{"when": "Complete", "policy": policy, "afterSeconds": 0}]
    stage = Stage(observability={"view": True}, runPolicy={"cleanup": cleanup})
    stage.until_training()
    (pod,) = stage.pods(Role.VIEW)
    stage.cluster.end_container(pod, 70)
    stage.run(lambda: stage.summary == "Complete")
    assert stage.status["failures"] == []
    assert "view" not in {role["name"] for role in stage.status["roles"]}
    for _ in range(5):
        stage.step()
    assert len(stage.pods(Role.VIEW)) == left
