"""A whole table of roles, tiny ones: order, restarts, budgets, stopping, killing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from areal.local.supervisor import Member, RunResult, Supervisor
from areal.processes.core import BudgetPolicy, ChildPhase, LifePolicy, RestartBy
from areal.processes.family import Command
from areal.processes.supervise import ChildSpec, Probe, ProbeKind
from support.processes import lives

pytestmark = pytest.mark.component

# Writes "<name> <what>" lines to one file: what happened to all roles, in order.
ROLE = """
import os, signal, socket, sys, time
name, diary, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
def say(what):
    with open(diary, "a") as file:
        file.write(f"{name} {what}\\n")
def stop(*_):
    say("stop")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
say("start")
if port:
    time.sleep(0.05)
    server = socket.create_server(("127.0.0.1", port))
    say("ready")
exec(sys.argv[4])
while True: time.sleep(0.05)  # a signal just before one long sleep would be handled after it
"""

BUDGET = BudgetPolicy(max_restarts=2, first_wait_s=0.01)


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Table:
    """Builds members that share one diary."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.diary = folder / "diary"
        self.before = children()  # of other tests, and of fixtures that outlive this one
        (folder / "role.py").write_text(ROLE)
        self.members: list[Member] = []

    def add(
        self, name: str, code: str = "", *, needs: tuple[str, ...] = (), serves: bool = False, gang: bool = False
    ) -> Table:
        port = free_port() if serves else 0
        argv = [sys.executable, "-S", str(self.folder / "role.py"), name, str(self.diary), str(port), code]
        policy = LifePolicy(RestartBy.EPOCH if gang else RestartBy.ITSELF, drain_s=5.0, budget=BUDGET)
        spec = ChildSpec(
            Command(name, argv, {**os.environ}, self.folder),
            self.folder / "logs" / f"{name}.log",
            Probe(ProbeKind.TCP, port) if serves else Probe(),
            policy,
        )
        self.members.append(Member(spec, name.partition("-")[0], needs))
        return self

    def events(self) -> list[str]:
        return self.diary.read_text().splitlines() if self.diary.exists() else []


async def said(table: Table, event: str, times: int = 1) -> None:
    async with asyncio.timeout(60):
        while table.events().count(event) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def children() -> set[int]:
    """Pids of this process's living children."""
    return {child.pid for child in psutil.Process().children() if lives(child)}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


async def test_roles_start_when_what_they_need_is_ready_and_stop_the_other_way(table):
    table.add("trainer", "say('done'); sys.exit(0)", needs=("controller",))
    table.add("controller-0", needs=("redis",), serves=True).add("redis", serves=True)
    outcome = await asyncio.wait_for(Supervisor(table.members).run(), 60)
    assert outcome.ended is RunResult.COMPLETE
    assert table.events() == [
        "redis start",
        "redis ready",
        "controller-0 start",
        "controller-0 ready",
        "trainer start",
        "trainer done",
        "controller-0 stop",
        "redis stop",
    ]
    assert children() <= table.before


async def test_a_role_that_dies_is_restarted_and_the_run_completes(table):
    table.add(
        "worker-0", "time.sleep(0.1) if os.environ['AREAL_START'] == '3' else os.kill(os.getpid(), 9)", serves=True
    )
    table.add("trainer", "while open(sys.argv[2]).read().count('worker-0 ready') < 3: time.sleep(0.01)\nsys.exit(0)")
    supervisor = Supervisor(table.members)
    outcome = await asyncio.wait_for(supervisor.run(), 60)
    assert outcome.ended is RunResult.COMPLETE
    assert supervisor.children["worker-0"].status.restarts == 2


async def test_a_trainer_that_dies_is_restarted_in_a_new_epoch(table):
    table.add("trainer", "sys.exit(75 if os.environ['AREAL_EPOCH'] == '0' else 0)", gang=True)
    supervisor = Supervisor(table.members)
    outcome = await asyncio.wait_for(supervisor.run(), 60)
    status = supervisor.children["trainer"].status
    assert (outcome.ended, status.epoch, status.restarts) == (RunResult.COMPLETE, 1, 1)


@pytest.mark.parametrize("gang", [False, True])
async def test_a_spent_budget_ends_the_run_and_names_the_role(table, gang):
    name = "trainer" if gang else "reward-0"
    table.add("redis", serves=True).add(name, "print('why it died'); sys.exit(75)", needs=("redis",), gang=gang)
    if not gang:
        table.add("trainer")
    outcome = await asyncio.wait_for(Supervisor(table.members).run(), 60)
    assert outcome.ended is RunResult.FAILED
    assert outcome.failed is not None
    assert outcome.failed.name == name
    assert "all 2 restarts" in outcome.reason
    assert table.events()[-1] == "redis stop"
    assert children() <= table.before


async def test_a_trainer_that_people_restart_uses_no_budget(table):
    code = "sys.exit(143 if int(os.environ['AREAL_EPOCH']) < 4 else 75 if os.environ['AREAL_EPOCH'] == '4' else 0)"
    table.add("trainer", code, gang=True)
    supervisor = Supervisor(table.members)
    outcome = await asyncio.wait_for(supervisor.run(), 60)
    assert (outcome.ended, supervisor.children["trainer"].status.restarts) == (RunResult.COMPLETE, 5)


async def test_a_broken_job_is_not_restarted(table):
    table.add("worker-0", "sys.exit(65)").add("trainer")
    outcome = await asyncio.wait_for(Supervisor(table.members).run(), 60)
    assert outcome.failed is not None
    assert outcome.failed.last_exit is not None
    assert (outcome.failed.last_exit.code, outcome.failed.restarts) == (65, 0)


async def test_a_role_that_cant_even_be_started_ends_the_run_with_that_error(table, tmp_path):
    (tmp_path / "logs").write_text("no directory")
    outcome = await asyncio.wait_for(Supervisor(table.add("trainer-0").members).run(), 60)
    assert (outcome.ended, outcome.failed) == (RunResult.FAILED, None)
    assert isinstance(outcome.error, OSError)
    assert outcome.reason.startswith("trainer-0: ")


async def test_stop_lets_the_trainer_save_while_the_ledger_is_up(table):
    table.add("redis", serves=True).add("trainer", needs=("redis",))
    supervisor = Supervisor(table.members)
    run = asyncio.create_task(supervisor.run())
    await said(table, "trainer start")
    supervisor.stop()
    outcome = await asyncio.wait_for(run, 60)
    assert (outcome.ended, outcome.killed) == (RunResult.STOPPED, False)
    assert table.events()[-2:] == ["trainer stop", "redis stop"]


async def test_a_second_stop_kills_at_once(table):
    table.add("trainer", "signal.signal(15, lambda *_: say('deaf')); say('up')\nwhile True: time.sleep(1)")
    supervisor = Supervisor(table.members)
    run = asyncio.create_task(supervisor.run())
    await said(table, "trainer up")
    supervisor.stop()
    await said(table, "trainer deaf")
    before = time.monotonic()
    supervisor.kill()
    outcome = await asyncio.wait_for(run, 60)
    assert outcome.killed
    assert time.monotonic() - before < 3.0
    assert children() <= table.before


async def test_a_role_that_waits_says_for_whom(table):
    table.add("redis", needs=()).add("controller-0", needs=("redis",), serves=True).add(
        "trainer", needs=("controller",)
    )
    table.members[0].spec.command.argv[5] = str(free_port())
    slow = Supervisor([*table.members])
    assert slow.waits_for("trainer") == ["controller-0"]
    run = asyncio.create_task(slow.run())
    await said(table, "controller-0 ready")
    assert slow.waits_for("redis") == []
    slow.kill()
    await asyncio.wait_for(run, 60)


async def test_stopping_before_anything_is_up_starts_nothing_more(table):
    table.add("redis", "", serves=True).add("trainer", needs=("redis",))
    supervisor = Supervisor(table.members)
    run = asyncio.create_task(supervisor.run())
    await said(table, "redis start")
    supervisor.stop()
    assert (await asyncio.wait_for(run, 60)).ended is RunResult.STOPPED
    assert "trainer start" not in table.events()
    assert supervisor.children["trainer"].status.phase is ChildPhase.STOPPED


SUPERVISOR = """
import asyncio, os, sys
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
from pathlib import Path
from test_local_supervisor import Supervisor, Table
table = Table(Path(sys.argv[2]))
table.add("redis", serves=True)
sleeper = "[sys.executable, '-c', 'import time; time.sleep(600)']"
nest = f"import subprocess; subprocess.Popen({sleeper}, start_new_session=True)"
table.add("worker-0", nest, needs=("redis",)).add("trainer", nest, needs=("redis",))
asyncio.run(Supervisor(table.members).run())
"""


def test_killing_the_supervisor_leaves_no_process(tmp_path, table):
    script = tmp_path / "run.py"
    script.write_text(SUPERVISOR)
    process = subprocess.Popen([sys.executable, str(script), str(Path(__file__).parent), str(tmp_path)])
    try:
        deadline = time.monotonic() + 60
        while len(family := psutil.Process(process.pid).children(recursive=True)) < 8:
            assert time.monotonic() < deadline, family
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        deadline = time.monotonic() + 60
        while left := [one for one in family if lives(one)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait(60)
