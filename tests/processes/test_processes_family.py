"""Real process families: they die as a whole, whoever is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from areal.processes import family as families
from areal.processes.family import Command, Family

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
