"""Two nodes of a Ray cluster on this machine, each with an address of its own in a network that only they see.

A node is lost with all processes below its `ray start --block`. Ray's own `ray stop` ends every Ray of a machine: each
node is ended by its pid here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 6390
_DIES_WITH_TEST = ("setpriv", "--pdeathsig", "KILL")
# what Ray waits for its own programs: two nodes start beside each other, and beside tests
_PATIENCE = {"RAY_raylet_start_wait_time_s": "180", "RAY_agent_register_timeout_ms": "180000"}


def missing() -> str:
    """Why there can be no lab here; empty when there can."""
    if importlib.util.find_spec("ray") is None:
        return "Ray isn't installed; `tools/setup nightly` installs it"
    return "" if os.geteuid() == 0 else "only root makes a network of its own"


class RayLab:
    """The cluster. `start` answers when both nodes are up; `stop` ends what it started."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {**os.environ, **_PATIENCE, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": f"{ADDRESSES[0]}:{PORT}"}
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)
        self._network: subprocess.Popen[bytes] | None = None
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._short = Path(f"/tmp/areal-ray-{os.getpid()}")  # a socket's path has 107 letters at most

    def start(self) -> RayLab:
        self.root.mkdir(parents=True)
        up = "ip link set lo up" + "".join(f" && ip address add {one}/32 dev lo" for one in ADDRESSES)
        self._network = subprocess.Popen(
            [*_DIES_WITH_TEST, "unshare", "--net", "sh", "-c", f"{up} && echo up && exec sleep infinity"],
            stdout=subprocess.PIPE,
        )
        assert self._network.stdout is not None
        assert self._network.stdout.readline() == b"up\n"
        head = ("--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self._short}")
        self._node(ADDRESSES[0], *head)
        self._node(ADDRESSES[1], f"--address={ADDRESSES[0]}:{PORT}")
        return self

    def _node(self, address: str, *words: str) -> None:
        path = self.root / f"{address}.log"
        sizes = ("--num-cpus=2", "--object-store-memory=100000000", "--disable-usage-stats", "--block")
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *words, f"--node-ip-address={address}", *sizes]
        with path.open("wb") as log:
            self._nodes[address] = subprocess.Popen(
                [*_DIES_WITH_TEST, *self.inside(*command)], env=self.env, stdout=log, stderr=log
            )
        deadline = time.monotonic() + 200
        while "Ray runtime started" not in path.read_text(errors="replace"):
            assert self._nodes[address].poll() is None, path.read_text(errors="replace")
            assert time.monotonic() < deadline, path.read_text(errors="replace")
            time.sleep(0.2)

    def inside(self, *command: str) -> list[str]:
        """The command in the cluster's network."""
        assert self._network is not None
        return ["nsenter", f"--net=/proc/{self._network.pid}/ns/net", *command]

    def lose(self, address: str) -> int:
        """Kill all processes of a node; says how many."""
        started = psutil.Process(self._nodes.pop(address).pid)
        gone = [started, *started.children(recursive=True)]
        for one in gone:
            one.kill()
        psutil.wait_procs(gone, timeout=30)
        return len(gone)

    def stop(self) -> None:
        for address in [*self._nodes][::-1]:
            self.lose(address)
        if self._network is not None:
            self._network.send_signal(signal.SIGTERM)
            self._network.wait(30)
        shutil.rmtree(self._short, ignore_errors=True)
