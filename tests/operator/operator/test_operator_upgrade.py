"""A newer operator takes over a running job: what its pods read when they restart is what they began with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from areal.plan.cluster_names import RESOLVED_KEY, Role
from areal.plan.resolved import ResolvedJob
from areal_operator.kube.resources import Json
from areal_operator.operator import children
from areal_operator.operator.children import files, wanted
from operator_stage import KEY, Stage
from support.fake_operator import FakeOperator

LONG_RUNNING = (Role.REDIS, Role.CONTROLLER, Role.WORKER, Role.GENERATION, Role.REWARD, Role.TRAINER)


class RealStage(Stage):
    """A job whose children are those that the product makes."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**spec)
        self.new_operator()

    def new_operator(self) -> None:
        self.operator = FakeOperator(self.cluster, build=children)


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it, and operators are of a release whose configuration has a field more."""

    def upgrade() -> None:
        monkeypatch.setattr(wanted, "__version__", "9.9.9")
        data = files._data

        def with_a_new_field(w: Any) -> dict[str, str]:
            made = data(w)
            return {**made, RESOLVED_KEY: json.dumps({**json.loads(made[RESOLVED_KEY]), "field_of_9_9": True})}

        monkeypatch.setattr(files, "_data", with_a_new_field)

    return upgrade


def read_by_pods(stage: Stage) -> dict[str, Json]:
    """The ConfigMaps that the templates of the job's workloads name, by name."""
    return {name: stage.cluster.api.objects["ConfigMap", KEY[0], name] for name in set(_mounted(stage))}


def _mounted(stage: Stage) -> Iterator[str]:
    for kind in ("StatefulSet", "Deployment"):
        for workload in stage.cluster.api.all(kind):
            volumes = workload["spec"]["template"]["spec"]["volumes"]
            yield next(volume["configMap"]["name"] for volume in volumes if volume["name"] == files.VOLUME)


def test_an_upgrade_of_the_operator_under_a_running_job_is_no_incident_for_any_pod(newer: Any) -> None:
    stage = RealStage(algorithm={"maxSteps": 4000})
    stage.until_training()
    before = read_by_pods(stage)
    assert len(before) == 1
    uids = {role: stage.uids(role) for role in Role}
    newer()
    stage.new_operator()
    for _ in range(5):
        stage.step()
    assert {role: stage.uids(role) for role in Role} == uids, "an upgrade replaces no pod"
    for role in LONG_RUNNING:
        for pod in stage.pods(role):
            stage.cluster.delete_pod(pod)
            stage.run(lambda pod=pod, role=role: pod["metadata"]["uid"] not in stage.uids(role))  # type: ignore[misc]
            stage.run(lambda: stage.summary == "Running")
            now = read_by_pods(stage)
            assert {name: obj["data"] for name, obj in now.items()} == {n: o["data"] for n, o in before.items()}
    ((name, kept),) = read_by_pods(stage).items()
    assert kept["immutable"] is True
    assert ResolvedJob.parse(kept["data"][RESOLVED_KEY], name).name == KEY[1]
    assert {(f["owner"], f["counted"]) for f in stage.status["failures"]} <= {("platform", False)}
    step = stage.training.step
    stage.run(lambda: stage.training.step >= step + 10)


def test_a_job_that_rested_goes_on_with_what_the_newer_operator_writes(newer: Any) -> None:
    stage = RealStage(algorithm={"maxSteps": 4000})
    stage.until_training()
    ((old, _),) = read_by_pods(stage).items()
    newer()
    stage.new_operator()
    stage.edit(lambda spec: spec.update(suspend=True))
    stage.run(lambda: stage.summary == "Suspended")
    stage.edit(lambda spec: spec.update(suspend=False))
    stage.run(lambda: stage.training.epoch == 2)
    ((name, made),) = read_by_pods(stage).items()
    assert name != old
    assert json.loads(made["data"][RESOLVED_KEY])["field_of_9_9"]


def test_what_a_running_controller_is_told_changes_no_pods_configuration() -> None:
    stage = RealStage(algorithm={"maxSteps": 4000})
    stage.until_training()
    before, uids = read_by_pods(stage), {role: stage.uids(role) for role in Role}
    stage.edit(lambda spec: spec["algorithm"].update(maxSteps=5000))
    stage.run(lambda: stage.training.max_steps == 5000)
    for _ in range(5):
        stage.step()
    assert read_by_pods(stage) == before
    assert {role: stage.uids(role) for role in Role} == uids


def test_a_quiet_jobs_children_are_built_again_only_when_one_of_them_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = RealStage(algorithm={"maxSteps": 4000})
    stage.until_training()
    for _ in range(3):
        stage.step()
    built: list[str] = []
    build = children.workloads
    monkeypatch.setattr(children, "workloads", lambda w: built.append(w.name) or build(w))
    for _ in range(5):
        stage.step()
    assert built == []
    stage.cluster.api.drop(("Service", KEY[0], "digits-trainer"))
    stage.step()
    assert ("Service", KEY[0], "digits-trainer") in stage.cluster.api.objects
    assert built
