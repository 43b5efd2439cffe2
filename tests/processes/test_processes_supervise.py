"""Supervised children, real ones: crash, restart, hang at the start, drain, epochs, logs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import psutil
import pytest
from areal.net.channel import connect
from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.processes import logfile, supervise
from areal.processes.core import BudgetPolicy, ChildPhase, LifePolicy, RestartBy
from areal.processes.family import Command
from areal.processes.service import SERVICE_NAME, LauncherService, phase_from_wire, to_wire
from areal.processes.supervise import ChildSpec, ChildSupervisor, Probe, ProbeKind
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc

pytestmark = pytest.mark.component

QUICK = BudgetPolicy(max_restarts=2, first_wait_s=0.01)


def child(
    tmp_path: Path, code: str, *, probe: Probe | None = None, policy: LifePolicy | None = None
) -> ChildSupervisor:
    script = tmp_path / "role.py"
    script.write_text(code)
    command = Command("role-0", [sys.executable, "-S", "-u", str(script)], {**os.environ}, tmp_path)
    policy = policy or LifePolicy(budget=QUICK, drain_s=5.0)
    return ChildSupervisor(ChildSpec(command, tmp_path / "logs" / "role-0.log", probe or Probe(), policy))


async def until(supervised: ChildSupervisor, phase: ChildPhase, restarts: int = 0) -> None:
    async with asyncio.timeout(60):
        while not (supervised.status.phase is phase and supervised.status.restarts >= restarts):
            await supervised.changed()


async def pid_of(supervised: ChildSupervisor) -> int:
    async with asyncio.timeout(60):
        while not supervised.status.pid:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return supervised.status.pid


async def logged(supervised: ChildSupervisor, lines: list[str]) -> None:
    async with asyncio.timeout(60):
        while logfile.tail(supervised.spec.log) != lines:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_role_that_crashes_twice_completes_at_the_third_start(tmp_path):
    supervised = child(
        tmp_path,
        "import os, sys\nn = os.environ['AREAL_START']\nprint('start', n)\nsys.exit({'1': 75, '2': 1}.get(n, 0))\n",
    )
    status = await asyncio.wait_for(supervised.run(), 60)
    assert (status.phase, status.restarts) == (ChildPhase.COMPLETE, 2)
    log = supervised.spec.log.read_text()
    assert [line.split(" ", 3)[3] for line in log.splitlines() if line.startswith("════")] == [
        "start 1 of role-0 ════",
        "start 2 of role-0, after: exit 75: something outside failed ════",
        "start 3 of role-0, after: exit 1 ════",
    ]
    assert logfile.tail(supervised.spec.log) == ["start 3"]


async def test_a_spent_budget_ends_in_failure(tmp_path):
    supervised = child(tmp_path, "import os\nos.kill(os.getpid(), 11)\n")
    status = await asyncio.wait_for(supervised.run(), 60)
    assert (status.phase, status.restarts) == (ChildPhase.FAILED, 2)
    assert "killed by SIGSEGV" in status.reason


async def test_a_refusal_is_not_tried_again(tmp_path):
    status = await asyncio.wait_for(child(tmp_path, "raise SystemExit(65)").run(), 60)
    assert (status.phase, status.restarts) == (ChildPhase.FAILED, 0)
    assert status.last_exit is not None
    assert status.last_exit.code == 65


async def test_a_hang_at_the_start_is_killed_and_tried_again(tmp_path):
    policy = LifePolicy(start_deadline_s=0.3, budget=BudgetPolicy(max_restarts=1, first_wait_s=0.01))
    supervised = child(tmp_path, "import time; time.sleep(600)", probe=Probe(ProbeKind.TCP, 1), policy=policy)
    status = await asyncio.wait_for(supervised.run(), 60)
    assert (status.phase, status.restarts) == (ChildPhase.FAILED, 1)
    assert "no answer within 0.3 s of its start" in status.reason


async def test_a_killed_role_is_back_within_two_seconds(tmp_path):
    supervised = child(tmp_path, "import time; time.sleep(600)")
    life = asyncio.create_task(supervised.run())
    await until(supervised, ChildPhase.READY)
    first = await pid_of(supervised)
    before = asyncio.get_running_loop().time()
    os.kill(first, signal.SIGKILL)
    await until(supervised, ChildPhase.READY, restarts=1)
    assert asyncio.get_running_loop().time() - before < 2.0
    assert await pid_of(supervised) != first
    supervised.kill()
    assert (await asyncio.wait_for(life, 60)).phase is ChildPhase.STOPPED


WITH_STANDBY = """\
import json, os, socket, sys, time
if (told := os.environ.pop("AREAL_STANDBY", "")):
    with open(__file__ + ".waits", "w") as waits:
        waits.write(str(os.getpid()))
    order = socket.socket(fileno=int(told))
    data, outputs, _, _ = socket.recv_fds(order, 65536, 1)
    if not data:
        sys.exit(0)
    os.dup2(outputs[0], 1)
    os.environ.update(json.loads(data))
    print("took over")
print("start", os.environ["AREAL_START"], os.environ["AREAL_EPOCH"], os.environ.get("AREAL_LAST_EXIT"))
time.sleep(600)
"""


async def standby_of(supervised: ChildSupervisor, tmp_path: Path) -> int:
    """The standby's pid, once it waits."""
    waits = tmp_path / "role.py.waits"
    async with asyncio.timeout(60):
        while not (waits.exists() and waits.read_text()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    pid = int(waits.read_text())
    waits.unlink()
    return pid


def with_standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChildSupervisor:
    monkeypatch.setattr(supervise, "_STANDBY_AFTER_S", 0.05)
    supervised = child(tmp_path, WITH_STANDBY)
    supervised.spec = replace(supervised.spec, standby=True)
    return supervised


async def test_a_standby_takes_over_from_a_killed_role_and_gets_a_standby_of_its_own(tmp_path, monkeypatch):
    supervised = with_standby(tmp_path, monkeypatch)
    life = asyncio.create_task(supervised.run())
    await until(supervised, ChildPhase.READY)
    await logged(supervised, ["start 1 0 None"])
    for start in (2, 3):
        standby = await standby_of(supervised, tmp_path)
        assert await pid_of(supervised) != standby
        os.kill(await pid_of(supervised), signal.SIGKILL)
        await until(supervised, ChildPhase.READY, restarts=start - 1)
        assert await pid_of(supervised) == standby
        await logged(supervised, ["took over", f"start {start} 0 -9"])
    last = await standby_of(supervised, tmp_path)
    supervised.kill()
    assert (await asyncio.wait_for(life, 60)).phase is ChildPhase.STOPPED
    assert not psutil.pid_exists(last), "a standby ends with its role"


async def test_a_role_whose_standby_died_starts_as_without_one(tmp_path, monkeypatch):
    supervised = with_standby(tmp_path, monkeypatch)
    life = asyncio.create_task(supervised.run())
    standby = await standby_of(supervised, tmp_path)
    os.kill(standby, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid) for pid in (standby,) if psutil.pid_exists(pid)], 10)
    os.kill(await pid_of(supervised), signal.SIGKILL)
    await until(supervised, ChildPhase.READY, restarts=1)
    await logged(supervised, ["start 2 0 -9"])
    supervised.kill()
    assert (await asyncio.wait_for(life, 60)).phase is ChildPhase.STOPPED


async def test_no_standby_is_started_where_memory_is_short(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=-1))
    supervised = with_standby(tmp_path, monkeypatch)
    life = asyncio.create_task(supervised.run())
    async with asyncio.timeout(60):
        while "role-0 has no standby" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not (tmp_path / "role.py.waits").exists()
    supervised.kill()
    assert (await asyncio.wait_for(life, 60)).phase is ChildPhase.STOPPED


async def test_a_drain_lets_the_role_finish(tmp_path):
    supervised = child(
        tmp_path,
        "import os, signal, sys, time\n"
        "signal.signal(15, lambda *_: (os.write(1, b'saved\\n'), sys.exit(143)))\nos.write(1, b'up\\n')\n"
        "while True: time.sleep(0.05)\n",  # a signal just before one long sleep would be handled after it
    )
    life = asyncio.create_task(supervised.run())
    await logged(supervised, ["up"])
    supervised.drain()
    status = await asyncio.wait_for(life, 60)
    assert status.phase is ChildPhase.STOPPED
    assert logfile.tail(supervised.spec.log) == ["up", "saved"]


async def test_a_deaf_role_is_killed_after_the_grace(tmp_path):
    supervised = child(
        tmp_path, "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up')\ntime.sleep(600)\n"
    )
    life = asyncio.create_task(supervised.run())
    await logged(supervised, ["up"])
    supervised.drain(0.2)
    status = await asyncio.wait_for(life, 60)
    assert status.last_exit is not None
    assert (status.phase, status.last_exit.code) == (ChildPhase.STOPPED, -9)


async def test_the_launcher_service_restarts_a_gang_in_a_new_epoch(tmp_path):
    policy = LifePolicy(restart=RestartBy.EPOCH, budget=QUICK, drain_s=5.0)
    supervised = child(
        tmp_path, "import os, time\nprint('epoch', os.environ['AREAL_EPOCH'])\ntime.sleep(600)\n", policy=policy
    )
    waits = WaitRegistry("launcher")
    server = GrpcServer("launcher", "secret", waits=waits, progress=ProgressCounter())
    server.add(operations_grpc.add_LauncherServicer_to_server, LauncherService({"role-0": supervised}), SERVICE_NAME)
    port = await server.start(0)
    life = asyncio.create_task(supervised.run())
    async with connect(f"127.0.0.1:{port}", "secret") as channel:
        stub = operations_grpc.LauncherStub(channel)
        await until(supervised, ChildPhase.READY)
        os.kill(await pid_of(supervised), signal.SIGKILL)
        await until(supervised, ChildPhase.BACKING_OFF)
        seen = await stub.GetChildStatus(operations.GetChildStatusRequest(), timeout=60)
        assert (phase_from_wire(seen.phase), seen.last_exit_reason) == (
            ChildPhase.BACKING_OFF,
            "killed by SIGKILL; waits for a new epoch [role-killed]",
        )
        assert (await stub.RestartChild(operations.RestartChildRequest(epoch=1), timeout=60)).accepted
        await until(supervised, ChildPhase.READY, restarts=1)
        assert (await stub.RestartChild(operations.RestartChildRequest(epoch=1), timeout=60)).accepted
        assert not (await stub.RestartChild(operations.RestartChildRequest(epoch=0), timeout=60)).accepted
        await logged(supervised, ["epoch 1"])
        await stub.DrainChild(operations.DrainChildRequest(grace_s=2), timeout=60)
        assert (await asyncio.wait_for(life, 60)).phase is ChildPhase.STOPPED
    await server.stop(0)


async def test_a_member_of_a_gang_waits_for_its_epoch_and_lives_again_after_its_end(tmp_path):
    policy = LifePolicy(restart=RestartBy.EPOCH, first_start=RestartBy.EPOCH, budget=QUICK, drain_s=5.0)
    supervised = child(
        tmp_path, "import os, sys\nsys.exit(65 if os.environ['AREAL_EPOCH'] == '1' else 0)", policy=policy
    )
    life = asyncio.create_task(supervised.run())
    async with asyncio.timeout(60):
        while not to_wire(supervised.status).awaits_epoch:
            await supervised.changed()
    assert supervised.restart(1)
    assert (await asyncio.wait_for(life, 60)).phase is ChildPhase.FAILED
    assert supervised.restart(2)
    assert (await asyncio.wait_for(supervised.run(), 60)).phase is ChildPhase.COMPLETE


async def test_a_role_may_speak_in_two_places(tmp_path):
    container = tmp_path / "container.log"
    descriptor = os.open(container, os.O_WRONLY | os.O_CREAT)
    supervised = child(
        tmp_path, "import os\nprint('a' * 200_000)\nprint('start', os.environ['AREAL_START'])\nos._exit(75)"
    )
    supervised.spec = replace(supervised.spec, mirror=descriptor)
    status = await asyncio.wait_for(supervised.run(), 60)
    os.close(descriptor)
    assert status.phase is ChildPhase.FAILED
    said = container.read_text().splitlines()
    assert [len(line) for line in said] == [200_000, 7] * 3
    assert [line for line in supervised.spec.log.read_text().splitlines() if not line.startswith("═")] == said


async def test_a_role_is_ready_when_its_health_says_so(tmp_path):
    server = GrpcServer("role", "secret", waits=WaitRegistry("role"), progress=ProgressCounter())
    port = await server.start(0)
    supervised = child(tmp_path, "import time; time.sleep(600)", probe=Probe(ProbeKind.GRPC, port))
    life = asyncio.create_task(supervised.run())
    async with asyncio.timeout(60):
        while supervised.status.reason != "live, not ready":
            await supervised.changed()
    assert supervised.status.phase is ChildPhase.STARTING
    await server.set_ready(True)
    await until(supervised, ChildPhase.READY)
    supervised.kill()
    await asyncio.wait_for(life, 60)
    await server.stop(0)


async def test_a_stranger_may_not_restart_anything(tmp_path):
    server = GrpcServer("launcher", "secret", waits=WaitRegistry("launcher"), progress=ProgressCounter())
    service = LauncherService({"role-0": child(tmp_path, "")})
    server.add(operations_grpc.add_LauncherServicer_to_server, service, SERVICE_NAME)
    port = await server.start(0)
    async with connect(f"127.0.0.1:{port}", "wrong") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await operations_grpc.LauncherStub(channel).RestartChild(
                operations.RestartChildRequest(epoch=1), timeout=60
            )
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    await server.stop(0)
