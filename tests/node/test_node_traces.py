"""A node that was killed, in whatever way, leaves the machine as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kube.harness.processes import eventually
from kube.harness.tools import ROOT, run
from node.harness import cgroups, keeper
from node.harness.basics import basic_images
from node.harness.mounts import SYSCTLS
from node.harness.spec import PREFIX

pytestmark = pytest.mark.kube_node

RUN = """
import sys
from pathlib import Path
from node.harness.node import Node
node = Node([Path(path) for path in sys.argv[2:]], Path(sys.argv[1]))
print(node.directory, flush=True)
node.start()
print("ready", node._keeper.pid, flush=True)
sys.stdin.read()
"""


def machine() -> dict[str, str]:
    """What a node could change for everybody."""
    sysctls = {name: path.read_text() for name in SYSCTLS if (path := Path("/proc/sys") / name).exists()}
    return {**sysctls, "links": run(["ip", "-o", "link", "show"]).stdout.count("\n").__str__()}


def traces(directory: Path) -> list[str]:
    """What is left of a node: its processes, its mounts, its cgroups, its folder."""
    found = [f"cgroup {name}" for name in cgroups.left(PREFIX) if name == directory.name]
    found += [f"folder {directory}"] if directory.exists() else []
    found += [f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if str(directory) in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:  # it ended meanwhile
            continue
        if str(directory) in words:
            found.append(f"process {process.name} {words}")
    return found


@pytest.fixture
def running(tmp_path: Path) -> tuple[subprocess.Popen[str], Path, int]:
    """A test run of its own with a node; its process, the node's folder and the keeper's pid."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-c", RUN, str(tmp_path), *map(str, basic_images(tmp_path))]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert started.stdout is not None
    directory = Path(started.stdout.readline().strip())
    ready = started.stdout.readline().split()
    assert ready, "the node did not start"
    return started, directory, int(ready[1])


def test_a_killed_test_run_takes_its_node_with_it(running: tuple[subprocess.Popen[str], Path, int]) -> None:
    started, directory, _ = running
    before = machine()
    assert traces(directory)
    started.send_signal(signal.SIGKILL)
    started.wait()
    eventually(lambda: not traces(directory), f"nothing is left of {directory.name}", timeout_s=60)
    assert machine() == before


def test_what_a_killed_keeper_leaves_the_next_start_removes(running: tuple[subprocess.Popen[str], Path, int]) -> None:
    started, directory, pid = running
    os.kill(pid, signal.SIGKILL)
    started.kill()
    started.wait()
    eventually(lambda: not [line for line in traces(directory) if line.startswith("process")], "its processes end")
    keeper.sweep()
    assert traces(directory) == []
