"""Trainings on fixed rows: the trainer's pods alone, and a trainer that goes on from its checkpoint."""

from __future__ import annotations

import pytest
from kube.harness.client import Client
from kube.harness.processes import eventually
from kube.jobs import API, TINY, condition, wait_for
from support.scripted_pods import ScriptedPods

pytestmark = [pytest.mark.kube_api, pytest.mark.usefixtures("operator")]

ROWS = "/data/rows.jsonl"
STEPS = 40


@pytest.mark.parametrize("training", ["SFT", pytest.param("RewardModel", marks=pytest.mark.nightly)])
def test_a_deleted_trainer_goes_on_from_its_checkpoint_and_no_other_role_ever_runs(
    admin: Client, pods: ScriptedPods, namespace: str, training: str
) -> None:
    run = pods.run(namespace, "rows")
    run.supervised, run.hot.max_steps = True, STEPS
    block = {"name": training, "batchSize": 4}
    spec = {"model": TINY["model"], "dataset": {"train": {"jsonl": ROWS}}, "training": block}
    metadata = {"namespace": namespace, "name": "rows"}
    admin.create({"apiVersion": API, "kind": "RLJob", "metadata": metadata, "spec": spec})

    eventually(lambda: run.checkpoint_step >= 5, "a checkpoint", timeout_s=60)
    run.pace_s = 600.0  # or it may be complete before its pod is deleted
    job = wait_for(admin, namespace, "rows", GenerationReady="NotNeeded", RewardReady="NotNeeded")
    assert condition(job, "RewardReady")["message"] == "the training scores nothing"
    admin.delete({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": "rows-trainer-0"}})
    eventually(lambda: run.epochs == [1, 2], "the next epoch", timeout_s=60)
    run.pace_s = 0.1
    assert run.step >= 5

    job = wait_for(admin, namespace, "rows", Complete="True", timeout_s=90)
    assert job["status"]["progress"]["step"] == STEPS
    assert "groupsTrained" not in job["status"]["progress"]
    assert job["status"]["attempts"]["restartsCountTowardsMax"] == 0, "a deleted pod is not the job's fault"
    assert {role["name"] for role in job["status"]["roles"]} == {"trainer"}
    for kind in ("StatefulSet", "Deployment"):
        made = {one["metadata"]["name"] for one in admin.list("apps/v1", kind, namespace)}
        assert made <= {"rows-trainer"}
    secrets = {one["metadata"]["name"] for one in admin.list("v1", "Secret", namespace)}
    assert not [name for name in secrets if "redis" in name]
