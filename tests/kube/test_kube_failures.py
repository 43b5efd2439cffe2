"""Failures of pods and processes: who is restarted, who is left in peace, what is counted, when the job gives up."""

from __future__ import annotations

from typing import Any

import pytest
from kube.harness.client import Client
from kube.harness.fleet import Fleet
from kube.harness.processes import eventually
from kube.jobs import condition, read, rljob, wait_for
from support.scripted_pods import ScriptedPods
from support.scripted_run import ScriptedRun

pytestmark = [pytest.mark.kube_api, pytest.mark.usefixtures("operator")]


def pods_of(admin: Client, namespace: str, role: str = "") -> dict[str, tuple[str, int]]:
    """Name → uid and restarts of the job's pods that run."""
    found = admin.list("v1", "Pod", namespace, "areal.dev/rljob=tiny" + (f",areal.dev/role={role}" if role else ""))
    return {
        pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in found
        if pod["status"]["phase"] == "Running"
    }


def train(admin: Client, pods: ScriptedPods, namespace: str, **blocks: Any) -> ScriptedRun:
    """A job that trains."""
    admin.create(rljob(namespace, **blocks))
    wait_for(admin, namespace, TrainerReady="True", Progressing="True")
    return pods.run(namespace, "tiny")


def delete_pod(admin: Client, namespace: str, name: str) -> None:
    admin.delete({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name}})


def test_a_dead_trainer_is_restarted_in_its_pod_in_a_new_epoch_from_the_checkpoint(
    admin: Client, pods: ScriptedPods, namespace: str
) -> None:
    run = train(admin, pods, namespace, trainer={"replicas": 2})
    before = pods_of(admin, namespace)
    eventually(lambda: run.step >= 6, "steps")
    pods.end_trainer(namespace, "tiny", 1, rank=1)
    eventually(lambda: run.epochs == [1, 2] and run.whole, "a gang of the next epoch")
    job = wait_for(admin, namespace, TrainerReady="True", Progressing="True")
    assert pods_of(admin, namespace) == before, "no pod was restarted"
    assert {child.status.epoch for child in run.trainers.values()} == {2}
    attempts = job["status"]["attempts"]
    assert (attempts["epoch"], attempts["restarts"]) == (2, 1)
    (failure,) = job["status"]["failures"]
    assert (failure["owner"], failure["counted"]) == ("job", True)
    seen = {name: failure[name] for name in ("role", "pod", "exitCode", "action", "epoch")}
    assert seen == {"role": "trainer", "pod": "tiny-trainer-1", "exitCode": 1, "action": "RestartTrainer", "epoch": 1}
    assert failure["step"] > 0


def test_a_lost_trainer_pod_takes_the_gang_with_it_and_nobody_else(
    admin: Client, pods: ScriptedPods, namespace: str
) -> None:
    run = train(admin, pods, namespace, trainer={"replicas": 2})
    before = pods_of(admin, namespace)
    delete_pod(admin, namespace, "tiny-trainer-1")
    eventually(lambda: run.epochs == [1, 2] and run.whole, "a gang of the next epoch")
    after = pods_of(admin, namespace)
    assert {name for name in before if before[name] != after.get(name)} == {"tiny-trainer-1"}


@pytest.mark.parametrize("role", ["generation", "worker", "reward-custom"])
def test_a_crash_elsewhere_touches_nobody_else(
    admin: Client, pods: ScriptedPods, kwok: Fleet, namespace: str, role: str
) -> None:
    run = train(admin, pods, namespace)
    before = pods_of(admin, namespace)
    victim = next(iter(pods_of(admin, namespace, role)))
    kwok.end_container(namespace, victim, 137, "OOMKilled")
    failures = eventually(lambda: read(admin, namespace)["status"].get("failures"), "the failure is in the record")
    told = {name: failures[-1][name] for name in ("role", "exitCode", "reason", "action")}
    assert told == {"role": role, "exitCode": 137, "reason": "OOMKilled", "action": "RestartPod"}
    after = pods_of(admin, namespace)
    assert {name for name in before if before[name] != after.get(name)} == {victim}
    assert run.epochs == [1]
    assert read(admin, namespace)["status"]["attempts"]["restartsCountTowardsMax"] == 0


def test_a_generation_pod_that_is_evicted_comes_back(
    admin: Client, pods: ScriptedPods, kwok: Fleet, namespace: str
) -> None:
    run = train(admin, pods, namespace)
    ((name, before),) = pods_of(admin, namespace, "generation").items()
    kwok.fail_pod(namespace, name, 137, "Evicted")
    eventually(lambda: pods_of(admin, namespace, "generation").get(name, before) != before, "another pod")
    wait_for(admin, namespace, GenerationReady="AllReplicasReady")
    assert run.epochs == [1]


@pytest.mark.parametrize("code", [65, pytest.param(70, marks=pytest.mark.nightly)])
def test_a_trainer_that_no_restart_can_help_fails_the_job(
    admin: Client, pods: ScriptedPods, namespace: str, code: int
) -> None:
    run = train(admin, pods, namespace)
    pods.end_trainer(namespace, "tiny", code)
    job = wait_for(admin, namespace, Failed="PermanentError", summary="Failed")
    assert str(code) in condition(job, "Failed")["message"]
    assert run.epochs == [1]


@pytest.mark.nightly  # rules and their order are values in, values out: test_operator_failure.py
def test_a_rule_of_the_job_decides_first(admin: Client, pods: ScriptedPods, namespace: str) -> None:
    rule = {"name": "licence", "action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    train(admin, pods, namespace, failurePolicy={"rules": [rule]})
    pods.end_trainer(namespace, "tiny", 42)
    job = wait_for(admin, namespace, Failed="RuleMatched")
    assert "licence" in condition(job, "Failed")["message"]
    assert job["status"]["failures"][-1]["rule"] == "licence"


@pytest.mark.nightly  # the same rules
def test_a_disruption_is_not_counted_when_a_rule_says_so(
    admin: Client, pods: ScriptedPods, kwok: Fleet, namespace: str
) -> None:
    rule = {
        "name": "disruption",
        "action": "RestartTrainer",
        "countTowardsMax": False,
        "roles": ["trainer"],
        "onPodConditions": [{"type": "DisruptionTarget"}],
    }
    run = train(admin, pods, namespace, failurePolicy={"maxRestarts": 0, "rules": [rule]})
    kwok.set_condition(namespace, "tiny-trainer-0", "DisruptionTarget", reason="PreemptionByScheduler")
    with kwok.lingering(namespace, "tiny-trainer-0"):  # a kubelet takes its time
        delete_pod(admin, namespace, "tiny-trainer-0")
        eventually(lambda: read(admin, namespace)["status"].get("failures"), "the failure is in the record")
    eventually(lambda: run.epochs == [1, 2] and run.whole, "a gang of the next epoch")
    job = wait_for(admin, namespace, TrainerReady="True")
    attempts = job["status"]["attempts"]
    assert (attempts["restarts"], attempts["restartsCountTowardsMax"]) == (1, 0)
    assert job["status"]["failures"][-1]["rule"] == "disruption"


def test_one_restart_too_many_fails_the_job_and_its_pods_stay_for_a_look(
    admin: Client, pods: ScriptedPods, namespace: str
) -> None:
    run = train(admin, pods, namespace, failurePolicy={"maxRestarts": 1})
    run.paused = True  # no checkpoint, which would give the restart back

    def checkpoint() -> int:
        return int(read(admin, namespace)["status"].get("checkpoint", {}).get("step", 0))

    eventually(lambda: checkpoint() == run.checkpoint_step, "the last checkpoint is known")
    pods.end_trainer(namespace, "tiny", 1)
    eventually(lambda: run.epochs == [1, 2] and run.whole, "the restart that is allowed")
    pods.end_trainer(namespace, "tiny", 1)
    job = wait_for(admin, namespace, Failed="MaxRestartsExceeded")
    assert run.epochs == [1, 2]
    assert job["status"]["attempts"]["restartsCountTowardsMax"] == 1
    assert "tiny-trainer-0" in pods_of(admin, namespace)


def test_a_job_without_steps_is_stalled_however_well_its_pods_look(
    admin: Client, pods: ScriptedPods, namespace: str
) -> None:
    run = train(admin, pods, namespace, runPolicy={"stallTimeoutSeconds": 3}, failurePolicy={"maxRestarts": 1})
    run.paused, run.stalled = True, "no server answers"
    eventually(lambda: run.epochs == [1, 2], "the trainers are restarted once")
    job = wait_for(admin, namespace, Failed="Stalled")
    assert "stallTimeoutSeconds" in condition(job, "Failed")["message"]


def test_a_job_that_never_trains_fails_at_its_startup_deadline_and_says_who_is_missing(
    admin: Client, pods: ScriptedPods, namespace: str
) -> None:
    hold = {"trainer": {"annotations": {"test.areal.dev/hold": "true"}}}
    admin.create(rljob(namespace, podTemplate=hold, runPolicy={"startupDeadlineSeconds": 4}))
    job = wait_for(admin, namespace, Failed="StartupDeadlineExceeded")
    assert "tiny-trainer-0 does not run" in condition(job, "Failed")["message"]
