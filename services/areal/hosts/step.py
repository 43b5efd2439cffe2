"""`python -m areal.hosts.step`: a row on its hosts, in the form of a child process of the supervisor.

Ends what an earlier start left of the row, waits until the row's host is there, starts the program by the hosts'
scheduler, and ends as the program did. SIGTERM goes to the program, never to what the scheduler would end in a hurry.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from areal.errors import ArealError
from areal.hosts.placement import Host, HostPlan
from areal.hosts.ray_cluster import RayStep
from areal.hosts.slurm import SlurmStep
from areal.processes.exits import ERROR_FILE, SIGNALLED

_EARLIER_S = 10.0  # for an earlier step's end; on a lost host nobody can end it, and fences keep it out
_LOOK_S, _TRIES, _AGAIN_S = 1.0, 5, 0.2


def error_file(plan: Path, row: str) -> Path:
    """Where the row's program leaves its error: on the disk that all hosts share."""
    return plan.with_name(f"{row}.error")


class RowStep(Protocol):
    """A row's programs as the scheduler has them."""

    def answers(self, host: Host) -> bool: ...
    def signal(self, name: str) -> int: ...
    def run(self, hosts: Sequence[Host], gpus: bool, command: Sequence[str]) -> int: ...
    def end(self) -> None: ...


def main(argv: list[str]) -> int:
    """Run the row; answers its exit code, negative for a signal."""
    path, row, running = Path(argv[0]), argv[1], False
    plan, job = HostPlan.load(path), os.environ.get("SLURM_JOB_ID", "")
    step: RowStep = SlurmStep(job, row) if plan.ray is None else RayStep(plan.ray, row, plan.hosts)

    def stop(*_: object) -> None:
        if not running:
            sys.exit(SIGNALLED + signal.SIGTERM)
        for _again in range(_TRIES):  # the program may only be starting
            with suppress(ArealError):
                if step.signal("TERM"):
                    return
            time.sleep(_AGAIN_S)
        step.end()

    signal.signal(signal.SIGTERM, stop)
    deadline = time.monotonic() + _EARLIER_S
    while step.signal("KILL") and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    while not all(map(step.answers, (plan := HostPlan.load(path)).of(row))):
        print(f"{row} waits for its host, or another one", flush=True)
        time.sleep(_LOOK_S)
    error = error_file(path, row)
    error.unlink(missing_ok=True)
    task = [*plan.prefix, sys.executable, "-m", "areal.hosts.task", *argv]
    running = True
    code = step.run(plan.of(row), bool(plan.rows[row].gpus), task)
    with suppress(OSError):
        Path(os.environ[ERROR_FILE]).write_bytes(error.read_bytes())
    return SIGNALLED - code if code > SIGNALLED and code != SIGNALLED + signal.SIGTERM else code


if __name__ == "__main__":
    if (ended := main(sys.argv[1:])) < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
