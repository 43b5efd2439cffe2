"""Stories of a job on a cluster that fails it: whose fault an incident is, what it costs, what is waited for."""

from __future__ import annotations

from typing import Any

import pytest
from areal.plan.cluster_names import Role
from areal_operator.kube.errors import ForbiddenError
from areal_operator.operator.times import SILENT_S, parse
from operator_stage import KEY, Stage

LONG = {"algorithm": {"maxSteps": 4000}}


def training(**spec: Any) -> Stage:
    stage = Stage(**{**LONG, **spec})
    stage.until_training()
    return stage


def last_failure(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = stage.status["failures"][-1]
    return found


# Waiting for nodes


def test_a_job_on_a_full_cluster_waits_however_long_and_keeps_the_schedulers_words() -> None:
    stage = Stage(runPolicy={"startupDeadlineSeconds": 600})
    stage.cluster.unschedulable = True
    for _ in range(40):
        stage.step(100.0)
    assert stage.condition("Scheduled")["reason"] == "Unschedulable"
    assert "0/3 nodes" in stage.condition("Scheduled")["message"]
    assert stage.summary == "Preparing"
    stage.new_operator()
    stage.cluster.unschedulable = False
    stage.run(lambda: stage.summary == "Complete")


def test_the_startup_clock_goes_on_when_the_pods_have_nodes() -> None:
    stage = Stage(runPolicy={"startupDeadlineSeconds": 300})
    stage.cluster.unschedulable = True
    for _ in range(10):
        stage.step(100.0)
    stage.cluster.unschedulable = False
    stage.operator.roles.cut = True
    began = stage.cluster.now
    stage.run(lambda: stage.summary == "Failed")
    assert stage.condition("Failed")["reason"] == "StartupDeadlineExceeded"
    assert 250 <= stage.cluster.now - began <= 320


def test_a_queue_deadline_ends_the_wait_and_the_reason_stays() -> None:
    stage = Stage(runPolicy={"queueDeadlineSeconds": 900})
    stage.cluster.unschedulable = True
    stage.run(lambda: stage.summary == "Failed", seconds=30.0)
    failed, scheduled = stage.condition("Failed"), stage.condition("Scheduled")
    assert failed["reason"] == "QueueDeadlineExceeded"
    assert "0/3 nodes" in failed["message"]
    stage.step()
    assert stage.condition("Scheduled")["reason"] == scheduled["reason"] == "Unschedulable"


def test_time_for_which_pods_had_nodes_is_in_no_queue_deadline() -> None:
    stage = training(runPolicy={"queueDeadlineSeconds": 200, "stallTimeoutSeconds": 10_000})
    for _ in range(30):
        stage.step(20.0)
    assert stage.summary == "Running"
    assert stage.status["waiting"] == {"seconds": 0}


# Blame


def test_a_fleet_that_is_gone_is_waited_for_and_restarts_no_trainer() -> None:
    stage = training(runPolicy={"stallTimeoutSeconds": 60}, failurePolicy={"maxRestarts": 0})
    stage.training.hung = True
    stage.cluster.unschedulable = True
    for pod in stage.pods(Role.GENERATION):
        stage.cluster.delete_pod(pod, disrupted="PreemptionByScheduler")
    for _ in range(60):
        stage.step(30.0)
    assert stage.summary == "Waiting"
    assert stage.condition("Progressing")["reason"] == "Waiting"
    assert stage.status["attempts"]["restarts"] == 0
    stage.cluster.unschedulable = False
    stage.training.hung = False
    stage.run(lambda: stage.summary == "Running")
    assert stage.status["attempts"]["restarts"] == 0


def test_trainers_that_do_nothing_have_the_whole_time_once_the_fleet_is_back() -> None:
    stage = training(runPolicy={"stallTimeoutSeconds": 300})
    stage.training.hung = True
    stage.cluster.unschedulable = True
    for pod in stage.pods(Role.GENERATION):
        stage.cluster.delete_pod(pod)
    for _ in range(30):
        stage.step(30.0)
    stage.cluster.unschedulable = False
    stage.run(lambda: stage.condition("GenerationReady")["status"] == "True")
    back = stage.cluster.now
    stage.run(lambda: stage.status["attempts"]["restarts"] == 1)
    assert 280 <= stage.cluster.now - back <= 320
    assert last_failure(stage)["owner"] == "job"


@pytest.mark.parametrize(
    ("reason", "owner"),
    [
        ("EvictionByEvictionAPI", "platform"),
        ("PreemptionByScheduler", "queue"),
        ("DeletionByTaintManager", "node"),
        ("", "platform"),
    ],
)
def test_pods_that_others_take_away_cost_the_job_nothing(reason: str, owner: str) -> None:
    stage = training(failurePolicy={"maxRestarts": 0})
    for _ in range(3):
        epoch = stage.training.epoch
        stage.cluster.delete_pod(stage.pods(Role.TRAINER)[1], disrupted=reason)
        stage.run(lambda epoch=epoch: stage.training.epoch > epoch and stage.summary == "Running")  # type: ignore[misc]
    attempts = stage.status["attempts"]
    assert (attempts["restarts"], attempts["restartsCountTowardsMax"]) == (3, 0)
    assert (last_failure(stage)["owner"], last_failure(stage)["counted"]) == (owner, False)


def test_a_machine_that_was_taken_away_is_named_though_pod_and_node_are_gone() -> None:
    stage = training(failurePolicy={"maxRestarts": 0})
    lost = stage.pods(Role.TRAINER)[1]
    stage.cluster.remove_node(lost["spec"]["nodeName"])
    stage.run(lambda: stage.training.epoch == 2)
    failure = last_failure(stage)
    assert (failure["reason"], failure["pod"]) == ("NodeLost", lost["metadata"]["name"])
    assert (failure["owner"], failure["counted"]) == ("node", False)


def test_a_pod_that_was_evicted_between_two_looks_is_known_by_its_last_state() -> None:
    stage = training(failurePolicy={"maxRestarts": 0})
    pod = stage.pods(Role.TRAINER)[0]
    stage.cluster.delete_pod(pod, disrupted="PreemptionByScheduler")
    stage.cluster.tick()
    stage.cluster.tick()
    assert pod["metadata"]["uid"] not in stage.uids(Role.TRAINER)
    stage.look()
    assert (last_failure(stage)["reason"], last_failure(stage)["owner"]) == ("PreemptionByScheduler", "queue")


def test_an_echo_of_a_dead_machine_is_not_the_jobs_own_failure() -> None:
    stage = training(failurePolicy={"maxRestarts": 0})
    node = stage.pods(Role.TRAINER)[1]["spec"]["nodeName"]
    stage.cluster.down.add(node)  # power loss: its peers' collectives fail at once, Kubernetes notices later
    for _ in range(4):
        stage.step(10.0)
    stage.cluster.lose_node(node)
    stage.run(lambda: stage.training.epoch == 2)
    assert stage.status["attempts"]["restartsCountTowardsMax"] == 0
    assert last_failure(stage)["owner"] == "node"


# Back-off and budget


def test_epochs_that_make_no_step_are_further_and_further_apart() -> None:
    stage = training(failurePolicy={"maxRestarts": 20})
    stage.training.checkpoint_every = 10**6
    starts: list[float] = []
    while len(starts) < 8:
        epoch = stage.training.epoch
        stage.cluster.end_child(stage.pods(Role.TRAINER)[0], 75)
        ended = stage.cluster.now
        stage.run(lambda epoch=epoch: stage.status["attempts"]["epoch"] > epoch, limit=1000, seconds=2.0)  # type: ignore[misc]
        starts.append(stage.cluster.now - ended)
        stage.training.hung = True
        stage.run(lambda epoch=epoch: stage.training.epoch > epoch, seconds=2.0)  # type: ignore[misc]
        stage.training.hung = True
    pauses = [round(pause, -1) for pause in starts]
    assert pauses == [0, 10, 20, 40, 80, 160, 300, 300]


def test_three_minutes_of_storage_outage_end_no_job() -> None:
    stage = training()
    stage.training.checkpoint_every = 10**6
    until = stage.cluster.now + 180
    while stage.cluster.now < until:
        stage.cluster.end_child(stage.pods(Role.TRAINER)[0], 75)
        stage.step(2.0)
    assert stage.summary != "Failed"
    assert stage.status["attempts"]["restartsCountTowardsMax"] < 8
    stage.run(lambda: stage.summary == "Running")


def test_a_pause_is_said_and_survives_the_operator() -> None:
    stage = training()
    stage.training.checkpoint_every = 10**6
    for _ in range(3):
        stage.cluster.end_child(stage.pods(Role.TRAINER)[0], 1)
        stage.step(0.1)
        stage.step(0.1)
    stage.run(lambda: stage.condition("Progressing")["reason"] == "BackingOff", seconds=1.0)
    due = parse(stage.status["attempts"]["nextEpochTime"])
    stage.new_operator()
    stage.step(1.0)
    assert due is not None
    assert parse(stage.status["attempts"]["nextEpochTime"]) == due
    epoch = stage.status["attempts"]["epoch"]
    stage.run(lambda: stage.status["attempts"]["epoch"] > epoch, seconds=1.0)
    assert stage.cluster.now >= due


def test_a_checkpoint_refunds_what_was_spent() -> None:
    stage = training(failurePolicy={"maxRestarts": 1})
    for _ in range(4):
        epoch, checkpoint = stage.training.epoch, stage.training.checkpoint
        stage.cluster.end_child(stage.pods(Role.TRAINER)[0], 1)
        stage.run(lambda epoch=epoch: stage.training.epoch > epoch)  # type: ignore[misc]
        stage.run(lambda checkpoint=checkpoint: stage.training.checkpoint > checkpoint)  # type: ignore[misc]
        stage.step()
    assert stage.summary == "Running"
    assert stage.status["attempts"]["restarts"] == 4
    assert stage.status["attempts"]["restartsCountTowardsMax"] == 0


def test_restarts_are_counted_within_a_window() -> None:
    stage = training(failurePolicy={"maxRestarts": 1, "restartWindowSeconds": 600})
    stage.training.checkpoint_every = 10**6
    for _ in range(3):
        epoch = stage.training.epoch
        stage.cluster.end_child(stage.pods(Role.TRAINER)[0], 1)
        stage.run(lambda epoch=epoch: stage.training.epoch > epoch and stage.summary == "Running")  # type: ignore[misc]
        stage.step(700.0)
    assert stage.status["attempts"]["restarts"] == 3
    for _ in range(2):
        stage.run(lambda: stage.summary in ("Running", "Failed"))
        stage.cluster.end_child(stage.pods(Role.TRAINER)[0], 1)
        stage.step()
    stage.run(lambda: stage.summary == "Failed")
    assert stage.condition("Failed")["reason"] == "MaxRestartsExceeded"


def test_a_configuration_that_worked_once_is_no_mistake_of_its_author() -> None:
    stage = training()
    stage.cluster.end_child(stage.pods(Role.TRAINER)[0], 64)
    stage.run(lambda: stage.training.epoch == 2)
    assert stage.status["attempts"]["restartsCountTowardsMax"] == 1


def test_a_configuration_that_never_worked_fails_at_once() -> None:
    stage = Stage(**LONG)
    stage.run(lambda: KEY in stage.cluster.training and stage.training.epoch == 1)
    assert stage.status["progress"]["step"] == 0
    stage.cluster.end_child(stage.pods(Role.TRAINER)[0], 64)
    stage.run(lambda: stage.summary == "Failed")
    assert stage.condition("Failed")["reason"] == "PermanentError"


# Nodes


def test_a_cordon_moves_nobody() -> None:
    stage = training()
    uids = {role: stage.uids(role) for role in Role}
    for name in ("n1", "n2", "n3"):
        machine = stage.cluster.api.objects["Node", "", name]
        taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        stage.cluster.api.put({**machine, "spec": {"unschedulable": True, "taints": [taint]}})
    for _ in range(10):
        stage.step()
    assert {role: stage.uids(role) for role in Role} == uids
    assert stage.training.epoch == 1


def test_a_silent_machine_is_given_up_soon_after_kubernetes_noticed() -> None:
    stage = training()
    lost = stage.cluster.lose_node("n2")
    began = stage.cluster.now
    names = {pod["metadata"]["name"] for pod in lost if pod["metadata"]["labels"]["areal.dev/role"] != "redis"}

    def forced() -> set[str]:
        return {write.name for write in stage.operator.writes if write.verb == "delete" and write.force}

    while not names <= forced():
        stage.cluster.tick(min(stage.again_s or 20.0, 20.0))
        stage.operator.roles.poll()
        stage.look()
        assert stage.cluster.now <= began + SILENT_S + 5
    stage.run(lambda: stage.training.epoch == 2)
    assert stage.status["attempts"]["restartsCountTowardsMax"] == 0


def test_a_silent_machine_under_redis_is_named_with_the_cure_and_stops_the_clocks() -> None:
    stage = training(runPolicy={"stallTimeoutSeconds": 60}, failurePolicy={"maxRestarts": 0})
    node = stage.pods(Role.REDIS)[0]["spec"]["nodeName"]
    stage.cluster.lose_node(node)
    stage.step()
    scheduled = stage.condition("Scheduled")
    assert scheduled["reason"] == "NodeSilent"
    assert f"kubectl taint node {node} node.kubernetes.io/out-of-service" in scheduled["message"]
    stage.run(lambda: stage.training.epoch >= 2 or stage.training.step > 3)
    stage.training.hung = True
    for _ in range(30):
        stage.step(20.0)
    assert stage.summary != "Failed"
    assert stage.status["attempts"]["restartsCountTowardsMax"] == 0


# Refusals of pods


def test_a_pod_that_would_be_refused_is_refused_before_anything_is_made() -> None:
    stage = Stage()
    words = 'pods "digits-trainer-dry" is forbidden: exceeded quota: team, requested: nvidia.com/gpu=8, limited: 4'
    stage.operator.refusals["Pod"] = ForbiddenError(403, "Forbidden", f"POST /api/v1/namespaces/team/pods: {words}")
    stage.step()
    accepted = stage.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "DryRunRejected")
    assert f"Pod of StatefulSet digits-trainer: {words}" in accepted["message"]
    assert [write.kind for write in stage.operator.writes] == ["RLJob"]


@pytest.mark.parametrize(
    "words",
    [
        'admission webhook "mesh.example.com" does not support dry run',
        "error looking up service account team/default: serviceaccount not found",
    ],
)
def test_an_answer_that_is_about_the_question_refuses_no_job(words: str) -> None:
    stage = Stage()
    stage.operator.refusals["Pod"] = ForbiddenError(403, "Forbidden", f"POST /api/v1/namespaces/team/pods: {words}")
    stage.until_training()
    assert stage.condition("Accepted")["status"] == "True"


def test_pods_that_are_refused_later_are_named_and_no_deadline_runs() -> None:
    stage = Stage(runPolicy={"startupDeadlineSeconds": 300})
    stage.run(lambda: stage.condition("Prepared")["status"] == "True" if stage.status else False)
    stage.cluster.pods_refused = True
    stage.operator.refusals["Pod"] = ForbiddenError(403, "Forbidden", "POST /pods: exceeded quota: team")
    stage.run(lambda: stage.condition("Scheduled")["reason"] == "PodsRefused")
    assert "exceeded quota: team" in stage.condition("Scheduled")["message"]
    for _ in range(20):
        stage.step(60.0)
    assert stage.summary == "Starting"
    stage.cluster.pods_refused = False
    stage.operator.refusals.clear()
    stage.run(lambda: stage.summary == "Complete")


# What isn't ours to judge


def test_metadata_that_the_api_server_took_stops_no_running_job() -> None:
    stage = training()
    annotations = {"Example.com/Owner": "somebody", **{f"example.com/a{number}": "" for number in range(300)}}
    job = stage.job
    stage.cluster.api.put({**job, "metadata": {**job["metadata"], "annotations": annotations}})
    stage.new_operator()
    stage.step()
    stage.step()
    assert stage.condition("Accepted")["status"] == "True"
    assert stage.summary == "Running"
