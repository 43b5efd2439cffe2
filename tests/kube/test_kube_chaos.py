"""Operators that die, lose the lease, lose their watches or their API server: jobs neither notice nor suffer.

What must hold whatever happens is checked on everything that the API server ever showed: no child is made twice, epochs
are counted one by one and each is started once, what has ended stays ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube.follow import KINDS, History
from kube.harness.client import Client
from kube.harness.control_plane import ControlPlane
from kube.harness.processes import eventually
from kube.jobs import API, holds, read, rljob, summary, wait_for
from kube.operators import Ground, Operator
from support.scripted_pods import ScriptedPods

pytestmark = pytest.mark.kube_api


@pytest.fixture
def crew(ground: Ground) -> Iterator[list[Operator]]:
    """Operators of a test; those that still run afterwards are ended."""
    crew: list[Operator] = []
    yield crew
    for one in crew:
        one.stop()


def check(history: History, job: str = "tiny") -> None:
    """What holds for every job, whatever happened to its operators."""
    twice = {name: uids for name, uids in history.uids().items() if len(uids) > 1 and not name.startswith("Pod/")}
    assert not twice, "made twice"
    epochs = [epoch for epoch in history.values("RLJob", job, "status", "attempts", "epoch") if epoch is not None]
    assert epochs == list(range(epochs[0], epochs[-1] + 1)), f"epochs went {epochs}"
    ended = [any(holds(version, kind) for kind in ("Complete", "Failed")) for version in history.versions("RLJob", job)]
    assert ended == sorted(ended), "an end was taken back"


@pytest.mark.timeout(300)
def test_an_operator_that_dies_at_every_write_makes_nothing_twice_and_gets_there(
    admin: Client, pods: ScriptedPods, namespace: str, ground: Ground, crew: list[Operator], tmp_path: Path
) -> None:
    run, died = pods.run(namespace, "tiny"), tmp_path / "died"
    with History(admin, namespace, (API, "RLJob"), *KINDS) as history:
        job = admin.create(rljob(namespace, trainer={"replicas": 2}))
        crew.append(Operator(ground, f"mortal-{namespace}", namespace=namespace, mortal=died))
        wait_for(admin, namespace, TrainerReady="True", Progressing="True", timeout_s=150)
        pods.end_trainer(namespace, "tiny", 1, rank=1)
        eventually(lambda: run.epochs == [1, 2] and run.whole, "a gang of epoch 2", timeout_s=60)
        admin.patch(job, {"spec": {"suspend": True}})
        wait_for(admin, namespace, Suspended="True", timeout_s=90)
        admin.patch(job, {"spec": {"suspend": False, "algorithm": {"maxSteps": run.step + 10}}})
        wait_for(admin, namespace, Complete="True", summary="Complete", timeout_s=120)
    check(history)
    assert run.epochs == [1, 2, 3]
    deaths = died.read_text().splitlines()
    print(f"{len(deaths)} operators died")
    for part in ("rljobs/tiny/status", "statefulsets/tiny-trainer", "secrets", "jobs/tiny-prepare", "jobs/tiny-finish"):
        assert any(part in death for death in deaths), f"none died after writing {part}"


def test_a_killed_leader_is_followed_by_the_other_and_the_job_does_not_notice(
    admin: Client, pods: ScriptedPods, namespace: str, ground: Ground, crew: list[Operator]
) -> None:
    for name in ("a", "b"):
        crew.append(Operator(ground, f"{name}-{namespace}", namespace=namespace, lease_s=3.0).wait_ready())
        eventually(lambda: any(one.leads for one in crew), "a leader")
    leader, follower = crew
    assert not follower.leads
    with History(admin, namespace, (API, "RLJob"), *KINDS) as history:
        admin.create(rljob(namespace))
        wait_for(admin, namespace, Progressing="True")
        run = pods.run(namespace, "tiny")
        leader.process.kill()
        pods.end_trainer(namespace, "tiny", 1)  # while nobody leads
        eventually(lambda: follower.leads, "the other leads", timeout_s=60)
        eventually(lambda: run.epochs == [1, 2] and run.whole, "it deals with what happened meanwhile")
        wait_for(admin, namespace, TrainerReady="True")
    check(history)


def test_a_leader_that_slept_ends_itself_before_it_writes_again(
    admin: Client, namespace: str, ground: Ground, crew: list[Operator]
) -> None:
    for name in ("a", "b"):
        crew.append(Operator(ground, f"{name}-{namespace}", namespace=namespace, lease_s=3.0).wait_ready())
        eventually(lambda: any(one.leads for one in crew), "a leader")
    leader, follower = crew
    with History(admin, namespace, (API, "RLJob"), *KINDS) as history:
        admin.create(rljob(namespace))
        wait_for(admin, namespace, Progressing="True")
        os.kill(leader.process.pid, signal.SIGSTOP)
        eventually(lambda: follower.leads, "the other leads", timeout_s=60)
        os.kill(leader.process.pid, signal.SIGCONT)
        assert leader.process.wait(20) != 0, "a process that lost the lease is no operator any more"
        wait_for(admin, namespace, summary="Running")
    check(history)


def test_a_watch_that_missed_everything_starts_over(
    admin: Client, pods: ScriptedPods, namespace: str, ground: Ground, crew: list[Operator], control_plane: ControlPlane
) -> None:
    operator = Operator(ground, f"deaf-{namespace}", namespace=namespace, lease_s=60.0).wait_ready()
    crew.append(operator)
    with History(admin, namespace, (API, "RLJob")) as history:
        job = admin.create(rljob(namespace))
        wait_for(admin, namespace, Progressing="True")
        os.kill(operator.process.pid, signal.SIGSTOP)
        admin.patch(job, {"spec": {"generation": {"replicas": 2}}})
        for number in range(20):  # what it misses
            metadata = {"namespace": namespace, "name": f"noise-{number}", "labels": {"areal.dev/rljob": "tiny"}}
            admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        control_plane.compact()
        control_plane.restart_apiserver(kill=True)
        admin.delete(pod_of(admin, namespace, "tiny-generation-0"))
        os.kill(operator.process.pid, signal.SIGCONT)
        eventually(
            lambda: read(admin, namespace)["status"]["generation"]["readyReplicas"] == 2, "what it missed is done"
        )
        assert operator.process.code is None
        assert pods.run(namespace, "tiny").epochs == [1]
    check(history)


def pod_of(admin: Client, namespace: str, name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name}}


def test_an_api_server_that_is_away_is_waited_for(
    admin: Client, pods: ScriptedPods, namespace: str, ground: Ground, crew: list[Operator], control_plane: ControlPlane
) -> None:
    operator = Operator(ground, f"patient-{namespace}", namespace=namespace, lease_s=60.0).wait_ready()
    crew.append(operator)
    admin.create(rljob(namespace))
    wait_for(admin, namespace, Progressing="True")
    run = pods.run(namespace, "tiny")
    control_plane.stop_apiserver(kill=True)
    before = run.step
    pods.end_trainer(namespace, "tiny", 1)
    eventually(lambda: operator.metric("areal_operator_watch_restarts_total") > 0, "its watches broke")
    assert run.epochs == [1], "an epoch that can't be written is not begun"
    control_plane.start_apiserver()
    eventually(lambda: run.epochs == [1, 2] and run.whole, "the restart, once it can be remembered")
    eventually(lambda: run.step > before, "it trains on")
    assert operator.process.code is None


def test_a_cut_between_operator_and_pods_is_no_failure(
    admin: Client, pods: ScriptedPods, namespace: str, ground: Ground, crew: list[Operator]
) -> None:
    operator = Operator(ground, f"cut-{namespace}", namespace=namespace).wait_ready()
    crew.append(operator)
    job = admin.create(rljob(namespace, runPolicy={"stallTimeoutSeconds": 4}))
    wait_for(admin, namespace, Progressing="True")
    run = pods.run(namespace, "tiny")
    pods.cut(namespace, "tiny")
    seen = run.step
    eventually(lambda: run.step > seen + 80, "it trains on, unheard, for longer than a stall may take")
    assert run.epochs == [1]
    assert not read(admin, namespace)["status"].get("failures")
    pods.cut(namespace, "tiny", cut=False)
    admin.patch(job, {"spec": {"algorithm": {"maxSteps": run.step + 20}}})
    wait_for(admin, namespace, Complete="True")
    assert run.epochs == [1]
    assert summary(read(admin, namespace)) in ("Completing", "Complete")
