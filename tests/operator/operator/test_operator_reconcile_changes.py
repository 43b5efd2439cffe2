"""What happens to one job on a small cluster when people suspend, change or end it."""

from __future__ import annotations

import json
from typing import Any

from areal.plan.cluster_names import Role
from areal.processes.core import ChildPhase
from areal_operator.kube.resources import Json
from operator_stage import KEY, Stage
from support.operator_jobs import job_object


def accepted(stage: Stage) -> Json:
    return stage.condition("Accepted")


def suspend(stage: Stage, value: bool = True) -> None:
    stage.edit(lambda spec: spec.update(suspend=value))


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
    assert stage.pods(Role.TRAINER) == []
    assert stage.status["attempts"]["restarts"] == 0


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
    assert stage.summary in ("Running", "Starting", "Recovering")


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
