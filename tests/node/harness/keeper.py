"""The node's keeper: starts the node in namespaces of its own and, whatever happens, leaves nothing of it behind.

Runs outside the node (`python -m node.harness.keeper SPEC`), has inherited the lock of the node's folder, and ends
the node when its standard input ends, so also when the test run is killed. Ending is one kill: the node is a process
namespace, and with its first process go all others, then its mounts and its network. What the kernel does not take
away, cgroups and the folder, the keeper does; what a killed keeper leaves, the next start does (`sweep`).
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from node.harness import cgroups
from node.harness.spec import PREFIX, NodeSpec

PATIENCE_S = 30.0


def lock(directory: Path) -> int | None:
    """The folder's lock, for as long as this process or an heir of the descriptor lives; None while another has it."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def claim() -> tuple[Path, int]:
    """A folder for a new node, and its lock."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        held = lock(directory)
        if held is not None and (directory / "lock").exists():  # no sweep came in between
            directory.chmod(0o755)
            return directory, held


def clean(directory: Path) -> None:
    """Removes the cgroups and the folder of a node whose processes are gone or going."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            cgroups.remove(directory.name)
            break
        except OSError:  # processes of it are still ending
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    shutil.rmtree(directory)


def sweep() -> None:
    """Cleans up after nodes whose keeper was killed."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        held = lock(directory)
        if held is not None:
            clean(directory)
            os.close(held)


def keep(spec: NodeSpec) -> int:
    """Runs the node until standard input ends; the node's own exit code."""
    cgroups.make(spec.cgroup)
    # bash is the namespace's first process because it reaps whatever is orphaned to it
    inside = [sys.executable, "-m", "node.harness.inside", str(spec.file)]
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL"]
    command += ["--mount-proc", "--propagation", "private", "bash", "-c", '"$@" & wait $!', "node", *inside]
    try:
        node = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[spec.api_descriptor])
        print(f"started {node.pid}", flush=True)
        select.select([0, os.pidfd_open(node.pid)], [], [])
        node.kill()
        return node.wait()
    finally:
        clean(spec.directory)


if __name__ == "__main__":
    keep(NodeSpec.read(Path(sys.argv[1])))
