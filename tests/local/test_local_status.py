"""State of a run and its live file: what the roles say, since when one is silent, and whether the run goes on."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from areal.errors import ConfigError, Kind
from areal.local import inspect
from areal.local.status import RunFacts, StatusSource, stopped
from areal.net.server import GrpcServer
from areal.net.status import idle_to_wire
from areal.observe.live import Diagnosis, Idle, IdleCause, Live, LiveRole, read_live, write_live
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.plan import RunLayout
from areal.processes.core import ChildPhase
from areal.record.run_rows import Records
from areal.v1 import common_pb2 as common
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from rich.console import Console
from support.redis_server import free_port

LIVE = Live(at=0.0, pid=os.getpid(), pid_began=0.0, step=3, max_steps=160)
SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


class Scene(rollout_grpc.RolloutServicer):
    """A run of a controller and two roles that serve gRPC, of which the worker answers nobody, and Redis."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 0.0
        self.status = rollout.GetRolloutStatusResponse()
        self.roles = [
            LiveRole(name, ChildPhase.READY, pid) for pid, name in enumerate(("redis", "controller", "worker-0"))
        ]

    async def GetRolloutStatus(self, request: Any, context: Any) -> rollout.GetRolloutStatusResponse:
        return self.status

    async def at(self, now: float) -> Live:
        """What the live file says then."""
        self.now = now
        await self.source.view()
        live = read_live(self.path)
        assert live is not None
        return live

    def start(self, address: str) -> None:
        addresses = {"controller": address, "worker-0": f"127.0.0.1:{free_port()}"}
        records = Records(self.path.with_name("metrics.jsonl"), self.path.with_name("evaluations.jsonl"))
        facts = RunFacts("digits", "token", addresses, address, records, 160, 2, ["http://127.0.0.1:1/v1"], 0.0)
        self.source = StatusSource(facts, lambda: self.roles, self.path, lambda: self.now)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene, waits = Scene(tmp_path / "live.json"), WaitRegistry("controller")
    server = GrpcServer("controller", "token", waits=waits, progress=ProgressCounter())
    server.add(rollout_grpc.add_RolloutServicer_to_server, scene, "areal.v1.Rollout")
    scene.start(f"127.0.0.1:{await server.start(0)}")
    with waits.waiting("leases", "group 3", deadline_s=60):
        yield scene
    await scene.source.close()
    await server.stop(0)


async def test_a_role_that_does_not_answer_is_silent_since_it_last_did(scene: Scene) -> None:
    await scene.at(0.0)
    live = await scene.at(7.0)
    assert {role.name: role.silent_s for role in live.roles} == {"redis": 0.0, "controller": 0.0, "worker-0": 7.0}
    assert [(wait.waits_for, wait.deadline_s) for wait in live.roles[1].waits] == [("group 3", 60.0)]
    assert (live.goes_on, live.pid, live.name, live.elapsed_s) == (True, os.getpid(), "digits", 7.0)


async def test_a_process_that_was_ready_is_unready_since_it_last_was(scene: Scene) -> None:
    told = []
    for at, phase, pid in ((0.0, ChildPhase.STARTING, 21), (2.0, ChildPhase.READY, 21), (5.0, ChildPhase.STARTING, 21),
                           (6.0, ChildPhase.READY, 21), (9.0, ChildPhase.STARTING, 22)):  # fmt: skip
        scene.roles = [LiveRole("generation-0", phase, pid)]
        told.append((await scene.at(at)).roles[0].unready_s)
    assert told == [None, None, 3.0, None, None]


async def test_it_tells_since_when_a_cause_stands_whatever_its_words(scene: Scene) -> None:
    told = []
    none, two, one = None, Idle(IdleCause.NO_SERVER, "none ready (2)"), Idle(IdleCause.NO_SERVER, "none ready (1)")
    for at, idle in ((0.0, none), (2.0, two), (5.0, one), (6.0, Idle(IdleCause.GATE_CLOSED, "closed")), (9.0, none)):
        cause = idle_to_wire(idle.cause) if idle else rollout.IDLE_CAUSE_UNSPECIFIED
        scene.status = rollout.GetRolloutStatusResponse(idle_cause=cause, idle_reason=idle.text if idle else "")
        live = await scene.at(at)
        assert live.idle == idle
        told.append(live.idle_s)
    assert told == [0.0, 0.0, 3.0, 0.0, 0.0]


async def test_what_the_controller_says_is_in_the_picture(scene: Scene) -> None:
    scene.status = rollout.GetRolloutStatusResponse(
        max_steps=90, served_policy_id="4.f1", leased=3, complete_waiting=5, tombstones={"filtered": 2},
        stalled="64 groups were rejected", stalled_by=common.FAULT_KIND_DATA, tokens_total=0,
        token_fates={"generated": 400, "lost": 4},
    )  # fmt: skip
    await scene.at(0.0)
    scene.status.tokens_total = 200
    live = await scene.at(2.0)
    assert (live.max_steps, live.policy, live.stalled, live.stalled_by) == (
        90, "4.f1", "64 groups were rejected", Kind.DATA,
    )  # fmt: skip
    assert live.flow is not None
    assert (live.flow.leased, live.flow.ready, live.flow.tombstones) == (3, 5, {"filtered": 2})
    assert live.flow.token_fates == {"generated": 400, "lost": 4}
    assert live.generation_tps == 100.0
    assert live.base_urls == ["http://127.0.0.1:1/v1"]


async def test_a_controller_that_does_not_answer_leaves_what_the_job_says(scene: Scene) -> None:
    scene.start(f"127.0.0.1:{free_port()}")
    live = await scene.at(0.0)
    assert (live.max_steps, live.policy, live.flow, live.idle) == (160, "", None, None)


async def test_a_directory_that_cant_be_written_costs_nothing_else(scene: Scene, tmp_path: Path) -> None:
    scene.path = tmp_path / "missing" / "live.json"
    scene.start(f"127.0.0.1:{free_port()}")
    assert (await scene.source.view()).live.name == "digits"
    assert not scene.path.parent.exists()


def test_status_of_a_run_that_does_not_go_on_says_what_ended_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="never said what it does"):
        inspect.look(tmp_path)
    write_live(tmp_path / "live.json", replace(LIVE, resume="areal run job.yaml --resume"))
    assert drawn(tmp_path).count("[run-gone]") == 1
    with pytest.raises(ConfigError, match=r"was cut off: its process \d+ is gone"):
        inspect.going_on(RunLayout(tmp_path))
    end = Diagnosis("stopped", "you stopped it (Ctrl-C)", "go on with `areal run job.yaml --resume`")
    write_live(tmp_path / "live.json", replace(LIVE, ended=True, cause=end))
    text = drawn(tmp_path)
    assert end.named in text
    assert end.fix in text
    assert "old: `areal why`" not in text
    told = orjson.loads(inspect.as_json(inspect.look(tmp_path)))
    assert (told["goesOn"], told["cause"]["cause"]) == (False, "stopped")


def drawn(run_dir: Path) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(inspect.table(inspect.look(run_dir)))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


async def test_status_shows_who_waits_and_how_old_its_news_are(scene: Scene) -> None:
    await scene.at(0.0)
    old = await scene.at(7.0)
    write_live(scene.path, replace(old, at=old.at - 60, idle=Idle(IdleCause.NO_WORKER, "no worker is connected")))
    text = drawn(scene.path.parent)
    for words in ("group 3", "(does not answer)", "admission: no worker is connected", "agents call:", "1m00s old"):
        assert words in text


@pytest.mark.parametrize("found", [b"", b"{}", b'{"at": "x"}', b"\xff\xfe", b"[1, 2]"])
def test_a_file_that_is_none_is_no_live_file(tmp_path, found):
    (tmp_path / "live.json").write_bytes(found)
    assert read_live(tmp_path / "live.json") is None


def test_only_its_owner_may_read_it(tmp_path):
    write_live(tmp_path / "live.json", LIVE)
    assert (tmp_path / "live.json").stat().st_mode & 0o777 == 0o600


def test_a_pid_that_another_process_has_now_is_not_the_run(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        write_live(tmp_path / "live.json", replace(LIVE, pid=child.pid))
        written = orjson.loads((tmp_path / "live.json").read_bytes())
        assert written["pid"] == child.pid
        live = read_live(tmp_path / "live.json")
        assert live is not None
        assert not live.alive
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


def test_a_stopped_child_is_found_below_its_root():
    with subprocess.Popen(SLEEPS) as child:
        try:
            assert stopped({os.getpid(), child.pid}) == {}
            child.send_signal(signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
            assert stopped({os.getpid()}) == {os.getpid(): child.pid}
            assert stopped({os.getpid(), child.pid}) == {child.pid: child.pid}
            assert stopped({1 << 30}) == {}
        finally:
            child.kill()


def test_a_process_that_ends_meanwhile_is_passed_over(tmp_path):
    (tmp_path / "12").mkdir()
    (tmp_path / "13").mkdir()
    (tmp_path / "13" / "stat").write_text("13 (a) name) T 7 0")
    assert stopped({7, 12}, tmp_path) == {7: 13}
