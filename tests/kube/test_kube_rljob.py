"""An RLJob as the API server keeps it: several writers, `/status`, `/scale`, what may change and what may not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kube.harness.client import Client, Refused
from kube.harness.fixtures import Runner
from kube.jobs import API, read, rljob

pytestmark = [pytest.mark.kube_api, pytest.mark.usefixtures("crds")]
NOW = "2030-01-01T00:00:00Z"


def stub(namespace: str, **parts: Any) -> dict[str, Any]:
    """What one writer owns of the job."""
    return {"apiVersion": API, "kind": "RLJob", "metadata": {"namespace": namespace, "name": "tiny"}, **parts}


def condition(kind: str, status: str, reason: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": NOW}


def test_two_writers_of_one_status_keep_out_of_each_others_way(admin: Client, namespace: str) -> None:
    admin.create(rljob(namespace))
    ours = {"summary": "Running", "conditions": [condition("Accepted", "True", "Valid")]}
    theirs = {"conditions": [condition("example.com/Quota", "True", "Granted")]}
    admin.apply(stub(namespace, status=ours), manager="areal-operator-status", subresource="status")
    admin.apply(stub(namespace, status=theirs), manager="quota", subresource="status")
    ours = {
        "summary": "Complete",
        "conditions": [condition("Accepted", "True", "Valid"), condition("Complete", "True", "Done")],
    }
    admin.apply(stub(namespace, status=ours), manager="areal-operator-status", subresource="status")
    status = read(admin, namespace)["status"]
    assert status["summary"] == "Complete"
    assert {item["type"] for item in status["conditions"]} == {"Accepted", "Complete", "example.com/Quota"}
    admin.apply(stub(namespace, status={}), manager="quota", subresource="status")
    assert {item["type"] for item in read(admin, namespace)["status"]["conditions"]} == {"Accepted", "Complete"}


def test_a_writer_that_does_not_force_is_told_whose_field_it_is(admin: Client, namespace: str) -> None:
    admin.apply(rljob(namespace), manager="alice")
    block = {"algorithm": {**rljob(namespace)["spec"]["algorithm"], "maxSteps": 7}}
    with pytest.raises(Refused, match="alice") as refused:
        admin.apply(stub(namespace, spec=block), manager="bob", force=False)
    assert refused.value.code == 409


def test_a_write_of_the_status_never_changes_the_spec_and_the_other_way_round(admin: Client, namespace: str) -> None:
    job = admin.create(rljob(namespace) | {"status": {"summary": "Complete"}})
    assert "status" not in job
    changed = stub(namespace, spec={"suspend": True}, status={"summary": "Pending"})
    admin.patch(changed, changed, subresource="status")
    job = read(admin, namespace)
    assert (job["spec"].get("suspend", False), job["status"]["summary"]) == (False, "Pending")
    assert job["metadata"]["generation"] == 1


def test_kubectl_scale_sets_the_size_of_the_generation_fleet(admin: Client, namespace: str, kubectl: Runner) -> None:
    admin.create(rljob(namespace))
    admin.apply(
        stub(namespace, status={"generation": {"replicas": 1, "selector": "areal.dev/role=generation"}}),
        subresource="status",
    )
    kubectl("scale", "rljob/tiny", "--current-replicas=1", "--replicas=3", namespace=namespace)
    assert read(admin, namespace)["spec"]["generation"]["replicas"] == 3
    scale = json.loads(kubectl("get", "rljob", "tiny", "--subresource=scale", "-ojson", namespace=namespace).stdout)
    assert (scale["spec"]["replicas"], scale["status"]["selector"]) == (3, "areal.dev/role=generation")


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"algorithm": {"maxSteps": 2000}}, id="maxSteps"),
        pytest.param({"algorithm": {"maxStaleness": 1}}, id="maxStaleness"),
        pytest.param({"rollout": {"maxConcurrentRollouts": 6}}, id="maxConcurrentRollouts"),
        pytest.param({"generation": {"replicas": 2}}, id="generation.replicas"),
        pytest.param({"suspend": True}, id="suspend"),
    ],
)
def test_hot_fields_may_change(admin: Client, namespace: str, changed: dict[str, Any]) -> None:
    job = admin.create(rljob(namespace))
    after = admin.patch(job, {"spec": changed})
    assert after["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model": {"path": "/models/other"}}, "model"),
        ({"recipe": {"file": "/recipes/other.py"}}, "recipe"),
        ({"dataset": {"train": {"jsonl": "/data/other.jsonl"}}}, "dataset"),
        ({"algorithm": {"groupSize": 4}}, "groupSize"),
        ({"algorithm": {"batchSize": 8}}, "batchSize"),
        ({"managedBy": "example.com/other"}, "managedBy"),
        ({"seed": 5}, "seed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_run_is_made_of_may_not_change_and_the_message_names_it(
    admin: Client, namespace: str, changed: dict[str, Any], named: str
) -> None:
    job = admin.create(rljob(namespace))
    with pytest.raises(Refused, match=named) as refused:
        admin.patch(job, {"spec": changed})
    assert refused.value.code == 422


def test_the_job_has_a_short_name_a_category_columns_and_an_explanation(
    admin: Client, namespace: str, kubectl: Runner
) -> None:
    admin.create(rljob(namespace))
    admin.apply(
        stub(namespace, status={"summary": "Running", "progress": {"step": 12, "reward": 0.5}}), subresource="status"
    )
    header, row = kubectl("get", "rlj", namespace=namespace).stdout.splitlines()
    assert header.split() == ["NAME", "STATUS", "STEP", "POLICY", "REWARD", "GEN", "RESTARTS", "AGE"]
    assert row.split()[:3] == ["tiny", "Running", "12"]
    assert "tiny" in kubectl("get", "areal", namespace=namespace).stdout
    assert "versions" in kubectl("explain", "rljob.spec.algorithm.maxStaleness").stdout
