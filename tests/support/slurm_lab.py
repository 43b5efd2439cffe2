"""Two nodes of a Slurm cluster on this machine: slurmctld, two slurmd and a munged of their own, on loopback.

Steps are tracked by process group, since plugins for control groups want systemd. A node is lost with its slurmd and
all its slurmstepd, which outlive slurmd.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
from areal.plan.roles import free_ports

PROGRAMS = ("slurmctld", "slurmd", "srun", "munged")
NODES = ("n0", "n1")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_CONF = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=30
KillWait=20
MpiDefault=none
JobRequeue=1
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} RealMemory={memory}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} RealMemory={memory}
PartitionName=main Nodes=n0,n1 Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


def missing() -> list[str]:
    """Programs that aren't installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


class SlurmLab:
    """The cluster. `start` answers when both nodes are idle; `stop` ends what it started, by pid."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.conf = root / "slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": _PATH}

    def start(self) -> SlurmLab:
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.root / name).mkdir(parents=True)
        user = psutil.Process().username()
        self.conf.write_text(
            _CONF.format(
                host=os.uname().nodename.partition(".")[0], root=self.root, ports=free_ports(3), user=user,
                cpus=os.cpu_count(), memory=psutil.virtual_memory().total * 9 // 10 >> 20,
            )
        )  # fmt: skip
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self._run("munged", "--force", *(f"--{name}={self.root}/munge.{end}" for name, end in files.items()))
        self._run("slurmctld", "-f", str(self.conf))
        for node in NODES:
            self._run("slurmd", "-f", str(self.conf), "-N", node)
        deadline = time.monotonic() + 60
        while self.ask("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split() != list(NODES):
            assert time.monotonic() < deadline, self.ask("sinfo", "-N", "-l") + self.log("slurmctld")
            time.sleep(0.2)
        return self

    def log(self, name: str) -> str:
        path = self.root / f"{name}.log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands answers."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def steps(self) -> dict[str, tuple[str, str]]:
        """Id and node of each step, by name."""
        lines = (line.split() for line in self.ask("squeue", "-s", "-h", "-o", "%i %j %N").splitlines())
        return {name: (step, node) for step, name, node in lines}

    def state(self, job: str) -> str:
        """The state of a job; empty when it is gone."""
        return self.ask("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()

    def lose(self, node: str) -> list[int]:
        """Kill a node's slurmd and its slurmstepd's; answers their pids."""
        ids = {path.name.partition("_")[2] for path in (self.root / f"spool-{node}").glob(f"{node}_*")}
        titles = {f"slurmstepd: [{one}]" for one in ids}
        gone = [self._daemon(f"slurmd-{node}")]
        gone += [one.pid for one in psutil.process_iter() if one.name() == "slurmstepd" and _title(one) in titles]
        for pid in gone:
            os.kill(pid, signal.SIGKILL)
        return gone

    def _daemon(self, name: str) -> int:
        return int((self.root / f"{name}.pid").read_text())

    def stop(self) -> None:
        subprocess.run(["scancel", "--full", "-u", psutil.Process().username()], env=self.env, timeout=60, check=False)
        deadline = time.monotonic() + 40
        while self.ask("squeue", "-h").strip() and time.monotonic() < deadline:
            time.sleep(0.5)
        for name in (*(f"slurmd-{node}" for node in NODES), "slurmctld", "munge"):
            try:
                os.kill(self._daemon(name), signal.SIGTERM)
            except (OSError, ValueError):
                continue


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""
