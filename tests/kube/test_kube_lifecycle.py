"""The life of a job under an operator: from its first look to Complete, and everything that people do in between."""

from __future__ import annotations

import pytest
from kube.harness.client import Client
from kube.jobs import condition, rljob, wait_for
from kube.operators import Operator
from support.scripted_pods import ScriptedPods

pytestmark = [pytest.mark.kube_api, pytest.mark.usefixtures("operator")]


def test_a_job_is_prepared_runs_and_completes(
    admin: Client, pods: ScriptedPods, namespace: str, operator: Operator
) -> None:
    admin.create(rljob(namespace, algorithm={"maxSteps": 20}))
    job = wait_for(admin, namespace, Complete="True", summary="Complete")
    assert pods.run(namespace, "tiny").epochs == [1]
    assert condition(job, "Complete")["reason"] == "MaxStepsReached"
    assert job["status"]["attempts"]["epoch"] == 1
    assert job["status"]["progress"]["step"] == 20
    assert job["status"]["audit"]["ok"]
