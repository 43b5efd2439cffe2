"""Real process families: they die as a whole, whoever is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from areal.errors import InfraError
from areal.processes import family as families
from areal.processes.family import Command, Family, RemoteFamily

pytestmark = pytest.mark.component

# A role with a child and a grandchild, each in a session of its own (as torchrun and engines do); writes all pids.
TREE = """
import os, subprocess, sys, time
path, depth = sys.argv[1], int(sys.argv[2])
if depth:
    subprocess.Popen([sys.executable, "-S", __file__, path, str(depth - 1)], start_new_session=True)
with open(path, "a") as file:
    file.write(f"{os.getpid()}\\n")
if depth == 2 and len(sys.argv) > 3:
    while len(open(path).read().split()) < 3:
        time.sleep(0.01)
    sys.exit(int(sys.argv[3]))
time.sleep(600)
"""

# A supervisor that starts one family and then only waits.
SUPERVISOR = """
import asyncio, os, sys
from areal.processes import family as families
from areal.processes.family import Command, Family
async def main():
    families.adopt()
    family = Family.start(Command("tree", sys.argv[1:]), os.open(os.devnull, os.O_WRONLY), set())
    await family.wait()
    print("ended", flush=True)
asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(ready, what: str, timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline, f"no {what} within {timeout_s} s"
        time.sleep(0.01)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    script = tmp_path / "tree.py"
    script.write_text(TREE)
    return script


def command(script: Path, *more: str) -> list[str]:
    return [sys.executable, "-S", str(script), str(script.with_name("pids")), "2", *more]


def members(script: Path) -> list[int]:
    pids = script.with_name("pids")
    until(lambda: pids.exists() and len(pids.read_text().split()) == 3, "family of three")
    return [int(pid) for pid in pids.read_text().split()]


@pytest.fixture
def output() -> Iterator[int]:
    descriptor = os.open(os.devnull, os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def supervisor(tree: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = tmp_path / "supervisor.py"
    script.write_text(SUPERVISOR)
    process = subprocess.Popen([sys.executable, str(script), *command(tree)], stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate(timeout=60)


def test_killing_the_supervisor_ends_the_whole_family(tree, supervisor):
    pids = members(tree)
    family = psutil.Process(supervisor.pid).children(recursive=True)
    assert len(family) == 4  # the keeper too
    supervisor.send_signal(signal.SIGKILL)
    until(lambda: not any(map(alive, [*pids, *(process.pid for process in family)])), "end of the family")


def test_killing_the_keeper_ends_the_whole_family(tree, supervisor):
    pids = members(tree)
    (keeper,) = psutil.Process(supervisor.pid).children()
    assert "keeper.py" in " ".join(keeper.cmdline())
    keeper.kill()
    until(lambda: not any(map(alive, pids)), "end of the family")
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline() == b"ended\n"


async def test_killing_the_child_ends_what_it_started(tree, output):
    family = Family.start(Command("tree", command(tree)), output, set())
    pids = members(tree)
    until(lambda: family.pid in pids, "pid of the child")
    os.kill(family.pid, signal.SIGKILL)
    assert await asyncio.wait_for(family.wait(), 60) == -signal.SIGKILL
    assert not any(map(alive, pids)), "wait answered before the family was gone"


async def test_a_child_that_exits_leaves_nothing_behind(tree, output):
    family = Family.start(Command("tree", command(tree, "75")), output, set())
    pids = members(tree)
    assert await asyncio.wait_for(family.wait(), 60) == 75
    assert not any(map(alive, pids))


async def test_kill_ends_a_family_that_ignores_sigterm(tmp_path, output):
    script = tmp_path / "deaf.py"
    flag = tmp_path / "ready"
    script.write_text(
        f"import signal, time\nsignal.signal(15, signal.SIG_IGN)\nopen({str(flag)!r}, 'w').close()\ntime.sleep(600)\n"
    )
    family = Family.start(Command("deaf", [sys.executable, "-S", str(script)]), output, set())
    until(flag.exists, "start")
    family.terminate()
    pid = family.pid
    assert alive(pid)
    await asyncio.wait_for(family.end(), 60)
    assert not alive(pid)


async def test_a_command_that_is_not_there_exits_127(tmp_path):
    log = tmp_path / "log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    family = Family.start(Command("typo", ["no-such-program-here"]), descriptor, set())
    assert await asyncio.wait_for(family.wait(), 60) == 127
    os.close(descriptor)
    assert "no-such-program-here" in log.read_text()


async def test_a_child_sees_neither_the_socket_nor_ignored_signals(tmp_path):
    log = tmp_path / "log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    probe = "import os; print(os.readlink('/proc/self/fd/0'), sorted(os.listdir('/proc/self/fd'))[:3], end=' ');"
    probe += "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('SigIgn')])"
    family = Family.start(Command("look", [sys.executable, "-S", "-c", probe]), descriptor, set())
    assert await asyncio.wait_for(family.wait(), 60) == 0
    os.close(descriptor)
    standard_in, *_ = log.read_text().split()
    assert standard_in == "/dev/null"
    assert "socket" not in log.read_text()


def test_a_sweep_spares_helpers_of_our_own_session(tmp_path):
    helper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    stray = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
    keeper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        assert families.sweep({keeper.pid}) == 1
        assert (alive(helper.pid), alive(stray.pid), alive(keeper.pid)) == (True, False, True)
    finally:
        for process in (helper, stray, keeper):
            process.kill()
            process.wait(60)


# Another container: a Python of its own, an environment of its own, the keeper in a directory that both see.


class Container:
    """A server of keepers as the first process of a container."""

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        command = ["python3", "-I", "-S", "-u", shared / "keeper.py", "--serve", shared / "keeper.sock"]
        self.process = subprocess.Popen(command, cwd="/", env={"PATH": os.environ["PATH"], "THERE": "yes"})

    def ended(self) -> int:
        return self.process.wait(timeout=15)


@pytest.fixture
def shared() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="areal-") as short:  # a socket's path has 108 bytes
        place = Path(short)
        families.lend_keeper(place)
        yield place


@pytest.fixture
def container(shared: Path) -> Iterator[Container]:
    made = Container(shared)
    yield made
    made.process.kill()
    made.process.wait()


async def pid_of(family: RemoteFamily, ready=lambda pid: True) -> int:
    for _ in range(1500):
        if (pid := family.pid) and ready(pid):
            return pid
        await asyncio.sleep(0.01)
    raise AssertionError("no such family within 15 s")


def proc(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def handles_sigterm(pid: int) -> bool:
    """Whether the command does; the fork that becomes it still has its keeper's handlers."""
    if b"time.sleep" not in proc(pid, "cmdline"):
        return False
    (line,) = (one for one in proc(pid, "status").splitlines() if one.startswith(b"SigCgt:"))
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def lone_engine(shared: Path) -> int:
    """The engine of an agent that was killed."""
    agent = subprocess.Popen([sys.executable, "-c", AGENT, shared], stdout=subprocess.PIPE, text=True)
    with agent.stdout:
        engine = int(agent.stdout.readline())
    agent.kill()
    agent.wait()
    return engine


AGENT = """
import asyncio, sys
from pathlib import Path
from areal.processes.family import Command, RemoteFamily
async def main():
    family = await RemoteFamily.start(Command('x', ['sleep', '60'], {}), Path(sys.argv[1]), 15.0)
    while not family.pid:
        await asyncio.sleep(0.01)
    print(family.pid, flush=True)
    await family.wait()
asyncio.run(main())
"""


async def test_a_family_in_another_container_has_that_ones_environment_and_ends_as_a_whole(container, tmp_path):
    script, pids = tmp_path / "tree.py", tmp_path / "pids"
    script.write_text(TREE)
    command = Command("tree", ["python3", "-S", str(script), str(pids), "2"], {"HERE": "too"})
    family = await RemoteFamily.start(command, container.shared, 15.0)
    until(lambda: pids.exists() and len(pids.read_text().split()) == 3, "three processes")
    members = [int(pid) for pid in pids.read_text().split()]
    said = proc(members[0], "environ").split(b"\0")
    assert {b"THERE=yes", b"HERE=too"} <= set(said)
    assert not any(word.startswith(b"PYTEST") for word in said), "the agent's own environment stays with it"
    assert os.readlink(f"/proc/{members[0]}/cwd") == "/"
    assert not family.ended
    assert await family.end() == -signal.SIGKILL
    assert not any(map(alive, members))
    assert container.process.poll() is None, "the next one is started by it"


async def test_a_family_in_another_container_tells_its_exit_and_is_asked_to_stop_by_its_connection(container):
    for code, wanted in (("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL)):
        family = await RemoteFamily.start(Command("x", ["python3", "-c", code], {}), container.shared, 15.0)
        assert await asyncio.wait_for(family.wait(), 15) == wanted
    asked = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\nwhile True: time.sleep(0.05)"
    )
    family = await RemoteFamily.start(Command("x", ["python3", "-c", asked], {}), container.shared, 15.0)
    await pid_of(family, handles_sigterm)
    family.terminate()
    assert await asyncio.wait_for(family.wait(), 15) == 3
    family = await RemoteFamily.start(Command("x", ["no such program"], {}), container.shared, 15.0)
    assert await asyncio.wait_for(family.wait(), 15) == 127


async def test_whoever_of_both_containers_dies_takes_the_family_along(container):
    engine = lone_engine(container.shared)
    until(lambda: not alive(engine), "end of the engine")
    family = await RemoteFamily.start(Command("x", ["sleep", "60"], {}), container.shared, 15.0)
    psutil.Process(await pid_of(family)).parent().kill()
    assert await asyncio.wait_for(family.wait(), 15) == -signal.SIGKILL
    until(lambda: not alive(family.pid), "end of the engine")
    assert container.process.poll() is None


async def test_a_container_that_is_asked_to_stop_leaves_when_its_last_family_has(container):
    family = await RemoteFamily.start(Command("x", ["sleep", "60"], {}), container.shared, 15.0)
    await pid_of(family)
    container.process.terminate()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(family.wait(), 0.5)
    await family.end()
    assert container.ended() == 0


async def test_a_container_that_never_comes_is_an_error_that_names_it(shared):
    with pytest.raises(InfraError, match=r"no container serves .* and engine is to run there") as error:
        await RemoteFamily.start(Command("engine", ["true"], {}), shared, 0.3)
    assert "container engine" in error.value.fix
    late = asyncio.create_task(RemoteFamily.start(Command("x", ["true"], {}), shared, 15.0))
    await asyncio.sleep(0.3)
    coming = Container(shared)
    assert await (await late).wait() == 0
    coming.process.terminate()
    assert coming.ended() == 0
