"""Jobs of a Kueue queue on a real API server: with a scripted queue at each landing, every night with Kueue itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kube import kueue
from kube.harness.client import Client
from kube.harness.control_plane import Cluster
from kube.harness.fleet import LABEL as FAKE_NODE
from kube.harness.processes import eventually
from kube.jobs import Object, condition, read, rljob, summary, wait_for
from support import scripted_queue
from support.scripted_pods import ScriptedPods

pytestmark = pytest.mark.kube_api


@pytest.fixture(scope="module")
def definitions(admin: Client) -> None:
    """The few fields of Kueue's that the operator knows."""
    kueue.install(admin, kueue.small_definitions())


@pytest.fixture(scope="module")
def real(cluster: Cluster, workplace: Path) -> Iterator[kueue.Kueue]:
    """Kueue itself."""
    directory = workplace / "kueue"
    directory.mkdir()
    one = kueue.Kueue(cluster, directory)
    try:
        one.start()
        yield one
    finally:
        one.stop()


@pytest.fixture
def enough(admin: Client, namespace: str, real: kueue.Kueue, operator: object) -> str:
    """Processors for one tiny job and not for two, by what the operator asks for."""
    admin.create(kueue.labelled(rljob(namespace, "measured"), queue="nowhere"))
    made = eventually(lambda: kueue.workload(admin, namespace, "measured"), "a Workload")
    admin.delete(read(admin, namespace, "measured"))
    eventually(lambda: not kueue.workload(admin, namespace, "measured"), "it is gone")
    return f"{kueue.millis(made) * 3 // 2}m"


def pods_of(admin: Client, namespace: str, name: str = "tiny", role: str = "") -> list[Object]:
    """Pods of a job that are not over."""
    labels = f"areal.dev/rljob={name}" + (f",areal.dev/role={role}" if role else "")
    return [
        pod
        for pod in admin.list("v1", "Pod", namespace, labels)
        if pod["status"]["phase"] not in ("Succeeded", "Failed")
    ]


def scheduled(admin: Client, namespace: str, name: str = "tiny") -> str:
    return str(condition(read(admin, namespace, name), "Scheduled").get("message", ""))


@pytest.mark.usefixtures("definitions", "operator")
def test_a_job_starts_when_admitted_saves_when_evicted_and_gives_back_when_its_pods_are_gone(
    admin: Client, pods: ScriptedPods, namespace: str
) -> None:
    flavor = {"name": f"{namespace}-h100"}
    admin.create({
        "apiVersion": kueue.API, "kind": "ResourceFlavor", "metadata": flavor,
        "spec": {"nodeLabels": {FAKE_NODE: "true"}},
    })  # fmt: skip
    run = pods.run(namespace, "tiny")
    admin.create(kueue.labelled(rljob(namespace, generation={"replicas": 3}), queue="gpus"))
    wait_for(admin, namespace, Scheduled="QuotaPending", summary="Queued")
    kueue.turn(admin, namespace, scripted_queue.waits)
    eventually(lambda: scripted_queue.MORE in scheduled(admin, namespace), "the queue's own words")
    assert not admin.list("v1", "Pod", namespace)
    assert not admin.list("batch/v1", "Job", namespace)

    kueue.turn(admin, namespace, scripted_queue.admitted, servers=2, flavor=flavor["name"])
    wait_for(admin, namespace, Progressing="True", summary="Running")
    servers = pods_of(admin, namespace, role="generation")
    assert len(servers) == 2, "as many as were admitted"
    assert all(pod["spec"]["nodeSelector"] == {FAKE_NODE: "true"} for pod in servers)
    eventually(lambda: kueue.holds(kueue.workload(admin, namespace), "PodsReady"), "Kueue is told that pods are ready")

    run.hold_drain = True
    kueue.turn(admin, namespace, scripted_queue.evicted)
    job = wait_for(admin, namespace, Suspended="CheckpointPending", summary="Suspending")
    assert "its quota is kept until its pods have saved" in condition(job, "Scheduled")["message"]
    assert pods_of(admin, namespace)
    assert kueue.holds(kueue.workload(admin, namespace), "QuotaReserved")
    pods.finish_drain(namespace, "tiny")
    eventually(lambda: not kueue.holds(kueue.workload(admin, namespace), "QuotaReserved"), "the quota goes back")
    assert not pods_of(admin, namespace), "after the last pod"
    given_back = kueue.workload(admin, namespace)
    assert "admission" not in given_back["status"]
    assert kueue.holds(given_back, "Requeued")
    job = wait_for(admin, namespace, summary="Queued")
    assert job["spec"].get("suspend", False) is False
    saved = run.checkpoint_step
    assert saved > 0

    kueue.turn(admin, namespace, scripted_queue.admitted, flavor=flavor["name"])
    job = wait_for(admin, namespace, Progressing="True", summary="Running")
    eventually(lambda: run.step > saved, "it goes on")
    assert (run.epochs, job["status"]["attempts"]["restarts"]) == ([1, 2], 0)
    admin.patch(job, {"spec": {"algorithm": {"maxSteps": run.step + 5}}})
    wait_for(admin, namespace, Complete="True")
    eventually(lambda: kueue.holds(kueue.workload(admin, namespace), "Finished"), "the quota is free")
    assert not pods_of(admin, namespace)


@pytest.mark.nightly
@pytest.mark.usefixtures("real", "operator")
class TestWithKueue:
    """Its own process, its own definitions."""

    def test_a_more_urgent_job_takes_the_place_of_one_that_has_saved(
        self, admin: Client, pods: ScriptedPods, namespace: str, enough: str
    ) -> None:
        for name, value in (("low", 1), ("high", 100)):
            metadata = {"name": f"{namespace}-{name}"}
            admin.create(
                {"apiVersion": kueue.API, "kind": "WorkloadPriorityClass", "metadata": metadata, "value": value}
            )
        kueue.queue(admin, namespace, cpu=enough, node_labels={FAKE_NODE: "true"})
        low = pods.run(namespace, "low")
        admin.create(kueue.labelled(rljob(namespace, "low"), queue="gpus", priority=f"{namespace}-low"))
        wait_for(admin, namespace, "low", Progressing="True")
        eventually(lambda: low.step >= 3, "some steps")
        low.hold_drain = True
        admin.create(kueue.labelled(rljob(namespace, "high"), queue="gpus", priority=f"{namespace}-high"))
        wait_for(admin, namespace, "low", Suspended="CheckpointPending")
        waits = wait_for(admin, namespace, "high", summary="Queued")
        assert not pods_of(admin, namespace, "high"), condition(waits, "Scheduled")
        assert pods_of(admin, namespace, "low")
        pods.finish_drain(namespace, "low")
        wait_for(admin, namespace, "high", Progressing="True")
        assert not pods_of(admin, namespace, "low")
        assert summary(read(admin, namespace, "low")) == "Queued"
        assert "insufficient" in scheduled(admin, namespace, "low")
        saved = low.checkpoint_step
        admin.patch(
            read(admin, namespace, "high"), {"spec": {"algorithm": {"maxSteps": pods.run(namespace, "high").step + 3}}}
        )
        wait_for(admin, namespace, "high", Complete="True")
        wait_for(admin, namespace, "low", Progressing="True")
        eventually(lambda: low.step > saved > 0, "it goes on from its checkpoint")
        assert low.epochs == [1, 2]

    def test_of_two_jobs_that_half_fit_one_runs_whole_and_the_other_waits_whole(
        self, admin: Client, namespace: str, enough: str
    ) -> None:
        kueue.queue(admin, namespace, cpu=enough)
        names = ("one", "two")
        for name in names:
            admin.create(kueue.labelled(rljob(namespace, name), queue="gpus"))
        runs = eventually(
            lambda: [name for name in names if summary(read(admin, namespace, name)) == "Running"], "one of them runs"
        )
        (waits,) = set(names) - set(runs)
        wait_for(admin, namespace, waits, summary="Queued")
        assert not pods_of(admin, namespace, waits)
        assert "insufficient" in scheduled(admin, namespace, waits)
        admin.delete(read(admin, namespace, runs[0]))
        wait_for(admin, namespace, waits, Progressing="True")

    def test_a_large_fleet_is_admitted_in_part(self, admin: Client, namespace: str, enough: str) -> None:
        kueue.queue(admin, namespace, cpu=enough)
        admin.create(kueue.labelled(rljob(namespace, generation={"replicas": 40}), queue="gpus"))
        job = wait_for(admin, namespace, Progressing="True")
        granted = {
            one["name"]: one["count"]
            for one in kueue.workload(admin, namespace)["status"]["admission"]["podSetAssignments"]
        }
        assert 1 <= granted["generation"] < 40
        eventually(lambda: len(pods_of(admin, namespace, role="generation")) == granted["generation"], "that many")
        assert job["spec"]["generation"]["replicas"] == 40

    def test_a_deactivated_job_saves_and_one_that_is_active_again_comes_back(
        self, admin: Client, pods: ScriptedPods, namespace: str, enough: str
    ) -> None:
        kueue.queue(admin, namespace, cpu=enough)
        run = pods.run(namespace, "tiny")
        admin.create(kueue.labelled(rljob(namespace), queue="gpus"))
        wait_for(admin, namespace, Progressing="True")
        run.hold_drain = True
        admin.patch(kueue.workload(admin, namespace), {"spec": {"active": False}})
        job = wait_for(admin, namespace, Suspended="CheckpointPending")
        assert "others may have its quota" in condition(job, "Scheduled")["message"]
        assert pods_of(admin, namespace)
        pods.finish_drain(namespace, "tiny")
        wait_for(admin, namespace, summary="Queued")
        eventually(lambda: not kueue.holds(kueue.workload(admin, namespace), "QuotaReserved"), "nothing is reserved")
        admin.patch(kueue.workload(admin, namespace), {"spec": {"active": True}})
        wait_for(admin, namespace, Progressing="True")
        assert run.epochs == [1, 2]

    def test_a_queue_named_default_is_nothing_to_a_job_without_the_label(self, admin: Client, namespace: str) -> None:
        kueue.queue(admin, namespace, cpu="1m", name="default")
        admin.create(rljob(namespace))
        wait_for(admin, namespace, Progressing="True")
        assert not admin.list(kueue.API, "Workload", namespace)
