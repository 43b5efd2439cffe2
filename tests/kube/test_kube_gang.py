"""A trainer of several pods on a cluster with PodGroups: the scheduler binds all of them or none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from kube.harness.control_plane import ControlPlane
from kube.harness.fixtures import fresh_namespace, install_crds, provisioned
from kube.harness.fleet import Fleet
from kube.harness.processes import eventually
from kube.jobs import read, rljob, wait_for
from kube.operators import RUNTIME, Operator, prepare_ground
from support.scripted_pods import ScriptedPods

pytestmark = pytest.mark.kube_api

Object = dict[str, Any]
POD_GROUP = "scheduling.k8s.io/v1alpha2/PodGroup"
TRAINERS = 3
MOST = {"requests": {"cpu": "150"}, "limits": {"cpu": "150"}}
"""More than half of a fake machine."""


class GangPlane(NamedTuple):
    """A control plane with PodGroups, its machines, and an operator of the chart's rights there."""

    cluster: ControlPlane
    fleet: Fleet
    pods: ScriptedPods

    def trainers(self, namespace: str) -> list[Object]:
        return self.cluster.admin.list("v1", "Pod", namespace, "areal.dev/role=trainer")

    def bound(self, namespace: str) -> int:
        return sum("nodeName" in pod["spec"] for pod in self.trainers(namespace))


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GangPlane]:
    place = tmp_path_factory.mktemp("gang")
    own = ControlPlane(place, gang=True)
    try:
        own.start()
        install_crds(own.admin)
        fleet = Fleet(own.admin, place)
        with provisioned(own, place), ScriptedPods(own.kubeconfig, place) as pods:
            fleet.start(nodes=2)
            operator = Operator(prepare_ground(own, pods, place / "log", POD_GROUP), "gang").wait_ready()
            yield GangPlane(own, fleet, pods)
            operator.stop()
            fleet.stop()
    finally:
        own.stop()


def test_a_trainer_gets_machines_for_all_its_pods_or_none(plane: GangPlane) -> None:
    admin = plane.cluster.admin
    large = {"podTemplate": {"trainer": {"resources": MOST}}, "trainer": {"replicas": TRAINERS}}
    with fresh_namespace(plane.cluster) as namespace:
        plane.pods.run(namespace, "whole").pace_s = 1.0  # it outlives the test
        admin.create(rljob(namespace, "whole", **large))
        wait_for(admin, namespace, "whole", GenerationReady="True", Scheduled="Unschedulable", timeout_s=120)
        eventually(lambda: len(plane.trainers(namespace)) == TRAINERS, "the trainer's pods")
        (group,) = admin.list("scheduling.k8s.io/v1alpha2", "PodGroup", namespace)
        assert group["spec"]["schedulingPolicy"]["gang"] == {"minCount": TRAINERS}
        assert plane.bound(namespace) == 0, "two of them had room"
        plane.fleet.add(1)
        wait_for(admin, namespace, "whole", Progressing="True", timeout_s=120)
        assert plane.bound(namespace) == TRAINERS

        lost = plane.trainers(namespace)[1]
        admin.delete(lost)
        name, uid = lost["metadata"]["name"], lost["metadata"]["uid"]

        def back() -> bool:
            found = [pod for pod in plane.trainers(namespace) if pod["metadata"]["name"] == name]
            return any(pod["metadata"]["uid"] != uid and "nodeName" in pod["spec"] for pod in found)

        eventually(back, "one that comes again joins its group", timeout_s=120)
        wait_for(admin, namespace, "whole", Progressing="True", timeout_s=120)

        admin.create(rljob(namespace, "waits", **large))
        wait_for(admin, namespace, "waits", GenerationReady="True", Scheduled="Unschedulable", timeout_s=120)
        assert plane.bound(namespace) == TRAINERS
        admin.delete(read(admin, namespace, "whole"))
        wait_for(admin, namespace, "waits", Progressing="True", timeout_s=120)


def test_without_groups_a_trainer_holds_machines_that_it_can_t_use(plane: GangPlane) -> None:
    admin = plane.cluster.admin
    shared = admin.get("areal.dev/v1alpha1", "ClusterRLRuntime", "", RUNTIME) or {}
    assert shared["spec"]["podGroups"] == "v1alpha2", "as the chart found the cluster"
    with fresh_namespace(plane.cluster) as namespace:
        spec = {**shared["spec"], "podGroups": "None"}
        ours = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLRuntime", "spec": spec}
        admin.apply({**ours, "metadata": {"namespace": namespace, "name": "ours"}})
        job = rljob(
            namespace, "half", podTemplate={"trainer": {"resources": MOST}}, trainer={"replicas": TRAINERS + 1},
            runtimeRef={"kind": "RLRuntime", "name": "ours"},
        )  # fmt: skip
        admin.create(job)
        wait_for(admin, namespace, "half", Scheduled="Unschedulable", timeout_s=120)
        eventually(lambda: plane.bound(namespace) == TRAINERS, "as many as there is room for")
        assert not admin.list("scheduling.k8s.io/v1alpha2", "PodGroup", namespace)
        assert len(plane.trainers(namespace)) == TRAINERS + 1
