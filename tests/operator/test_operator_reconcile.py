"""Stories of one job on a small cluster: what happens to it, and what people then see."""

from __future__ import annotations

import json
from typing import Any

import pytest
from areal.operator.observed import ChildPhase
from areal.operator.runtime.errors import InvalidError
from areal.operator.runtime.resources import Json
from areal.plan.cluster_names import Role
from areal.spec.status import JobStatus
from operator_stage import KEY, Stage
from support.operator_jobs import job_object
from support.small_children import runtime_object


def accepted(stage: Stage) -> Json:
    return stage.condition("Accepted")


def suspend(stage: Stage, value: bool = True) -> None:
    stage.edit(lambda spec: spec.update(suspend=value))


# A job's life


def test_a_job_is_prepared_first_then_trains_then_is_audited() -> None:
    stage = Stage()
    seen = []
    for _ in range(60):
        stage.step()
        if not seen or seen[-1] != stage.summary:
            seen.append(stage.summary)
    assert seen == ["Preparing", "Starting", "Running", "Completing", "Complete"]
    assert stage.status["audit"] == {
        "lost": 0,
        "duplicated": 0,
        "tombstones": {},
        "ok": True,
        "message": "the audit is clean",
    }
    assert stage.status["progress"]["step"] == 12
    assert stage.condition("Complete")["reason"] == "MaxStepsReached"


def test_no_pod_of_a_role_starts_before_the_sources_are_checked() -> None:
    stage = Stage()
    while stage.summary != "Starting":
        stage.step()
        roles = {pod["metadata"]["labels"]["areal.dev/role"] for pod in stage.cluster.pods()}
        assert roles <= {"prepare"} or stage.summary == "Starting"


def test_a_status_is_what_its_model_says() -> None:
    stage = Stage()
    for _ in range(40):
        stage.step()
        assert JobStatus.model_validate(stage.status, by_alias=True, by_name=False).to_object() == stage.status


def test_people_are_told_of_every_turn_once() -> None:
    stage = Stage()
    stage.run(lambda: stage.summary == "Complete")
    assert [reason for _, reason, _ in stage.operator.events] == [
        "Accepted", "Preparing", "Prepared", "EpochStarted", "TrainerReady", "StepReported", "Auditing", "Complete",
    ]  # fmt: skip


def test_a_job_at_rest_is_never_written() -> None:
    stage = Stage()
    stage.run(lambda: stage.summary == "Complete" and not stage.pods(Role.TRAINER))
    stage.step()
    stage.operator.writes.clear()
    stage.step()
    stage.step()
    assert stage.operator.writes == []


def test_figures_are_written_every_ten_seconds_at_most() -> None:
    stage = Stage(algorithm={"maxSteps": 100})
    stage.until_training()
    stage.operator.writes.clear()
    began = stage.cluster.now
    while stage.cluster.now < began + 100:
        stage.step(2.0)
    assert stage.training.step > 40
    assert 8 <= len([write for write in stage.operator.writes if write.kind == "RLJob"]) <= 11


# Not every job may run


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"algorithm": {"batchSize": "many"}}, "InvalidSpec", "spec.algorithm.batchSize"),
        ({"algorithm": {"groupSize": 1}}, "InvalidSpec", "groupSize"),
        ({"model": {"path": "models/tiny"}}, "LocalPath", "areal submit"),
        ({"model": {"path": None, "uri": "hf://owner/name"}}, "NotAvailable", "model.uri"),
        ({"recipe": {"configMap": {"name": "recipe", "key": "recipe.py"}}}, "RecipeNotFound", "recipe"),
        ({"runtimeRef": {"kind": "ClusterRLRuntime", "name": "gpu"}}, "RuntimeNotFound", "ClusterRLRuntime gpu"),
    ],
)
def test_a_job_that_cannot_run_says_why_and_makes_nothing(spec: Json, reason: str, words: str) -> None:
    if reason == "RecipeNotFound":
        spec = {**spec, "reward": {"verifier": None}}
    stage = Stage(**spec)
    stage.step()
    stage.step()
    assert (stage.summary, accepted(stage)["status"], accepted(stage)["reason"]) == ("Rejected", "False", reason)
    assert words in accepted(stage)["message"]
    assert [write.kind for write in stage.operator.writes] == ["RLJob"]
    assert [(kind, event) for kind, event, _ in stage.operator.events] == [("Warning", reason)]


def test_a_job_starts_when_its_runtime_appears() -> None:
    stage = Stage(runtime=False)
    stage.step()
    assert accepted(stage)["reason"] == "RuntimeNotFound"
    stage.cluster.api.put(runtime_object())
    stage.run(lambda: stage.summary == "Complete")


def test_a_job_starts_when_its_recipe_appears() -> None:
    stage = Stage(recipe={"configMap": {"name": "mine", "key": "recipe.py"}}, reward={"verifier": None})
    stage.step()
    assert accepted(stage)["reason"] == "RecipeNotFound"
    recipe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine", "namespace": "team"}}
    stage.cluster.api.put({**recipe, "data": {"recipe.py": "def reward(prompt, completions, **row): return 1.0\n"}})
    stage.until_training()
    assert stage.names(Role.REWARD_CUSTOM)
    assert not stage.names(Role.REWARD)


def test_the_api_servers_words_reach_the_job_before_anything_is_made() -> None:
    stage = Stage()
    stage.operator.refusals["StatefulSet"] = InvalidError(422, "Invalid", "spec.template: quota exceeded")
    stage.step()
    assert accepted(stage)["reason"] == "DryRunRejected"
    assert "StatefulSet digits-trainer: spec.template: quota exceeded" in accepted(stage)["message"]
    assert [write.kind for write in stage.operator.writes] == ["RLJob"]
    assert stage.again_s is not None
    stage.operator.refusals.clear()
    stage.new_operator()
    stage.run(lambda: stage.summary == "Complete")


def test_a_change_that_is_refused_leaves_what_runs_alone() -> None:
    stage = Stage(algorithm={"maxSteps": 30})
    stage.until_training()
    stage.operator.refusals["StatefulSet"] = InvalidError(422, "Invalid", "no")
    servers = stage.uids(Role.GENERATION)
    stage.edit(lambda spec: spec["generation"].update(replicas=3))
    stage.step()
    assert accepted(stage)["reason"] == "DryRunRejected"
    assert stage.summary == "Running"
    assert stage.uids(Role.GENERATION) == servers
    stage.cluster.end_child(stage.pods(Role.TRAINER)[0], 1)
    stage.run(lambda: stage.status["attempts"]["epoch"] == 2 and stage.training.epoch == 2)


def test_another_controllers_job_is_left_alone() -> None:
    stage = Stage(managedBy="kueue.x-k8s.io/multikueue")
    stage.step()
    assert "status" not in stage.job
    assert stage.operator.writes == []


def test_an_edited_runtime_is_for_later_jobs() -> None:
    stage = Stage()
    stage.until_training()
    before = stage.status["runtimeSnapshot"]
    stage.cluster.api.put(runtime_object(image="registry.test/areal:2"))
    stage.new_operator()
    stage.run(lambda: stage.summary == "Complete")
    assert stage.status["runtimeSnapshot"] == before
    snapshot = stage.cluster.api.objects["ConfigMap", "team", "digits-runtime"]
    assert "registry.test/areal:1" in snapshot["data"]["runtime.json"]


# Preparation


def test_sources_that_are_at_fault_end_the_job_in_the_tools_own_words() -> None:
    stage = Stage()
    stage.cluster.exit_codes[Role.PREPARE] = [65]
    stage.cluster.messages[Role.PREPARE] = "data/train.jsonl: line 3 is no JSON"
    stage.run(lambda: stage.summary == "Failed")
    failed = stage.condition("Failed")
    assert (failed["reason"], failed["message"]) == ("SourcesRefused", "data/train.jsonl: line 3 is no JSON")
    assert stage.condition("Prepared")["reason"] == "SourcesRefused"
    assert not stage.names(Role.TRAINER)


def test_a_preparation_that_gave_up_for_infrastructure_is_tried_again() -> None:
    stage = Stage()
    stage.cluster.exit_codes[Role.PREPARE] = [75, 75, 75]
    stage.run(lambda: stage.summary == "Complete")
    assert stage.status["attempts"]["restarts"] == 1
    assert [(f["role"], f["exitCode"]) for f in stage.status["failures"]] == [("prepare", 75)]


def test_two_never_prepare_at_once() -> None:
    stage = Stage()
    stage.run(lambda: bool(stage.pods(Role.PREPARE)))
    stage.cluster.lose_node(stage.pods(Role.PREPARE)[0]["spec"].get("nodeName", "n1"))
    stage.step()
    stage.cluster.api.drop(("Job", "team", "digits-prepare"))
    for _ in range(20):
        stage.step()
        working = [pod for pod in stage.pods(Role.PREPARE) if pod["status"]["phase"] == "Running"]
        assert len(working) <= 1
    assert stage.summary in ("Starting", "Running")


# Failures


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
    stage.cluster.end_child(stage.pods(Role.TRAINER)[0], 64)
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
    stage.cluster.delete_pod(stage.pods(Role.TRAINER)[0], disrupted=True)
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


def test_trainers_leave_a_machine_that_is_drained_and_it_costs_nothing() -> None:
    stage = Stage(algorithm={"maxSteps": 60})
    stage.until_training(step=7)
    node = stage.pods(Role.TRAINER)[1]["spec"]["nodeName"]
    machine = stage.cluster.api.objects["Node", "", node]
    stage.cluster.api.put({**machine, "spec": {"unschedulable": True}})
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
    stage.cluster.unschedulable = True
    stage.run(lambda: stage.summary == "Failed")
    assert stage.condition("Failed")["reason"] == "StartupDeadlineExceeded"
    assert "does not run" in stage.condition("Failed")["message"]


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


# Rest


def test_a_job_saves_before_it_rests_and_goes_on_where_it_was() -> None:
    stage = Stage(algorithm={"maxSteps": 40})
    stage.until_training(step=7)
    suspend(stage)
    stage.look()
    step = stage.training.step
    assert stage.condition("Suspended")["reason"] == "CheckpointPending"
    assert stage.training.checkpoint == step
    assert stage.pods(Role.TRAINER)
    stage.run(lambda: stage.summary == "Suspended")
    assert not [pod for pod in stage.cluster.pods() if pod["status"]["phase"] == "Running"]
    assert ("ConfigMap", "team", "digits-runtime") in stage.cluster.api.objects
    assert {role["desired"] for role in stage.status["roles"]} == {0}
    suspend(stage, False)
    stage.run(lambda: stage.training.epoch == 2)
    assert stage.training.step >= step
    assert stage.status["attempts"]["restarts"] == 0
    stage.run(lambda: stage.summary == "Complete")


def test_an_operator_that_finds_a_job_on_its_way_to_rest_has_it_save() -> None:
    stage = Stage(algorithm={"maxSteps": 400})
    stage.until_training(step=7)
    suspend(stage)
    stage.new_operator()
    step = stage.training.step
    for _ in range(6):
        stage.step()
    assert stage.summary == "Suspended"
    assert stage.training.checkpoint >= step


def test_a_rest_does_not_wait_for_ever_for_a_trainer_that_cannot_be_reached() -> None:
    stage = Stage(algorithm={"maxSteps": 1000})
    stage.until_training()
    stage.operator.roles.cut = True
    suspend(stage)
    stage.run(lambda: stage.summary == "Suspended", limit=40, seconds=30.0)


def test_a_suspension_that_is_taken_back_replaces_what_was_drained() -> None:
    stage = Stage(algorithm={"maxSteps": 40})
    stage.until_training()
    suspend(stage)
    stage.look()
    assert {stage.cluster.launcher(pod).phase for pod in stage.pods(Role.TRAINER)} == {ChildPhase.STOPPED}
    suspend(stage, False)
    stage.run(lambda: stage.training.epoch == 2)
    assert stage.status["attempts"]["restarts"] == 0


def test_a_job_that_is_born_suspended_makes_no_pods_until_it_may() -> None:
    stage = Stage(suspend=True)
    for _ in range(5):
        stage.step()
    assert stage.summary == "Suspended"
    assert accepted(stage)["status"] == "True"
    assert stage.cluster.pods() == []
    suspend(stage, False)
    stage.run(lambda: stage.summary == "Complete")


# Changes while it runs


def test_a_fleet_follows_its_spec_and_says_so_to_scale() -> None:
    stage = Stage(algorithm={"maxSteps": 200})
    stage.until_training()
    stage.edit(lambda spec: spec["generation"].update(replicas=4))
    stage.run(lambda: stage.status["generation"]["readyReplicas"] == 4)
    assert stage.status["generation"]["selector"] == "areal.dev/rljob=digits,areal.dev/role=generation"
    stage.edit(lambda spec: spec["generation"].update(replicas=1))
    stage.run(lambda: stage.status["generation"]["replicas"] == 1)
    assert stage.training.epoch == 1


def test_hot_fields_reach_the_controller_and_restart_nobody() -> None:
    stage = Stage(algorithm={"maxSteps": 200})
    stage.until_training()
    uids = {role: stage.uids(role) for role in Role}
    stage.edit(lambda spec: spec["algorithm"].update(maxSteps=25, maxStaleness=2))
    stage.run(lambda: stage.training.max_steps == 25)
    stage.step()
    assert stage.training.hot.max_staleness == 2
    assert {role: stage.uids(role) for role in Role} == uids
    told = [message for _, reason, message in stage.operator.events if reason == "HotFieldsSet"]
    assert len(told) == 1
    stage.run(lambda: stage.summary == "Complete")
    assert stage.status["progress"]["step"] == 25


def test_servers_of_an_old_template_are_replaced_one_after_the_other() -> None:
    stage = Stage(generation={"replicas": 3}, algorithm={"maxSteps": 400})
    stage.until_training()
    old = stage.uids(Role.GENERATION)
    stage.edit(lambda spec: spec.update(podTemplate={"generation": {"env": [{"name": "X", "value": "1"}]}}))
    while stage.uids(Role.GENERATION) & old:
        stage.step()
        ready = [
            p
            for p in stage.pods(Role.GENERATION)
            if p["status"]["conditions"] and "deletionTimestamp" not in p["metadata"]
        ]
        assert len(ready) >= 2
    assert stage.training.epoch == 1


def test_trainers_of_an_old_template_are_replaced_together_and_it_costs_nothing() -> None:
    stage = Stage(algorithm={"maxSteps": 400})
    stage.until_training()
    old = stage.uids(Role.TRAINER)
    stage.edit(lambda spec: spec.update(podTemplate={"trainer": {"env": [{"name": "X", "value": "1"}]}}))
    stage.look()
    stage.step()
    assert all("deletionTimestamp" in pod["metadata"] for pod in stage.pods(Role.TRAINER))
    stage.run(lambda: stage.training.epoch == 2)
    assert not stage.uids(Role.TRAINER) & old
    assert stage.status["attempts"]["restarts"] == 0


def test_another_version_of_the_operator_replaces_no_pod() -> None:
    stage = Stage(algorithm={"maxSteps": 400})
    stage.until_training()
    uids = {role: stage.uids(role) for role in Role}

    class NewerChildren(type(stage.operator.world.build)):  # type: ignore[misc]
        def _child(self, *args: Any) -> Json:
            made: Json = super()._child(*args)
            made["metadata"]["annotations"] = {"areal.dev/operator-version": "2"}
            return made

        def _workload(self, *args: Any) -> Json:
            made: Json = super()._workload(*args)
            made["spec"]["template"] = {**made["spec"]["template"], "new": "field"}
            return made

    stage.new_operator()
    stage.operator.world.build = NewerChildren()
    for _ in range(10):
        stage.step()
    assert {role: stage.uids(role) for role in Role} == uids
    suspend(stage)
    stage.run(lambda: stage.summary == "Suspended")
    suspend(stage, False)
    stage.run(lambda: stage.training.epoch == 2)
    workload = stage.cluster.api.objects["StatefulSet", "team", "digits-trainer"]
    assert workload["spec"]["template"]["new"] == "field"


def test_children_that_somebody_deletes_come_back() -> None:
    stage = Stage(algorithm={"maxSteps": 400})
    stage.until_training()
    for place in [p for p in stage.cluster.api.objects if p[0] in ("StatefulSet", "Deployment", "ConfigMap")]:
        stage.cluster.api.drop(place)
        stage.run(lambda place=place: place in stage.cluster.api.objects)  # type: ignore[misc]
    assert stage.summary in ("Running", "Starting")


# The end


def test_an_audit_that_is_not_clean_fails_the_job() -> None:
    stage = Stage()
    audit = {"lost": 2, "duplicated": 0, "tombstones": {"infra": 1}, "ok": False, "message": "2 groups are lost"}
    stage.cluster.messages[Role.FINISH] = json.dumps(audit)
    stage.cluster.exit_codes[Role.FINISH] = [70]
    stage.run(lambda: stage.summary == "Failed")
    assert stage.condition("Failed")["reason"] == "AuditFailed"
    assert stage.condition("Complete")["status"] == "False"
    assert stage.status["audit"]["lost"] == 2


def test_an_audit_that_infrastructure_broke_is_made_again() -> None:
    stage = Stage()
    stage.cluster.exit_codes[Role.FINISH] = [75, 75, 75]
    stage.run(lambda: stage.summary == "Complete")
    assert stage.status["audit"]["ok"]


def test_an_end_is_an_end_whatever_happens_to_the_children() -> None:
    stage = Stage(runPolicy={"cleanup": [{"when": "Complete", "policy": "KeepPods", "afterSeconds": 0}]})
    stage.run(lambda: stage.summary == "Complete")
    for place in [p for p in stage.cluster.api.objects if p[0] in ("StatefulSet", "Job", "ConfigMap", "Deployment")]:
        stage.cluster.api.drop(place)
    stage.edit(lambda spec: spec["algorithm"].update(maxSteps=100))
    stage.new_operator()
    for _ in range(10):
        stage.step()
    assert stage.summary == "Complete"
    assert not [p for p in stage.cluster.api.objects if p[0] in ("StatefulSet", "Job", "Deployment")]


def test_pods_of_a_failed_job_stay_for_a_look_and_go_then() -> None:
    stage = Stage(runPolicy={"cleanup": [{"when": "Failed", "policy": "DeletePods", "afterSeconds": 600}]})
    stage.until_training()
    stage.cluster.end_child(stage.pods(Role.TRAINER)[0], 65)
    stage.run(lambda: stage.summary == "Failed")
    stage.step(500.0)
    assert stage.pods(Role.TRAINER)
    stage.run(lambda: not stage.pods(Role.TRAINER), seconds=60.0)


def test_a_job_is_deleted_when_its_time_after_the_end_is_over() -> None:
    stage = Stage(runPolicy={"ttlSecondsAfterFinished": 300})
    stage.run(lambda: stage.summary == "Complete")
    stage.run(lambda: not stage.pods(Role.TRAINER))
    stage.step(100.0)
    assert stage.summary == "Complete"
    assert stage.again_s is not None
    assert 100 < stage.again_s <= 200
    stage.step(stage.again_s)
    assert ("RLJob", *KEY) not in stage.cluster.api.objects
    stage.cluster.tick()
    stage.cluster.tick()
    assert [p for p in stage.cluster.api.objects if p[1] == "team" and p[0] not in ("Pod", "Secret")] == []


def test_a_job_made_again_under_its_name_takes_nothing_from_its_predecessor() -> None:
    stage = Stage(algorithm={"maxSteps": 400})
    stage.until_training()
    stage.cluster.api.drop(("RLJob", *KEY))
    stage.cluster.api.put(job_object())
    stage.look()
    assert accepted(stage)["reason"] == "DryRunRejected"  # the old one's children are still there
    stage.run(lambda: stage.summary == "Complete", limit=100, seconds=30.0)
    assert stage.status["attempts"]["epoch"] == 1
