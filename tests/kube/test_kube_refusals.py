"""Jobs that can't run as they are: what `kubectl get` and `describe` say, and that putting it right is enough."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from areal.cli.main import app
from areal_operator.kube.restricted import container_security, pod_security
from kube.harness.client import Client, Refused
from kube.harness.control_plane import Cluster
from kube.harness.fixtures import Runner
from kube.harness.processes import eventually
from kube.jobs import condition, read, rljob, wait_for
from kube.operators import RUNTIME, children
from typer.testing import CliRunner

pytestmark = [pytest.mark.kube_api, pytest.mark.usefixtures("operator")]

RECIPE = "def reward(prompt, completions, prompt_ids, completion_ids, **row):\n    return 1.0\n"


def test_a_local_path_is_refused_with_the_field_and_the_command_that_helps(admin: Client, namespace: str) -> None:
    admin.create(rljob(namespace, model={"path": "models/tiny"}))
    job = wait_for(admin, namespace, Accepted="LocalPath", summary="Rejected")
    message = condition(job, "Accepted")["message"]
    assert "spec.model.path" in message
    assert "areal submit" in message
    assert not children(admin, namespace)


def test_a_runtime_that_is_missing_is_waited_for(admin: Client, namespace: str) -> None:
    admin.create(rljob(namespace, runtimeRef={"kind": "RLRuntime", "name": "ours"}))
    job = wait_for(admin, namespace, Accepted="RuntimeNotFound")
    assert "ours" in condition(job, "Accepted")["message"]
    shared = admin.get("areal.dev/v1alpha1", "ClusterRLRuntime", "", RUNTIME) or {}
    ours = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLRuntime", "spec": shared["spec"]}
    admin.create({**ours, "metadata": {"namespace": namespace, "name": "ours"}})
    wait_for(admin, namespace, Progressing="True")


def test_a_recipe_in_a_config_map_is_waited_for_and_mounted(admin: Client, namespace: str) -> None:
    job = rljob(namespace, "packed", recipe=None)
    job["spec"]["recipe"] = {"configMap": {"name": "recipe", "key": "digits.py"}}
    admin.create(job)
    wait_for(admin, namespace, "packed", Accepted="RecipeNotFound")
    metadata = {"namespace": namespace, "name": "recipe"}
    admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"digits.py": RECIPE}})
    wait_for(admin, namespace, "packed", Prepared="True")
    prepare = admin.get("batch/v1", "Job", namespace, "packed-prepare") or {}
    volumes = prepare["spec"]["template"]["spec"]["volumes"]
    assert any(volume.get("configMap", {}).get("name") == "recipe" for volume in volumes)


def test_what_the_api_server_says_of_a_child_reaches_the_job(admin: Client, namespace: str) -> None:
    resources = {"requests": {"cpu": "4"}, "limits": {"cpu": "2"}}
    job = admin.create(rljob(namespace, podTemplate={"trainer": {"resources": resources}}))
    job = wait_for(admin, namespace, Accepted="DryRunRejected", summary="Rejected")
    message = condition(job, "Accepted")["message"]
    assert "StatefulSet tiny-trainer" in message
    assert "must be less than or equal to cpu limit" in message
    assert not children(admin, namespace), "nothing is made before all is accepted"


def quota(admin: Client, namespace: str, **hard: str) -> None:
    """A quota that the namespace is held to from now on."""
    named = {name.replace("_", "."): amount for name, amount in hard.items()}
    made = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team", "namespace": namespace}}
    admin.create({**made, "spec": {"hard": named}})

    def counted() -> bool:
        found = admin.get("v1", "ResourceQuota", namespace, "team") or {}
        return bool(found.get("status", {}).get("hard") == named)

    eventually(counted, "the quota is counted")


def test_a_pod_that_no_quota_has_room_for_is_refused_before_anything_is_made(admin: Client, namespace: str) -> None:
    quota(admin, namespace, requests_cpu="10m")
    admin.create(rljob(namespace))
    job = wait_for(admin, namespace, Accepted="DryRunRejected", summary="Rejected")
    assert "exceeded quota: team" in condition(job, "Accepted")["message"]
    assert not children(admin, namespace)


@pytest.fixture
def only_controlled_pods(admin: Client, namespace: str) -> Iterator[None]:
    """A policy of the platform's by which pods of the namespace must have a controller, in force."""
    policy = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy"}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    rule = "object.metadata.?ownerReferences.orValue([]).exists(one, one.?controller.orValue(false))"
    spec = {"matchConstraints": {"resourceRules": [pods]}, "validations": [{"expression": rule}]}
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    bound = {"policyName": f"{namespace}-bare", "validationActions": ["Deny"], "matchResources": where}
    metadata = {"name": f"{namespace}-bare"}
    binding = {**policy, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": bound}
    made = [admin.create({**policy, "metadata": metadata, "spec": spec}), admin.create(binding)]
    main = {"name": "main", "image": "any:1", "securityContext": container_security()}
    spec = {"containers": [main], "securityContext": pod_security()}
    bare = {"metadata": {"name": "bare", "namespace": namespace}, "spec": spec}

    def in_force() -> bool:
        try:
            admin.create({"apiVersion": "v1", "kind": "Pod", **bare}, dry_run=True)
        except Refused as refused:
            return f"{namespace}-bare" in refused.message
        return False

    eventually(in_force, "the policy is in force")
    yield
    for each in made:
        admin.delete(each)


@pytest.mark.usefixtures("only_controlled_pods")
def test_a_policy_against_pods_without_a_controller_refuses_no_job(admin: Client, namespace: str) -> None:
    admin.create(rljob(namespace))
    job = wait_for(admin, namespace, Progressing="True")
    assert condition(job, "Accepted")["status"] == "True"


@pytest.mark.nightly  # each landing: one pod without room here, and the patience with several on a fake API server
def test_pods_that_a_quota_refuses_together_are_named_and_waited_for(
    admin: Client, kubectl: Runner, cluster: Cluster, namespace: str
) -> None:
    quota(admin, namespace, pods="3")
    admin.create(rljob(namespace, runPolicy={"startupDeadlineSeconds": 5}))
    job = wait_for(admin, namespace, Scheduled="PodsRefused", timeout_s=90)
    assert "exceeded quota: team" in condition(job, "Scheduled")["message"]
    assert condition(job, "Failed")["status"] == "False"
    assert job["status"]["idle"]["cause"] == "PodsRefused"
    assert "exceeded quota: team" in kubectl("get", "rljobs", "-o", "wide", namespace=namespace).stdout
    asked = ["status", "rljob/tiny", f"--namespace={namespace}", f"--kubeconfig={cluster.kubeconfig}"]
    assert "exceeded quota: team" in " ".join(CliRunner().invoke(app, asked).output.split())
    assert json.loads(CliRunner().invoke(app, [*asked, "--json"]).output)["idle"]["cause"] == "PodsRefused"
    admin.delete({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team", "namespace": namespace}})
    wait_for(admin, namespace, Scheduled="True", timeout_s=120)
    eventually(lambda: "idle" not in read(admin, namespace)["status"], "steps, and nothing to wait for", timeout_s=60)


def test_sources_that_are_refused_end_the_job_with_their_words(admin: Client, namespace: str) -> None:
    marks = {
        "test.areal.dev/exit-code": "65",
        "test.areal.dev/message": "dataset.train.jsonl: /data/train.jsonl is empty",
    }
    admin.create(rljob(namespace, podTemplate={"tools": {"annotations": marks}}))
    job = wait_for(admin, namespace, Failed="SourcesRefused", summary="Failed")
    assert "/data/train.jsonl is empty" in condition(job, "Failed")["message"]
    assert job["status"]["failures"][-1]["exitCode"] == 65


def test_an_audit_that_is_not_clean_fails_the_job(admin: Client, namespace: str) -> None:
    audit = '{"lost":1,"duplicated":0,"tombstones":{"infra":1},"ok":false,"message":"1 group is lost"}'
    tools = {"annotations": {"test.areal.dev/message": audit}}
    admin.create(rljob(namespace, algorithm={"maxSteps": 2}, podTemplate={"tools": tools}))
    job = wait_for(admin, namespace, Failed="AuditFailed")
    assert condition(job, "Failed")["message"] == "1 group is lost"
    assert (job["status"]["audit"]["lost"], job["status"]["audit"]["ok"]) == (1, False)
    assert condition(job, "Complete")["status"] == "False"
