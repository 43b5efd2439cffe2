"""Two releases of the operator that both watch a namespace: one acts there, and the other says so."""

from __future__ import annotations

import pytest
from areal_operator.runtime.lease import CLAIM
from kube.harness.client import Client
from kube.harness.processes import eventually
from kube.jobs import read, rljob, summary, wait_for
from kube.operators import HOME, Ground, Operator
from support.scripted_pods import ScriptedPods

pytestmark = [pytest.mark.kube_api, pytest.mark.timeout(300)]


def holder(admin: Client, namespace: str) -> str:
    lease = admin.get("coordination.k8s.io/v1", "Lease", namespace, CLAIM)
    return "" if lease is None else lease["spec"]["holderIdentity"]


def told(admin: Client, namespace: str) -> list[str]:
    """What operators that leave the namespace alone say."""
    events = admin.list("events.k8s.io/v1", "Event", namespace)
    return [event["note"] for event in events if event["reason"] == "OtherOperator"]


def test_one_of_two_releases_acts_in_a_namespace_and_the_other_takes_over_when_it_is_gone(
    ground: Ground, admin: Client, namespace: str, pods: ScriptedPods
) -> None:
    first = Operator(ground, f"first-{namespace}", namespace=namespace).wait_ready()
    second = None
    try:
        admin.create(rljob(namespace, algorithm={"maxSteps": 400}))
        wait_for(admin, namespace, Progressing="True")
        assert holder(admin, namespace) == f"{namespace}/areal-operator"
        second = Operator(ground, f"second-{namespace}").wait_ready()
        eventually(lambda: told(admin, namespace), "the second says that another one acts", timeout_s=60)
        assert f"{namespace}/areal-operator acts in this namespace" in told(admin, namespace)[0]
        assert second.leads
        status = read(admin, namespace)["status"]
        step = status["progress"]["step"]
        eventually(lambda: read(admin, namespace)["status"]["progress"]["step"] > step, "the first goes on")
        assert holder(admin, namespace) == f"{namespace}/areal-operator"
        first.stop()
        eventually(lambda: holder(admin, namespace) == f"{HOME}/areal-operator", "it was left behind", timeout_s=60)
        job = wait_for(admin, namespace, Complete="True")
    finally:
        first.stop()
        if second is not None:
            second.stop()
    assert summary(job) == "Complete"
    assert pods.run(namespace, "tiny").epochs == [1], "nobody began it anew"
    assert holder(admin, namespace) == "", "who goes gives it back"
