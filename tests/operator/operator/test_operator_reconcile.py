"""What happens to one job on a small cluster, and what people then see: its life, refusals, preparation."""

from __future__ import annotations

import pytest
from areal.plan.cluster_names import Role
from areal.spec.status import JobStatus
from areal_operator.kube.errors import InvalidError
from areal_operator.kube.resources import Json
from operator_stage import Stage
from support.small_children import runtime_object


def accepted(stage: Stage) -> Json:
    return stage.condition("Accepted")


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
        assert (
            JobStatus.model_validate(stage.status, by_alias=True, by_name=False).model_dump(
                mode="json", exclude_none=True
            )
            == stage.status
        )


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
        ({"training": "RL"}, "InvalidSpec", "areal check --rewrite"),  # as release 0.1 left each job in a cluster
        ({"model": {"path": "models/tiny"}}, "LocalPath", "areal submit"),
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


def test_a_running_job_of_release_0_1_is_told_of_and_its_pods_are_left_as_they_are() -> None:
    stage = Stage()
    stage.until_training()
    before = {role: stage.uids(role) for role in Role}
    stage.new_operator()
    stage.edit(lambda spec: spec.update(training="RL"))
    for _ in range(5):
        stage.step()
    assert (accepted(stage)["status"], accepted(stage)["reason"]) == ("False", "InvalidSpec")
    assert "areal check --rewrite" in accepted(stage)["message"]
    assert {role: stage.uids(role) for role in Role} == before


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


def test_a_job_starts_when_its_secret_may_be_read() -> None:
    source = {"secretKeyRef": {"name": "wandb", "key": "key"}}
    stage = Stage(podTemplate={"worker": {"env": [{"name": "WANDB_API_KEY", "valueFrom": source}]}})
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wandb", "namespace": "team"}}
    for words, labels in (("there is no Secret wandb in team", None), ("lacks the label areal.dev/use=env", {})):
        if labels is not None:
            stage.cluster.api.put({**secret, "metadata": {**secret["metadata"], "labels": labels}})
        stage.step()
        stage.run(lambda words=words: words in accepted(stage)["message"], limit=10)
        assert accepted(stage)["reason"] == "SecretRefused"
        assert {write.kind for write in stage.operator.writes} == {"RLJob"}
    stage.cluster.api.put({**secret, "metadata": {**secret["metadata"], "labels": {"areal.dev/use": "env"}}})
    stage.run(lambda: stage.summary == "Complete")


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
