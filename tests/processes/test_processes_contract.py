"""What operators may expect of a trainer's launcher: the same cases for a real process and for the scripted one."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from areal.net.channel import connect
from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.processes.family import Command
from areal.processes.service import SERVICE_NAME, LauncherService
from areal.processes.supervise import ChildSpec, ChildSupervisor
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from support.scripted_child import GANG_MEMBER, ScriptedChild

pytestmark = pytest.mark.component
TOKEN = "a-token-for-tests"
PROCESS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
while not os.path.exists(sys.argv[1] + os.environ["AREAL_EPOCH"]):
    time.sleep(0.01)
sys.exit(int(open(sys.argv[1] + os.environ["AREAL_EPOCH"]).read()))
"""


@dataclass
class Launcher:
    """A launcher under test, spoken to over gRPC, and a way to end its child."""

    stub: operations_grpc.LauncherStub
    end: Callable[[int], Awaitable[None]]

    async def status(self) -> operations.GetChildStatusResponse:
        return await self.stub.GetChildStatus(operations.GetChildStatusRequest(), timeout=60)

    async def restart(self, epoch: int) -> bool:
        answer = await self.stub.RestartChild(operations.RestartChildRequest(epoch=epoch), timeout=60)
        return bool(answer.accepted)

    async def drain(self) -> None:
        await self.stub.DrainChild(operations.DrainChildRequest(grace_s=10), timeout=60)

    async def until(self, phase: operations.ChildPhase.ValueType) -> operations.GetChildStatusResponse:
        return await self._seen(lambda status: status.phase == phase)

    async def running(self, epoch: int) -> operations.GetChildStatusResponse:
        ready = operations.CHILD_PHASE_READY
        return await self._seen(lambda status: (status.phase, status.epoch) == (ready, epoch) and status.pid > 0)

    async def _seen(self, wanted: Callable[[Any], bool]) -> operations.GetChildStatusResponse:
        async with asyncio.timeout(60):
            while not wanted(status := await self.status()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return status


@pytest.fixture(params=["process", "script"])
async def launcher(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Launcher]:
    """A launcher of a gang's member whose pod has just started."""
    life: asyncio.Task[object] | None = None
    if request.param == "process":
        (tmp_path / "member.py").write_text(PROCESS)
        argv = [sys.executable, "-S", str(tmp_path / "member.py"), str(tmp_path / "exit-")]
        spec = ChildSpec(Command("trainer-0", argv, {**os.environ}, tmp_path), tmp_path / "log", policy=GANG_MEMBER)
        real = ChildSupervisor(spec)
        children: dict[str, ChildSupervisor] = {"trainer-0": real}

        async def live() -> None:
            while True:  # as a pod's launcher does, which stays after its child's end
                await real.run()
                await real.changed()

        life = asyncio.create_task(live())

        async def end(code: int) -> None:
            part = tmp_path / "part"
            part.write_text(str(code))
            part.rename(tmp_path / f"exit-{real.status.epoch}")
    else:
        script = ScriptedChild("trainer-0", GANG_MEMBER)
        script.start()
        children = {"trainer-0": script}  # type: ignore[dict-item]

        async def end(code: int) -> None:
            script.exit(code)

    server = GrpcServer("trainer-0", TOKEN, waits=WaitRegistry("trainer-0"), progress=ProgressCounter())
    server.add(operations_grpc.add_LauncherServicer_to_server, LauncherService(children), SERVICE_NAME)
    port = await server.start(0)
    async with connect(f"127.0.0.1:{port}", TOKEN) as channel:
        yield Launcher(operations_grpc.LauncherStub(channel), end)
    await server.stop(0)
    if life is not None:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


async def test_a_member_waits_for_its_first_epoch(launcher: Launcher) -> None:
    status = await launcher.status()
    assert status.awaits_epoch
    assert (status.epoch, status.pid, status.phase) == (0, 0, operations.CHILD_PHASE_UNSPECIFIED)


async def test_a_told_epoch_starts_it_and_the_same_epoch_starts_it_once(launcher: Launcher) -> None:
    assert await launcher.restart(1)
    first = await launcher.running(1)
    assert await launcher.restart(1)
    again = await launcher.status()
    assert (again.pid, again.restarts, again.awaits_epoch) == (first.pid, 0, False)


async def test_an_older_epoch_is_refused(launcher: Launcher) -> None:
    assert await launcher.restart(4)
    before = await launcher.running(4)
    assert not await launcher.restart(3)
    assert (await launcher.status()).pid == before.pid


async def test_a_later_epoch_stops_the_child_and_starts_it_again(launcher: Launcher) -> None:
    assert await launcher.restart(1)
    before = await launcher.running(1)
    assert await launcher.restart(2)
    after = await launcher.running(2)
    assert after.pid not in (0, before.pid)
    assert after.restarts == 1


async def test_a_dead_child_stays_dead_until_a_later_epoch_and_its_code_can_be_read(launcher: Launcher) -> None:
    assert await launcher.restart(1)
    await launcher.running(1)
    await launcher.end(75)
    status = await launcher.until(operations.CHILD_PHASE_BACKING_OFF)
    assert (status.last_exit_code, status.awaits_epoch, status.epoch) == (75, True, 1)
    assert await launcher.restart(1)
    assert (await launcher.status()).phase == operations.CHILD_PHASE_BACKING_OFF
    assert await launcher.restart(2)
    await launcher.running(2)


async def test_a_child_that_is_done_is_complete(launcher: Launcher) -> None:
    assert await launcher.restart(1)
    await launcher.running(1)
    await launcher.end(0)
    status = await launcher.until(operations.CHILD_PHASE_COMPLETE)
    assert (status.last_exit_code, status.epoch, status.awaits_epoch) == (0, 1, False)


@pytest.mark.parametrize("code", [64, 65])
async def test_a_refusal_is_told_as_a_failure_with_its_code(launcher: Launcher, code: int) -> None:
    assert await launcher.restart(1)
    await launcher.running(1)
    await launcher.end(code)
    assert (await launcher.until(operations.CHILD_PHASE_FAILED)).last_exit_code == code


async def test_a_drained_child_is_stopped_and_takes_no_epoch_any_more(launcher: Launcher) -> None:
    assert await launcher.restart(1)
    await launcher.running(1)
    await launcher.drain()
    status = await launcher.until(operations.CHILD_PHASE_STOPPED)
    assert status.pid == 0
    assert not await launcher.restart(2)


async def test_one_that_was_never_started_can_be_drained(launcher: Launcher) -> None:
    await launcher.drain()
    assert (await launcher.until(operations.CHILD_PHASE_STOPPED)).pid == 0
