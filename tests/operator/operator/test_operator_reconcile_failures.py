"""What happens to one job on a small cluster when pods, machines or trainers fail, stall or are late."""

from __future__ import annotations

import pytest
from areal.plan.cluster_names import Role
from areal_operator.operator.times import QUIET_S
from operator_stage import Stage


def suspend(stage: Stage, value: bool = True) -> None:
    stage.edit(lambda spec: spec.update(suspend=value))


def test_a_trainer_that_dies_restarts_the_trainers_and_touches_nobody_else() -> None:
    stage = Stage(algorithm={"maxSteps": 30})
    stage.until_training(step=7)
    others = {role: stage.uids(role) for role in Role if role is not Role.TRAINER}
    trainers = stage.uids(Role.TRAINER)
    stage.cluster.end_child(stage.pods(Role.TRAINER)[1], -9)
    stage.run(lambda: stage.training.epoch == 2)
    assert stage.uids(Role.TRAINER) == trainers  # in place
    assert stage.training.step >= 5  # from the checkpoint
    assert {role: stage.uids(role) for role in others} == others
    attempts, failure = stage.status["attempts"], stage.status["failures"][-1]
    assert (attempts["epoch"], attempts["restarts"], attempts["restartsCountTowardsMax"]) == (2, 1, 1)
    assert (failure["role"], failure["exitCode"], failure["action"]) == ("trainer", 137, "RestartTrainer")


def test_a_failure_is_counted_once_however_often_it_is_seen() -> None:
    stage = Stage(algorithm={"maxSteps": 40})
    stage.until_training()
    stage.cluster.delete_pod(stage.pods(Role.TRAINER)[0])
    for _ in range(3):
        stage.look()
    stage.new_operator()
    for _ in range(12):
        stage.step()
    assert stage.status["attempts"]["restarts"] == 1
    assert stage.training.epoch == stage.status["attempts"]["epoch"] == 2


@pytest.mark.parametrize("role", [Role.GENERATION, Role.REWARD, Role.WORKER, Role.CONTROLLER, Role.REDIS])
def test_any_other_pod_may_die_alone(role: Role) -> None:
    stage = Stage(algorithm={"maxSteps": 40})
    stage.until_training()
    others = {other: stage.uids(other) for other in Role if other is not role}
    lost = stage.pods(role)[0]
    stage.cluster.delete_pod(lost)
    stage.run(lambda: lost["metadata"]["uid"] not in stage.uids(role) and len(stage.pods(role)) >= 1)
    for _ in range(3):
        stage.step()
    assert {other: stage.uids(other) for other in others} == others
    assert stage.status["attempts"]["restarts"] == 0
    assert stage.training.epoch == 1


def test_a_hopeless_exit_code_ends_the_job() -> None:
    stage = Stage()
    stage.until_training()
    stage.cluster.end_child(stage.pods(Role.TRAINER)[0], 65)
    stage.run(lambda: stage.summary == "Failed")
    assert stage.condition("Failed")["reason"] == "PermanentError"
    assert "digits-trainer-0" in stage.condition("Failed")["message"]
    assert stage.status["failures"][-1]["action"] == "FailJob"


def test_too_many_failures_end_the_job() -> None:
    stage = Stage(failurePolicy={"maxRestarts": 1}, algorithm={"maxSteps": 40})
    stage.until_training()
    for _ in range(2):
        epoch = stage.training.epoch
        stage.cluster.end_child(stage.pods(Role.TRAINER)[0], 1)
        stage.run(lambda epoch=epoch: stage.summary == "Failed" or stage.training.epoch > epoch)  # type: ignore[misc]
        stage.step()
    assert stage.condition("Failed")["reason"] == "MaxRestartsExceeded"
    assert stage.status["attempts"]["restartsCountTowardsMax"] == 1


def test_a_rule_makes_an_eviction_cost_nothing() -> None:
    rule = {"name": "evicted", "action": "RestartTrainer", "countTowardsMax": False, "roles": ["trainer"]}
    rule["onPodConditions"] = [{"type": "DisruptionTarget"}]
    stage = Stage(failurePolicy={"maxRestarts": 0, "rules": [rule]}, algorithm={"maxSteps": 40})
    stage.until_training()
    stage.cluster.delete_pod(stage.pods(Role.TRAINER)[0], disrupted="EvictionByEvictionAPI")
    stage.look()
    stage.run(lambda: stage.training.epoch == 2)
    assert stage.status["attempts"]["restartsCountTowardsMax"] == 0
    assert stage.status["failures"][-1]["rule"] == "evicted"


def test_a_pod_on_a_dead_machine_gives_its_place_to_another() -> None:
    stage = Stage(algorithm={"maxSteps": 60})
    stage.until_training()
    lost = stage.cluster.lose_node("n2")
    stage.run(lambda: stage.training.epoch >= 2, limit=60)
    forced = [write.name for write in stage.operator.writes if write.verb == "delete" and write.force]
    assert sorted(forced) == sorted(pod["metadata"]["name"] for pod in lost)


def test_redis_on_a_silent_machine_moves_only_when_someone_vouches_for_its_end() -> None:
    stage = Stage(algorithm={"maxSteps": 200})
    stage.until_training()
    old = stage.uids(Role.REDIS)
    node = stage.pods(Role.REDIS)[0]["spec"]["nodeName"]
    stage.cluster.lose_node(node)
    for _ in range(10):
        stage.step()
    assert stage.uids(Role.REDIS) == old
    machine = stage.cluster.api.objects["Node", "", node]
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    stage.cluster.api.put({**machine, "spec": {"taints": [taint]}})
    stage.run(lambda: not stage.uids(Role.REDIS) & old)


def test_trainers_leave_a_machine_that_is_reclaimed_and_it_costs_nothing() -> None:
    stage = Stage(algorithm={"maxSteps": 60})
    stage.until_training(step=7)
    node = stage.pods(Role.TRAINER)[1]["spec"]["nodeName"]
    machine = stage.cluster.api.objects["Node", "", node]
    reclaimed = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
    stage.cluster.api.put({**machine, "spec": {"taints": [reclaimed]}})
    step = stage.training.step
    stage.look()
    assert stage.training.step >= step
    assert "deletionTimestamp" in stage.pods(Role.TRAINER)[1]["metadata"]
    assert "deletionTimestamp" not in stage.pods(Role.TRAINER)[0]["metadata"]
    stage.cluster.api.put({**machine, "spec": {}})
    stage.run(lambda: stage.training.epoch == 2)
    assert stage.status["attempts"]["restarts"] == 0


# Stalls and deadlines


def test_a_job_without_steps_is_stalled_and_its_trainers_restart() -> None:
    stage = Stage(runPolicy={"stallTimeoutSeconds": 60}, algorithm={"maxSteps": 30})
    stage.until_training()
    stage.training.hung = True
    stage.operator.roles.stalled = "no server holds a version that is young enough"
    stage.run(lambda: stage.status["attempts"]["restarts"] == 1)
    progressing = stage.condition("Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "Stalled")
    assert "no server holds a version" in progressing["message"]
    assert ("Warning", "Stalled") in [(kind, reason) for kind, reason, _ in stage.operator.events]
    stage.operator.roles.stalled = ""
    stage.run(lambda: stage.summary == "Complete")


def test_an_operator_that_hears_nobody_restarts_nobody() -> None:
    stage = Stage(runPolicy={"stallTimeoutSeconds": 60}, algorithm={"maxSteps": 500})
    stage.until_training()
    stage.operator.roles.cut = True
    for _ in range(40):
        stage.step()
    assert stage.status["attempts"]["restarts"] == 0
    stage.operator.roles.cut = False
    stage.step()
    assert stage.summary == "Running"


def test_a_job_that_never_trains_a_step_fails_and_says_what_is_missing() -> None:
    stage = Stage(runPolicy={"startupDeadlineSeconds": 120})
    stage.run(lambda: stage.condition("Prepared")["status"] == "True" if stage.status else False)
    stage.operator.roles.cut = True
    stage.run(lambda: stage.summary == "Failed")
    assert stage.condition("Failed")["reason"] == "StartupDeadlineExceeded"
    assert "does not answer" in stage.condition("Failed")["message"]


def test_time_at_rest_is_no_active_time() -> None:
    stage = Stage(runPolicy={"activeDeadlineSeconds": 300}, algorithm={"maxSteps": 1000})
    stage.until_training()
    suspend(stage)
    stage.run(lambda: stage.summary == "Suspended")
    for _ in range(10):
        stage.step(100.0)
    suspend(stage, False)
    stage.until_training()
    stage.run(lambda: stage.summary == "Failed", limit=100)
    assert stage.condition("Failed")["reason"] == "ActiveDeadlineExceeded"


def test_a_lost_machine_is_never_called_progress_and_is_on_record_once() -> None:
    """Silence comes first, then the node's state, its pods' end, a restored step, and last a made one."""
    stage = Stage(algorithm={"maxSteps": 4000})
    stage.until_training(step=8)
    lost = stage.pods(Role.TRAINER)[1]["spec"]["nodeName"]
    stage.cluster.down.add(lost)
    said: list[tuple[int, str, str]] = []
    for tick in range(60):
        if tick == 12:
            stage.cluster.lose_node(lost)
        if tick == 40:
            stage.cluster.mend_node(lost)
        stage.step(5.0)
        said.append((tick, stage.summary, stage.condition("Progressing")["reason"]))
        if stage.training.made_by_epoch.get(2, 0) > 0:
            break
    assert "Verifying" in {summary for _, summary, _ in said}
    claimed = [tick for tick, _, reason in said[:-1] if reason == "StepReported"]
    assert claimed == list(range(len(claimed))), said
    assert len(claimed) * 5.0 <= QUIET_S + 5.0, "nothing is claimed once two rounds brought no answer"
    stage.run(lambda: stage.summary == "Running")
    entries = [entry for entry in stage.status["failures"] if entry["role"] == "trainer"]
    assert [(entry["owner"], entry["epoch"], entry["counted"]) for entry in entries] == [("node", 1, False)]
    assert entries[0]["node"] == lost
    evidence = stage.status["progress"]["evidence"]
    assert (evidence["epoch"], evidence["made"]) == (stage.status["attempts"]["epoch"], stage.training.made)


def test_a_changed_template_is_on_record_as_the_users() -> None:
    stage = Stage(algorithm={"maxSteps": 4000})
    stage.until_training()
    stage.edit(lambda spec: spec.update(podTemplate={"trainer": {"env": [{"name": "X", "value": "1"}]}}))
    stage.run(lambda: stage.status["attempts"]["epoch"] == 2 and stage.summary == "Running")
    (entry,) = stage.status["failures"]
    assert (entry["owner"], entry["reason"], entry["epoch"], entry["counted"]) == ("user", "TemplateChanged", 1, False)
    assert stage.status["attempts"]["restarts"] == 0
