"""The life of a job under an operator: from its first look to Complete, and what people do to it in between."""

from __future__ import annotations

import json

import pytest
from areal.cli.main import app
from kube.follow import History
from kube.harness.client import Client
from kube.harness.control_plane import Cluster
from kube.harness.fixtures import Runner
from kube.harness.processes import eventually
from kube.jobs import API, brief, condition, holds, read, rljob, summary, wait_for
from kube.operators import children
from support.scripted_pods import ScriptedPods
from typer.testing import CliRunner

pytestmark = [pytest.mark.kube_api, pytest.mark.usefixtures("operator")]

WORDS = ["", "Pending", "Preparing", "Starting", "Running", "Completing", "Complete"]


def ready_pods(admin: Client, namespace: str, role: str = "") -> dict[str, str]:
    """Name → uid of pods that run."""
    labels = "areal.dev/rljob=tiny" + (f",areal.dev/role={role}" if role else "")
    pods = admin.list("v1", "Pod", namespace, labels)
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods if pod["status"]["phase"] == "Running"}


def running(admin: Client, namespace: str) -> dict[str, str]:
    """Wait until the job trains; its pods."""
    wait_for(admin, namespace, Progressing="True")
    return ready_pods(admin, namespace)


def test_a_job_is_prepared_runs_and_completes(
    admin: Client, pods: ScriptedPods, namespace: str, kubectl: Runner
) -> None:
    with History(admin, namespace, (API, "RLJob")) as history:
        admin.create(rljob(namespace, algorithm={"maxSteps": 20}))
        kubectl("wait", "--for=condition=Complete", "rljob/tiny", "--timeout=60s", namespace=namespace, timeout_s=70)
        job = wait_for(admin, namespace, summary="Complete")
        eventually(lambda: not ready_pods(admin, namespace), "pods gone")
        words = [word or "" for word in history.values("RLJob", "tiny", "status", "summary")]
    assert words == [word for word in WORDS if word in words], "it never went backwards"
    assert {"Preparing", "Running", "Complete"} <= set(words)
    assert condition(job, "Complete")["reason"] == "MaxStepsReached"
    assert job["status"]["progress"]["step"] == 20
    assert job["status"]["audit"] == {
        "lost": 0,
        "duplicated": 0,
        "tombstones": {},
        "ok": True,
        "message": "nothing lost",
    }
    assert pods.run(namespace, "tiny").epochs == [1]
    row = kubectl("get", "rljob", "tiny", namespace=namespace).stdout.splitlines()[1].split()
    assert row[:3] == ["tiny", "Complete", "20"]
    told = kubectl("describe", "rljob", "tiny", namespace=namespace).stdout
    assert all(word in told for word in ("Accepted", "Prepared", "TrainerReady", "Auditing", "Complete"))
    assert "PersistentVolumeClaim/tiny-run" in children(admin, namespace), "what was trained stays"


def test_what_has_ended_stays_ended(admin: Client, namespace: str, pods: ScriptedPods) -> None:
    admin.create(rljob(namespace, algorithm={"maxSteps": 2}))
    job = wait_for(admin, namespace, Complete="True")
    eventually(lambda: not ready_pods(admin, namespace), "pods gone")
    for kind, version in (("StatefulSet", "apps/v1"), ("Job", "batch/v1")):
        for obj in admin.list(version, kind, namespace):
            admin.delete(obj)
    eventually(lambda: not admin.list("v1", "Pod", namespace), "their pods are gone")
    before = children(admin, namespace)
    admin.patch(job, {"spec": {"algorithm": {"maxSteps": 50}}})
    eventually(lambda: read(admin, namespace)["metadata"]["generation"] == 2, "the new spec is there")
    admin.patch(job, {"metadata": {"annotations": {"touched": "twice"}}})
    other = rljob(namespace, "other", algorithm={"maxSteps": 2})
    admin.create(other)
    wait_for(admin, namespace, "other", Complete="True")  # the operator has had time for both
    assert {name: uid for name, uid in children(admin, namespace).items() if "/tiny" in name} == {
        name: uid for name, uid in before.items() if "/tiny" in name
    }
    assert summary(read(admin, namespace)) == "Complete"
    assert pods.run(namespace, "tiny").epochs == [1]


def test_suspend_saves_a_checkpoint_frees_all_pods_and_resume_goes_on_from_it(
    admin: Client, pods: ScriptedPods, namespace: str
) -> None:
    run = pods.run(namespace, "tiny")
    job = admin.create(rljob(namespace))
    before = running(admin, namespace)
    eventually(lambda: run.step >= 7, "some steps")
    run.hold_drain = True
    admin.patch(job, {"spec": {"suspend": True}})
    wait_for(admin, namespace, Suspended="CheckpointPending", summary="Suspending")
    assert ready_pods(admin, namespace) == before, "nobody goes before the checkpoint is written"
    pods.finish_drain(namespace, "tiny")
    job = wait_for(admin, namespace, Suspended="True", summary="Suspended")
    assert not ready_pods(admin, namespace)
    assert job["status"]["checkpoint"]["step"] == run.checkpoint_step >= 7
    kept = children(admin, namespace)
    assert {"PersistentVolumeClaim/tiny-run", "Secret/tiny-access", "StatefulSet/tiny-trainer"} <= kept.keys()
    saved = run.checkpoint_step
    admin.patch(job, {"spec": {"suspend": False}})
    job = wait_for(admin, namespace, TrainerReady="True", Progressing="True", summary="Running")
    assert run.epochs == [1, 2]
    assert eventually(lambda: run.step > saved, "it trains on")
    assert job["status"]["attempts"]["restarts"] == 0, "a suspension is no failure"
    assert children(admin, namespace)["PersistentVolumeClaim/tiny-run"] == kept["PersistentVolumeClaim/tiny-run"]


def test_a_job_that_is_made_suspended_has_no_pods_until_it_is_resumed(admin: Client, namespace: str) -> None:
    job = admin.create(rljob(namespace, suspend=True))
    wait_for(admin, namespace, Suspended="True", Accepted="True")
    assert not [name for name in children(admin, namespace) if name.startswith("Pod/")]
    admin.patch(job, {"spec": {"suspend": False}})
    wait_for(admin, namespace, Progressing="True")


def test_kubectl_scale_changes_the_fleet_and_nothing_else(
    admin: Client, pods: ScriptedPods, namespace: str, kubectl: Runner
) -> None:
    admin.create(rljob(namespace))
    before = running(admin, namespace)
    kubectl("scale", "rljob/tiny", "--replicas=3", namespace=namespace)

    def fleet() -> dict[str, int]:
        return dict(read(admin, namespace)["status"]["generation"])

    eventually(lambda: fleet()["readyReplicas"] == 3, "three servers")
    assert len(ready_pods(admin, namespace, "generation")) == 3
    scale = json.loads(kubectl("get", "rljob", "tiny", "--subresource=scale", "-ojson", namespace=namespace).stdout)
    selected = admin.list("v1", "Pod", namespace, scale["status"]["selector"])
    assert len(selected) == 3, "an autoscaler finds the fleet's pods by the selector"
    kubectl("scale", "rljob/tiny", "--replicas=1", namespace=namespace)
    eventually(lambda: ready_pods(admin, namespace) == before, "as before: no other pod was touched")
    assert pods.run(namespace, "tiny").epochs == [1]


def test_hot_fields_reach_the_controller_and_no_pod_is_restarted(
    admin: Client, cluster: Cluster, pods: ScriptedPods, namespace: str
) -> None:
    admin.create(rljob(namespace))
    before, run = running(admin, namespace), pods.run(namespace, "tiny")
    to = ["set", "rljob/tiny", f"--namespace={namespace}", f"--kubeconfig={cluster.kubeconfig}"]
    changed = ["algorithm.maxSteps=40", "algorithm.maxStaleness=1", "rollout.maxConcurrentRollouts=6"]
    told = CliRunner().invoke(app, [*to, *changed])
    assert told.output.split() == [word for change in changed for word in change.split("=")]
    refused = CliRunner().invoke(app, [*to, "algorithm.maxSteps=-1"]).exception
    assert "spec.algorithm.maxSteps" in str(refused)
    eventually(lambda: (run.hot.max_steps, run.hot.max_staleness, run.hot.max_concurrent_rollouts) == (40, 1, 6), "hot")
    assert ready_pods(admin, namespace) == before
    job = wait_for(admin, namespace, Complete="True")
    assert (job["status"]["progress"]["step"], run.epochs) == (40, [1])


def test_a_controller_that_comes_back_is_told_the_hot_fields_again(
    admin: Client, pods: ScriptedPods, namespace: str
) -> None:
    job = admin.create(rljob(namespace))
    running(admin, namespace)
    run = pods.run(namespace, "tiny")
    admin.patch(job, {"spec": {"algorithm": {"maxSteps": 900}}})
    eventually(lambda: run.hot.max_steps == 900, "told")
    (name,) = ready_pods(admin, namespace, "controller")
    admin.delete({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name}})
    eventually(lambda: name not in ready_pods(admin, namespace, "controller"), "another controller")
    eventually(lambda: run.controllers == 1 and run.hot.max_steps == 900, "told again")
    assert run.epochs == [1], "the trainers outlive their controller"


@pytest.mark.parametrize(("storage", "left"), [({"retain": "Delete"}, []), ({}, ["PersistentVolumeClaim/tiny-run"])])
def test_a_job_is_deleted_when_its_time_after_the_end_is_up_and_leaves_what_is_retained(
    admin: Client, namespace: str, storage: dict[str, str], left: list[str]
) -> None:
    blocks = {"algorithm": {"maxSteps": 2}, "runPolicy": {"ttlSecondsAfterFinished": 1}, "storage": storage}
    admin.create(rljob(namespace, **blocks))
    wait_for(admin, namespace, Prepared="True")
    eventually(lambda: not read(admin, namespace), "the job is gone")
    eventually(lambda: [*children(admin, namespace)] == left, "nothing else is left", timeout_s=60)
    assert not read(admin, namespace), "nobody made it again"


def test_deleting_a_running_job_leaves_nothing_behind(admin: Client, namespace: str, kubectl: Runner) -> None:
    job = admin.create(rljob(namespace))
    running(admin, namespace)
    assert len(children(admin, namespace)) > 20
    assert "finalizers" not in read(admin, namespace)["metadata"]
    kubectl("delete", "rljob", "tiny", "--timeout=20s", namespace=namespace)
    eventually(lambda: not children(admin, namespace), "nothing is left")
    again = admin.create(rljob(namespace, algorithm={"maxSteps": 2}))
    assert again["metadata"]["uid"] != job["metadata"]["uid"]
    wait_for(admin, namespace, Complete="True")


def test_another_managers_job_is_left_alone(admin: Client, namespace: str) -> None:
    admin.create(rljob(namespace, managedBy="example.com/queue"))
    admin.create(rljob(namespace, "ours", suspend=True))
    wait_for(admin, namespace, "ours", Suspended="True")
    job = read(admin, namespace)
    assert "status" not in job or not job["status"].get("conditions"), brief(job)
    assert not [name for name in children(admin, namespace) if "/tiny" in name]
    assert not holds(job, "Accepted")
