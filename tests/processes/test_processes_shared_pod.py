"""A trainer's pod that has the servers, too: both under one launcher, each with a life of its own."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from areal.cards import CardSide
from areal.plan.cluster_names import BESIDE
from areal.processes.core import ChildPhase
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.blocking_channel import connect_sync
from support.job_run import ROOT
from support.pods import TOKEN, Pods
from test_processes_pods import small_job

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1800)]

ROLES = ("redis", "reward-custom", "controller", "worker")
STEPS = 8
SLOW_S = 400.0  # a loaded machine starts torch for minutes


@pytest.fixture
def pods(digits: Path, tmp_path: Path) -> Iterator[Pods]:
    recipe = (ROOT / "examples" / "digits.py").read_text()
    shared = {"placement": "shared", "generation": {"replicas": 2}, "algorithm": {"maxStaleness": 1, "maxSteps": STEPS}}
    made = Pods(tmp_path / "pods", small_job(digits, **shared), recipe)
    (made.mounts["recipe"] / "recipe.py").write_text(recipe)
    yield made
    made.kill_all()


def readiness(pods: Pods) -> bool:
    """What the kubelet asks of the trainer's pod."""
    try:
        with connect_sync(f"127.0.0.1:{pods.pods['trainer-0'].launcher.port}", "") as channel:
            asked = health_pb2.HealthCheckRequest(service=BESIDE)
            answer = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=5)
    except grpc.RpcError:
        return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING


def server(pods: Pods, index: int) -> operations.GetChildStatusResponse:
    with connect_sync(f"127.0.0.1:{pods.pods['trainer-0'].launcher.port}", TOKEN) as channel:
        asked = operations.GetChildStatusRequest(role=f"generation-{index}")
        return operations_grpc.LauncherStub(channel).GetChildStatus(asked, timeout=5)


def agent(pods: Pods, index: int) -> psutil.Process:
    """A server's own process."""
    found = pods.pods["trainer-0"].below("areal.processes.role", "generation", f"--index {index} ")
    return found[0]


def test_servers_outlive_their_trainer_s_epochs_and_die_without_it(pods: Pods) -> None:
    assert pods.tool("prepare")[0] == 0, pods.all_output()
    pods.start_all((*ROLES, "trainer"))
    trainer = pods.pods["trainer-0"].launcher
    assert "generation-0" not in pods.pods
    pods.until("launcher of the trainer", trainer.awaits)
    pods.until("ready servers", lambda: readiness(pods))
    assert trainer.phase() is ChildPhase.IDLE, "servers wait for no epoch, the trainer does"
    assert trainer.restart(1)
    pods.until("step", lambda: pods.step() >= 2, SLOW_S)
    before = [server(pods, index).pid for index in (0, 1)]

    # the trainer dies, and a new epoch starts it: no server notices
    pods.pods["trainer-0"].below("areal_trainer.main")[0].send_signal(signal.SIGKILL)
    pods.until("trainer that waits", trainer.awaits)
    assert readiness(pods)
    assert trainer.restart(2)
    pods.until("step after the trainer's death", lambda: pods.step() >= 4, SLOW_S)
    assert [server(pods, index).pid for index in (0, 1)] == before
    assert (pods.mounts["tmp"] / "cards" / CardSide.TRAINING).exists(), "the lock is on the pod's own disk"

    # a server dies: its launcher starts it again in the trainer's epoch
    agent(pods, 1).kill()
    pods.until("pod that isn't ready", lambda: not readiness(pods))
    pods.until("another server", lambda: server(pods, 1).restarts == 1 and readiness(pods), SLOW_S)
    assert (trainer.child().epoch, trainer.child().restarts) == (2, 1)

    pods.until("the end", lambda: trainer.phase() is ChildPhase.COMPLETE, SLOW_S)
    codes = pods.stop(*pods.pods)
    assert {name: code for name, code in codes.items() if code not in (0, 143)} == {}, pods.all_output()
    code, words = pods.tool("finish")
    audit = json.loads(words)
    assert (code, audit["ok"], audit["lost"], audit["duplicated"]) == (0, True, 0, 0)
    summary = json.loads((pods.mounts["run"] / "summary.json").read_text())
    assert (summary["status"], summary["groups"]["trained"]) == ("Complete", STEPS * 16)


def test_a_server_that_cannot_be_kept_alive_ends_the_pod_with_its_own_code_and_words(pods: Pods) -> None:
    assert pods.tool("prepare")[0] == 0, pods.all_output()
    digests = pods.mounts["access"] / "token.generation"
    digests.unlink()  # a server can't start without it: no other start would help
    pod = pods.start("trainer")
    assert pod.process.wait(120) == 64
    words = pod.last_words.read_text()
    assert "generation-" in words.splitlines()[0]
    assert "token.generation" in words
