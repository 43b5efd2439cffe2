"""What is no program's doing: lost zygotes, failed setup, cancellation, tiers that can't; and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import signal
from pathlib import Path

import pytest
from areal.errors import ConfigError, InfraError
from areal_judge.sandbox.host.delegation import find, sweep
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig, SandboxRefusalError
from areal_judge.sandbox.values import Ending, ImageCommand, Limits, ProgramRun, PythonScript, Tier

pytestmark = pytest.mark.component

LIMITS = Limits(wall_s=30, cpu_s=10)
FOREVER = ProgramRun(PythonScript("import time; time.sleep(60)"), limits=Limits(wall_s=60))


@contextlib.asynccontextmanager
async def started(**changes: object):  # type: ignore[no-untyped-def]
    config = SandboxConfig(min_tier=Tier.T0, zygotes=1, drivers=())
    sandbox = Sandbox(dataclasses.replace(config, **changes))  # type: ignore[arg-type]
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.stop()


_others: set[int] = set()


@pytest.fixture(autouse=True)
def processes_of_others() -> None:
    """What this process had started before a test is no business of it: servers that other tests share."""
    _others.clear()
    _others.update(below(os.getpid()))


def below(pid: int) -> set[int]:
    """Every process that descends from one, without those of others and theirs."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(path.name))
    found: set[int] = set()
    todo = [pid]
    while todo:
        new = set(children.get(todo.pop(), [])) - _others
        found |= new
        todo += new
    return found


async def descriptors() -> int:
    """How many this process has, once the number stays: a run's are closed a moment after its result."""
    seen: list[int] = []
    while len(seen) < 100 and (len(seen) < 4 or len(set(seen[-4:])) > 1):
        await asyncio.sleep(0.05)
        gc.collect()
        seen.append(len(os.listdir("/proc/self/fd")))
    return seen[-1]


def groups() -> list[str]:
    delegation = find()
    owner = f"-{os.getpid()}-"
    return [name for place in delegation.directories.values() for name in os.listdir(place) if owner in name]


def zygote_of() -> int:
    """The process of a zygote that the service started."""
    for pid in below(os.getpid()):
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        if parent == str(os.getpid()) and b"sandbox.cell.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("no zygote")


def mounted() -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "/box" in line]


@pytest.mark.parametrize("tier", [Tier.T2, Tier.T3])
async def test_cancelling_the_task_kills_the_run(tier: Tier) -> None:
    async with started(highest_tier=tier) as sandbox:
        task = asyncio.create_task(sandbox.run(FOREVER))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)
        assert sandbox.counters().running == 0
        assert (await sandbox.run(ProgramRun(PythonScript("print(1)")))).clean


async def test_a_run_that_waits_for_its_turn_can_be_cancelled() -> None:
    async with started(max_runs=1) as sandbox:
        first = asyncio.create_task(sandbox.run(FOREVER))
        second = asyncio.create_task(sandbox.run(FOREVER))
        await asyncio.sleep(0.2)
        for task in (second, first):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 60)
        assert (await sandbox.run(ProgramRun(PythonScript("print(1)")))).clean


@pytest.mark.parametrize("tier", [Tier.T2, Tier.T3])
async def test_a_lost_zygote_costs_its_runs_only_a_retry(tier: Tier) -> None:
    async with started(highest_tier=tier) as sandbox:
        runs = [asyncio.create_task(sandbox.run(FOREVER)) for _ in range(2)]
        await asyncio.sleep(0.3)
        before = below(os.getpid())
        os.kill(zygote_of(), signal.SIGKILL)
        for run in runs:
            with pytest.raises(InfraError):
                await asyncio.wait_for(run, 60)
        assert (await asyncio.wait_for(sandbox.run(ProgramRun(PythonScript("print(1)"), limits=LIMITS)), 60)).clean
        assert not before & below(os.getpid())
        assert sandbox.counters().zygote_restarts == 1
        assert sandbox.counters().infra_errors == 2


async def test_a_cell_that_can_not_be_set_up_is_a_fault_of_the_machine() -> None:
    async with started(highest_tier=Tier.T3) as sandbox:
        if not sandbox.powers.scratch:
            pytest.skip("no scratch")
        files = {"x" * 200 + "/" + "y" * 300: b""}
        with pytest.raises(InfraError, match="files"):
            await sandbox.run(ProgramRun(PythonScript("print('never')"), files=files))
        assert (await sandbox.run(ProgramRun(PythonScript("print(1)")))).clean


async def test_the_lower_tier_refuses_what_it_can_not_run() -> None:
    async with started(highest_tier=Tier.T2) as sandbox:
        for run in (
            ProgramRun(ImageCommand(("true",))),
            ProgramRun(PythonScript("pass"), limits=Limits(processes=2)),
            ProgramRun(PythonScript("pass"), files={"a": b""}),
            ProgramRun(PythonScript("pass"), keep=("a",)),
        ):
            with pytest.raises(SandboxRefusalError, match="T2") as refused:
                await sandbox.run(run)
            assert "T3" in refused.value.fix
        assert sandbox.counters().runs == 0


async def test_a_sandbox_below_its_minimum_does_not_start() -> None:
    sandbox = Sandbox(SandboxConfig(highest_tier=Tier.T2, min_tier=Tier.T3))
    with pytest.raises(ConfigError, match="T3"):
        await sandbox.start()
    await sandbox.stop()
    assert not below(os.getpid())


async def test_a_driver_that_does_not_import_stops_the_start_with_its_reason() -> None:
    sandbox = Sandbox(SandboxConfig(min_tier=Tier.T0, drivers=("no.such.driver",), zygotes=2))
    with pytest.raises(InfraError, match=r"no\.such|No module named 'no'"):
        await sandbox.start()
    await sandbox.stop()
    assert not below(os.getpid())


async def test_a_kind_of_zygote_is_started_when_first_asked_for() -> None:
    pytest.importorskip("numpy")
    async with started() as sandbox:
        count = len(below(os.getpid()))
        assert not (await sandbox.run(ProgramRun(PythonScript("import sys; assert 'numpy' in sys.modules")))).clean
        source = "import sys; assert 'numpy.random' in sys.modules\n"
        source += "import numpy\nprint(numpy.random.rand(), numpy.linalg.det(numpy.eye(3)))"
        run = ProgramRun(PythonScript(source), limits=LIMITS, numpy=True)
        seen = {(await sandbox.run(run)).stdout for _ in range(3)}
        assert len(seen) == 3, "each run has its own random numbers"
        assert all(one.endswith(b" 1.0\n") for one in seen)
        assert len(below(os.getpid())) > count


@pytest.mark.parametrize("tier", [Tier.T2, Tier.T3])
async def test_hundreds_of_runs_leave_nothing(tier: Tier) -> None:
    async with started(highest_tier=tier, zygotes=2) as sandbox:
        kinds = [
            ProgramRun(PythonScript("print(1)")),
            ProgramRun(PythonScript("while True: print('x' * 10000)"), limits=Limits(output_bytes=1000)),
            ProgramRun(PythonScript("import os; os.abort()"), stdin=b"x" * 100_000),
        ]
        if sandbox.powers.scratch:
            kinds.append(ProgramRun(PythonScript("open('a', 'w').write('x')"), files={"d/b": b"b"}, keep=("a",)))
            daemon = "import os, time\nfor _ in range(5):\n    if os.fork() == 0: os.setsid(); time.sleep(60)"
            kinds.append(ProgramRun(PythonScript(daemon), limits=Limits(processes=8)))
            kinds.append(ProgramRun(ImageCommand(("sh", "-c", "exit 3"))))

        async def rounds(number: int) -> None:
            await asyncio.gather(*(sandbox.run(run) for _ in range(number) for run in kinds))

        await rounds(4)
        opened = await descriptors()
        await rounds(120 // len(kinds))
        assert await descriptors() <= opened
        each = 1 + sandbox.powers.scratch  # a zygote has a process outside its namespace, a program a warden
        assert len(below(os.getpid())) <= 2 * (each * (1 + 2 + 2) + 2), (
            "zygotes, spares, those of other shapes, wardens at rest"
        )
        assert sandbox.counters().infra_errors == 0
    assert not below(os.getpid())
    assert groups() == []
    assert mounted() == []


async def test_stopping_ends_runs_in_flight() -> None:
    async with started() as sandbox:
        run = asyncio.create_task(sandbox.run(FOREVER))
        await asyncio.sleep(0.3)
    with pytest.raises(InfraError):
        await run
    assert not below(os.getpid())


async def test_old_zygotes_are_replaced_without_losing_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("areal_judge.sandbox.host.profiles._RECYCLE_RUNS", 5)
    async with started() as sandbox:
        first = zygote_of()
        for _ in range(6):
            ended = await asyncio.gather(
                *(sandbox.run(ProgramRun(PythonScript("print(1)"), limits=LIMITS)) for _ in range(4))
            )
            assert all(one.clean for one in ended)
        async with asyncio.timeout(60):
            while first in below(os.getpid()):
                await sandbox.run(ProgramRun(PythonScript("pass"), limits=LIMITS))
        assert sandbox.counters().infra_errors == 0


def test_groups_of_a_service_that_is_gone_are_removed() -> None:
    delegation = find()
    if not delegation.version:
        pytest.skip("no cgroup to make groups in")
    namespace = os.stat("/proc/self/ns/pid").st_ino
    left = [f"{place}/areal-sandbox-{namespace}-999999999-1-z1" for place in delegation.directories.values()]
    for path in left:
        os.makedirs(f"{path}/c1")
    sweep(delegation)
    assert not any(os.path.exists(path) for path in left)


async def test_the_wall_limit_is_kept_while_the_services_loop_is_busy() -> None:
    async with started() as sandbox:
        assert (await sandbox.run(ProgramRun(PythonScript("pass")))).clean
        task = asyncio.create_task(
            sandbox.run(ProgramRun(PythonScript("import time; time.sleep(60)"), limits=Limits(wall_s=0.5)))
        )
        await asyncio.sleep(0.2)
        busy_until = asyncio.get_running_loop().time() + 1.5
        while asyncio.get_running_loop().time() < busy_until:
            pass  # the loop of the service does nothing else
        ended = await task
        assert ended.ending is Ending.WALL_LIMIT
        assert ended.wall_s < 1.5
