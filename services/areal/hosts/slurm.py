"""Slurm's commands: the batch script, the hosts of an allocation, a row's steps and their signals.

A row is the step `row-NAME`, found by this name: numbers of steps don't follow their starts. It is asked to stop by a
signal to the step, which starts no timer; whatever ends a job or an srun kills after KillWait, checkpoint or not.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from areal.errors import ConfigError, InfraError
from areal.hosts.placement import Host
from areal.processes.exits import SIGNALLED

_SLURMD_PORT = 6818
_PATIENCE_S = 60.0
WARNING_S = 240
"""From the warning to the end of the time limit: a checkpoint, all drains in their order, and the minute by which Slurm
may be early."""

_OPTIONS = {
    "nodes": "1", "ntasks-per-node": "1", "exclusive": "", "mem": "0", "open-mode": "append", "requeue": "",
    "no-kill": "", "signal": f"B:TERM@{WARNING_S}",
}  # fmt: skip


def ask(*command: str) -> str:
    """The answer of one of Slurm's commands. Raises InfraError, ConfigError where Slurm isn't installed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    except FileNotFoundError:
        raise ConfigError(f"there is no {command[0]} on PATH", fix="start it where Slurm is installed") from None
    except subprocess.TimeoutExpired:
        raise InfraError(f"{command[0]} didn't answer in {_PATIENCE_S:g} s", fix="ask `scontrol ping`") from None
    if done.returncode:
        raise InfraError(f"{shlex.join(command)}: {done.stderr.strip()}", fix="see to what Slurm names")
    return done.stdout


def script(name: str, command: Sequence[str], output: Path, options: Mapping[str, str]) -> str:
    """The batch script. `options` are sbatch's; the value `no` leaves one of ours out."""
    chosen = {"job-name": f"areal-{name}", "output": str(output), **_OPTIONS, **options}
    lines = [f"#SBATCH --{key}{'=' if value else ''}{value}" for key, value in chosen.items() if value != "no"]
    # exec: the warning is for the batch shell alone, and a shell that waits for a child doesn't hand it on
    return "\n".join(["#!/bin/bash", *lines, f"cd {shlex.quote(str(Path.cwd()))}", f"exec {shlex.join(command)}", ""])


def allocation() -> list[Host]:
    """The hosts of the allocation that this process is in."""
    names = ask("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()
    cpus = min(int(count) for count in re.findall(r"(\d+)(?:\(x\d+\))?", os.environ["SLURM_JOB_CPUS_PER_NODE"]))
    gpus = int(os.environ.get("SLURM_GPUS_ON_NODE") or 0)
    found = []
    for name in names:
        told = dict(word.split("=", 1) for word in ask("scontrol", "show", "node", "-o", name).split() if "=" in word)
        address = socket.gethostbyname(told.get("NodeAddr", name))
        found.append(Host(name, address, int(told.get("Port", _SLURMD_PORT)), cpus, gpus))
    return found


def answers(host: Host, timeout_s: float = 3.0) -> bool:
    """Whether the host's slurmd accepts a connection: Slurm itself calls a node down after minutes only."""
    try:
        socket.create_connection((host.address, host.port), timeout_s).close()
    except OSError:
        return False
    return True


class SlurmStep:
    """A row's step, found by its name."""

    answers = staticmethod(answers)

    def __init__(self, job: str, row: str) -> None:
        self._job, self._name = job, f"row-{row}"
        self._srun: subprocess.Popen[bytes] | None = None

    def signal(self, name: str) -> int:
        """Send a signal to the row's steps; answers to how many. A step that is ending can't be told any more."""
        lines = (line.split() for line in ask("squeue", "-s", "-h", "-j", self._job, "-o", "%i %j").splitlines())
        steps = [words[0] for words in lines if words[1:] == [self._name]]
        for step in steps:
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(["scancel", f"--signal={name}", step], capture_output=True, timeout=_PATIENCE_S)
        return len(steps)

    def run(self, hosts: Sequence[Host], gpus: bool, command: Sequence[str]) -> int:
        """Run the command on these hosts to its end; answers its exit code."""
        self._srun = subprocess.Popen(self.srun(hosts, gpus=gpus, command=command))
        return self._srun.wait()

    def end(self) -> None:
        """End a step that no signal reaches."""
        if self._srun is None:  # it was only about to start
            raise SystemExit(SIGNALLED + signal.SIGTERM)
        self._srun.terminate()

    def srun(self, hosts: Sequence[Host], *, gpus: bool, command: Sequence[str]) -> list[str]:
        """The command of the step.

        Slurm gives steps that overlap the same GPUs, the first ones: each asks for all of its host and sees its own
        part of them (`areal.hosts.task`).
        """
        count = str(len(hosts))
        options = ["-J", self._name, "-w", ",".join(host.name for host in hosts), "-N", count, "-n", count]
        options += ["-c", str(hosts[0].cpus), f"--gres=gpu:{hosts[0].gpus}" if gpus else "--gres=none", "--mem=0"]
        return ["srun", *options, "--overlap", "--no-kill", "--kill-on-bad-exit=1", "--input=none", *command]
