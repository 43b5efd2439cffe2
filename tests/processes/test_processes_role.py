"""How roles start and end, and the launcher of a single one."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import grpc
import psutil
import pytest
from areal.errors import BugError, ConfigError, DataError, ExitCode, FencedError
from areal.local.staging import StagingRequest, load, stage
from areal.net.channel import connect
from areal.plan import ResolvedJob, RoleContext
from areal.plan.role_specs import entries
from areal.processes import role
from areal.processes.core import ChildPhase
from areal.processes.service import phase_from_wire
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from support.redis_server import free_port
from support.tiny_job import make_tiny_job


def context() -> RoleContext:
    return RoleContext(None, "worker", 0, 0, 0, "secret", asyncio.Event(), "worker-0.1")  # type: ignore[arg-type]


async def test_sigterm_asks_a_role_to_stop_and_a_clean_end_is_a_drain():
    async def entry(ctx: RoleContext) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(ctx.stop.wait(), 60)
        return 0

    assert await role.serve(entry, context()) == ExitCode.DRAINED


async def test_a_second_sigterm_ends_a_role_that_does_not_listen():
    async def entry(ctx: RoleContext) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(ctx.stop.wait(), 60)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(5)
        return 0

    assert await role.serve(entry, context()) == ExitCode.DRAINED


@pytest.mark.parametrize("code", [0, 75])
async def test_a_role_that_ends_by_itself_keeps_its_code(code):
    async def entry(_: RoleContext) -> int:
        return code

    assert await role.serve(entry, context()) == code


@pytest.mark.parametrize(
    ("error", "code", "traceback"),
    [
        (DataError("row 3 is odd", fix="correct it"), 65, False),
        (FencedError("a newer controller is alive"), 75, False),
        (BugError("we broke it"), 70, True),
        (ValueError("surprise"), 70, True),
    ],
)
def test_an_error_is_logged_once_and_our_own_come_with_a_traceback(error, code, traceback, caplog):
    with caplog.at_level(logging.INFO):
        assert role.report(error) == code
    (record,) = caplog.records
    assert str(error).splitlines()[0] in record.getMessage()
    assert bool(record.exc_info) is traceback


def test_every_entry_is_there():
    for row in entries().values():
        assert asyncio.iscoroutinefunction(role.load_entry(row.entry)) is row.supervised, row.role


def test_a_missing_package_is_told_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi_of_a_role", None)
    with pytest.raises(ConfigError, match="fastapi_of_a_role"):
        role.load_entry("fastapi_of_a_role:run")


def test_a_missing_job_is_one_message(tmp_path, capsys):
    code = role.start(["worker", "--job", str(tmp_path / "resolved.json"), "--port", "1", "--metrics-port", "2"])
    assert code == 64
    shown = capsys.readouterr().err
    assert "resolved.json" in shown
    assert "Traceback" not in shown


@pytest.fixture
def resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResolvedJob:
    monkeypatch.chdir(tmp_path)
    request = StagingRequest(make_tiny_job(tmp_path))
    return stage(request, load(request), lambda text: None)


@pytest.mark.component
async def test_a_launcher_runs_one_role_restarts_it_and_ends_with_it(resolved):
    port = free_port()
    job = str(resolved.layout.resolved)
    command = [sys.executable, "-m", "areal.processes.main", "--role", "redis", "--job", job, "--port", str(port)]
    process = subprocess.Popen(command)  # noqa: ASYNC220
    try:
        async with connect(f"127.0.0.1:{port}", (resolved.access / "token.operator").read_text()) as channel:
            stub = operations_grpc.LauncherStub(channel)

            async def ready(restarts: int) -> int:
                async with asyncio.timeout(60):
                    while True:
                        try:
                            seen = await stub.GetChildStatus(operations.GetChildStatusRequest(), timeout=60)
                        except grpc.aio.AioRpcError:  # it isn't up yet
                            await asyncio.sleep(0.05)
                            continue
                        if phase_from_wire(seen.phase) is ChildPhase.READY and seen.restarts == restarts and seen.pid:
                            return seen.pid
                        await asyncio.sleep(0.02)

            first = await ready(0)
            assert "redis-server" in psutil.Process(first).name()
            os.kill(first, signal.SIGKILL)
            second = await ready(1)
            assert second != first
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == ExitCode.DRAINED
        assert not psutil.pid_exists(second)
    finally:
        process.kill()
        process.wait(60)


def test_what_a_role_imports_is_never_looked_at_by_the_collector():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # as Python starts
    try:
        role.collect_rarely()
        imported = {id(each) for each in gc.get_objects()}
        assert gc.get_freeze_count() > 10_000
        assert id(vars(role)) not in imported, "the permanent generation is not listed"
        new, young, _ = gc.get_threshold()
        assert new * young == 1_000_000, "requests in flight are looked at this rarely"
    finally:
        gc.set_threshold(*before)


class Call:
    """A cycle, as each gRPC call leaves one."""

    def __init__(self) -> None:
        self.handler = [self]


def test_what_calls_leave_behind_does_not_pile_up():
    before = gc.get_threshold()
    try:
        role.collect_rarely()
        calls = [weakref.ref(Call()) for _ in range(10_000)]
        assert sum(call() is not None for call in calls) < 5_000
    finally:
        gc.set_threshold(*before)
