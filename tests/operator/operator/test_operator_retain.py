"""What outlives a job of its own claim (`storage.retain`): who owns the claim at each stage, and what it tells then."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from areal.plan.cluster_names import (
    ANNOTATION_JOB,
    ANNOTATION_RUNTIME,
    ENV_CLEAN,
    LABEL_RUN,
    Role,
    run_claim,
    runtime_config_map,
)
from areal.spec.runtime import RuntimeSpec
from areal_operator.kube.resources import Json
from areal_operator.operator import children
from areal_operator.operator.children.foundation import ownership
from areal_operator.submit.temporary_pod import runtime_copy
from operator_stage import KEY, Stage
from support.fake_operator import FakeOperator

PLACE = ("PersistentVolumeClaim", KEY[0], run_claim(KEY[1]))


class ClaimStage(Stage):
    """A job whose children are those that the product makes."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**spec)
        self.operator = FakeOperator(self.cluster, build=children)

    @property
    def claim(self) -> Json:
        return self.cluster.api.objects[PLACE]["metadata"]

    @property
    def owned(self) -> bool:
        owners = [owner["uid"] for owner in self.claim.get("ownerReferences") or ()]
        assert owners in ([], [self.job["metadata"]["uid"]])
        return bool(owners)

    @property
    def stays(self) -> bool:
        """Whether it is labelled with the run's uid."""
        return (self.claim.get("labels") or {}).get(LABEL_RUN) == self.job["metadata"]["uid"]


def stage(retain: str | None, max_steps: int = 4, **spec: Any) -> ClaimStage:
    storage = {} if retain is None else {"storage": {"retain": retain}}
    return ClaimStage(algorithm={"maxSteps": max_steps}, **storage, **spec)


@pytest.mark.parametrize(
    ("retain", "while_it_trains", "at_the_end"),
    [("Delete", False, False), ("Model", False, True), (None, False, True), ("All", True, True)],
)
def test_the_claim_leaves_its_owner_when_the_field_says(
    retain: str | None, while_it_trains: bool, at_the_end: bool
) -> None:
    made = stage(retain)
    made.until_training()
    assert (made.owned, made.stays) == (not while_it_trains, while_it_trains)
    made.run(lambda: made.summary == "Complete")
    made.step()
    assert (made.owned, made.stays) == (not at_the_end, at_the_end)
    if at_the_end:
        spec = json.loads(made.claim["annotations"][ANNOTATION_JOB])
        assert spec["algorithm"]["maxSteps"] == 4
        kept = RuntimeSpec.model_validate_json(made.claim["annotations"][ANNOTATION_RUNTIME])
        assert kept == RuntimeSpec.model_validate(made.cluster.api.objects["ClusterRLRuntime", "", "cpu"]["spec"])


@pytest.mark.parametrize("retain", ["Delete", "Model", "All"])
def test_nothing_is_written_again_when_nothing_changed(retain: str) -> None:
    made = stage(retain)
    made.run(lambda: made.summary == "Complete")
    made.step()
    version = made.claim["resourceVersion"]
    for _ in range(5):
        made.step()
    assert made.claim["resourceVersion"] == version


def test_a_job_that_failed_takes_its_claim_along_unless_all_is_kept() -> None:
    for retain, owned in (("Model", True), ("All", False)):
        made = stage(retain, 4000, runPolicy={"activeDeadlineSeconds": 60})
        made.until_training(1)
        made.run(lambda made=made: made.summary == "Failed")  # type: ignore[misc]
        made.step()
        assert made.owned is owned


def test_the_field_may_change_while_the_job_trains_and_after_it_ended() -> None:
    made = stage("Delete", 40)
    made.until_training()
    uids = made.uids(Role.TRAINER)

    def says(retain: str) -> None:
        made.edit(lambda spec: spec.setdefault("storage", {}).update(retain=retain))
        for _ in range(3):
            made.step()

    says("All")
    assert (made.owned, made.stays) == (False, True)
    says("Model")
    assert (made.owned, made.stays) == (True, False)
    assert made.uids(Role.TRAINER) == uids, "no pod knows of it"
    made.run(lambda: made.summary == "Complete")
    says("Delete")
    assert (made.owned, made.stays) == (True, False)
    assert ANNOTATION_JOB not in (made.claim.get("annotations") or {})
    says("Model")
    assert (made.owned, made.stays) == (False, True)


def test_an_owner_that_submit_wrote_goes_too() -> None:
    made = stage("All")
    made.until_training()
    claim = made.cluster.api.objects[PLACE]
    owner = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "name": KEY[1], "uid": made.job["metadata"]["uid"]}
    made.cluster.api.put({**claim, "metadata": {**claim["metadata"], "ownerReferences": [owner]}})
    made.step()
    assert (made.owned, made.stays) == (False, True)


def kept_claim(made: Stage, uid: str) -> None:
    metadata = {"name": PLACE[2], "namespace": KEY[0], "labels": {LABEL_RUN: uid, "areal.dev/rljob": KEY[1]}}
    made.cluster.api.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {}})


@pytest.mark.parametrize("retain", ["Delete", "Model", "All"])
def test_an_earlier_run_s_claim_is_not_the_next_job_s_because_of_its_name(retain: str) -> None:
    made = stage(retain)
    kept_claim(made, "earlier")
    before = made.claim
    for _ in range(3):
        made.step()
    accepted = made.condition("Accepted")
    assert (accepted["status"], made.claim) == ("False", before)
    assert "storage.claimName" in accepted["message"]
    assert f"areal jobs --kept --delete {PLACE[2]}" in accepted["message"]
    made.cluster.api.drop(PLACE)
    made.edit(lambda spec: spec.setdefault("storage", {}).update(size="1Gi"))
    made.until_training()


def test_a_claim_that_the_job_names_is_its_user_s() -> None:
    made = ClaimStage(algorithm={"maxSteps": 4}, storage={"claimName": PLACE[2]})
    kept_claim(made, "earlier")
    before = made.claim
    made.run(lambda: made.summary == "Complete")
    made.step()
    assert made.claim == before, "shared on purpose, it stays the earlier run's"


@pytest.mark.parametrize(
    ("storage", "cleans"),
    [({}, True), ({"retain": "Delete"}, False), ({"retain": "All"}, False), ({"claimName": "team-runs"}, False)],
)
def test_only_the_finish_pod_of_a_claim_that_stays_for_its_model_cleans(storage: Json, cleans: bool) -> None:
    made = ClaimStage(algorithm={"maxSteps": 4}, storage=storage)
    told: dict[str, bool] = {}
    while made.step() or "Job/digits-finish" not in told:
        for kind in ("Job", "StatefulSet", "Deployment"):
            for one in made.cluster.api.all(kind):
                spec = one["spec"]["template"]["spec"]
                env = [entry["name"] for container in spec["containers"] for entry in container["env"]]
                told[f"{kind}/{one['metadata']['name']}"] = ENV_CLEAN in env
    assert [name for name, found in told.items() if found] == ["Job/digits-finish"] * cleans


def test_a_job_too_large_for_annotations_leaves_its_claim_all_the_same() -> None:
    padded = {"metadata": {"name": KEY[1], "namespace": KEY[0], "uid": "u"}, "spec": {"padding": "x" * 300_000}}
    blueprint: Any = SimpleNamespace(raw=padded, uid="u", runtime=RuntimeSpec())
    patch = ownership(blueprint, stays=True)
    assert patch["labels"] == {LABEL_RUN: "u"}
    assert patch["annotations"] == {ANNOTATION_JOB: None, ANNOTATION_RUNTIME: None}


def test_that_a_claim_stays_is_announced_once() -> None:
    made = stage("Model")
    made.run(lambda: made.summary == "Complete")
    for _ in range(4):
        made.step()
    assert [reason for _, reason, _ in made.operator.events].count("ClaimStays") == 1


def test_a_job_that_was_created_suspended_has_its_claim_and_the_copy_of_its_runtime_and_no_pod() -> None:
    """`areal submit` waits for both where its user may read no runtimes."""
    made = stage("Model", suspend=True)
    for _ in range(3):
        made.step()
    assert made.owned
    copy = made.cluster.api.objects["ConfigMap", KEY[0], runtime_config_map(KEY[1])]
    told = runtime_copy(copy, made.job["metadata"]["uid"])
    assert told == RuntimeSpec.model_validate(made.cluster.api.objects["ClusterRLRuntime", "", "cpu"]["spec"])
    assert runtime_copy(copy, "another") is None
    assert runtime_copy(None, made.job["metadata"]["uid"]) is None
    assert made.cluster.pods() == []
    made.edit(lambda spec: spec.update(suspend=False))
    made.run(lambda: made.summary == "Complete")
