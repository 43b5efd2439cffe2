"""`areal.submit` and its handle: what is put there, how it is followed, and what its end raises."""

from __future__ import annotations

from typing import Any

import areal
import pytest
from areal.errors import ConfigError, DataError, InfraError
from areal_operator import job_handle
from areal_operator.job_handle import ClusterRun
from areal_operator.submit.submit import SubmitRequest
from submit_parts import write_job


class ScriptedCluster:
    """Answers `get` with one status after the other, the last again and again; keeps what is merged."""

    namespace = "team"

    def __init__(self, *statuses: dict[str, Any] | None) -> None:
        self._statuses = list(statuses)
        self.merged: list[Any] = []

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        assert (kind, namespace, name) == ("RLJob", "team", "digits")
        status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        return None if status is None else {**job(), "status": status}

    def merge(self, kind: str, namespace: str, name: str, patch: Any, *, manager: str) -> None:
        self.merged.append(patch)


def job() -> dict[str, Any]:
    return {"metadata": {"name": "digits", "namespace": "team", "uid": "u1", "generation": 1}, "spec": {}}


def at(step: int) -> dict[str, Any]:
    return {"summary": "Running", "progress": {"step": step, "maxSteps": 3, "reward": step / 4}}


def ended(kind: str, reason: str, message: str) -> dict[str, Any]:
    condition = {
        "type": kind, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": "2030-01-01T10:00:00Z", "observedGeneration": 1,
    }  # fmt: skip
    return {"summary": kind, "progress": {"step": 3, "maxSteps": 3}, "conditions": [condition]}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_handle, "_LOOK_S", 0.0)


def test_it_is_watched_step_by_step_until_it_is_complete():
    said: list[str] = []
    run = ClusterRun(ScriptedCluster({}, at(1), at(1), at(2), ended("Complete", "AllStepsTrained", "")), job())
    assert [(row["step"], row["reward"]) for row in run.watch(said.append)] == [(1, 0.25), (2, 0.5), (3, None)]
    assert said[0] == "waiting for the operator"
    assert len(said) == len(set(said)) == 4
    assert not run.running
    assert run.wait().summary == "Complete"


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (ended("Failed", "SourcesRefused", "no rows"), DataError, "no rows"),
        (ended("Failed", "BackoffLimitExceeded", "gave up"), InfraError, "gave up"),
        (None, InfraError, "was deleted"),
    ],
)
def test_what_ended_it_is_raised(status, kind, words):
    with pytest.raises(kind, match=words):
        ClusterRun(ScriptedCluster(status), job()).wait()


def test_waiting_has_an_end_and_stopping_suspends():
    cluster = ScriptedCluster(at(1))
    run = ClusterRun(cluster, job())
    with pytest.raises(TimeoutError):
        run.wait(0.0)
    run.stop()
    assert cluster.merged == [{"spec": {"suspend": True}}]
    assert repr(run) == "<areal.ClusterRun rljob/digits in team: Running>"


HALF = 0.5


def reward(prompt, completions, prompt_ids, completion_ids, **row):
    return HALF


def test_a_function_and_rows_go_along_as_files_below_the_current_directory(tmp_path, monkeypatch):
    asked: list[SubmitRequest] = []

    def submitted(request, cluster, progress, say):
        asked.append(request)
        return job()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job_handle, "connect", lambda kubeconfig, context: ScriptedCluster(at(1)))
    monkeypatch.setattr(job_handle, "submit_objects", submitted)
    file = write_job(tmp_path)
    with pytest.raises(ConfigError, match="recipe"):
        areal.submit(file, reward=reward)
    file.write_text(file.read_text().replace("  recipe: {file: recipe.py}\n", ""))
    rows = [{"prompt": "1=", "answer": "1"}] * 80
    run = areal.submit(file, "algorithm.maxSteps=20", reward=reward, held_out=rows)
    assert (run.name, run.namespace) == ("digits", "team")
    spec = asked[0].job.spec
    assert (asked[0].verifier, asked[0].namespace, spec.algorithm.max_steps) == ("custom", "team", 20)
    assert spec.recipe is not None
    assert spec.recipe.file == "runs/digits.job/recipe.py", "an absolute path is looked for in the image"
    assert "HALF = 0.5" in (tmp_path / spec.recipe.file).read_text()
