"""`python -m areal.hosts.step`: a row as a step of Slurm, in the form of a child process of the supervisor.

Ends what an earlier start left of the row, waits until the row's host is there, runs `srun`, and ends as the program
did. SIGTERM goes to the step, never to srun.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from areal.errors import ArealError
from areal.hosts import slurm
from areal.hosts.placement import HostPlan
from areal.processes.exits import ERROR_FILE, SIGNALLED

_EARLIER_S = 10.0  # for an earlier step's end; on a lost host nobody can end it, and fences keep it out
_LOOK_S = 1.0


def error_file(plan: Path, row: str) -> Path:
    """Where the row's program leaves its error: on the disk that all hosts share."""
    return plan.with_name(f"{row}.error")


def main(argv: list[str]) -> int:
    """Run the row; answers its exit code, negative for a signal."""
    path, row, job = Path(argv[0]), argv[1], os.environ["SLURM_JOB_ID"]
    running: subprocess.Popen[bytes] | None = None

    def stop(*_: object) -> None:
        if running is None:
            sys.exit(SIGNALLED + signal.SIGTERM)
        told = 0
        with suppress(ArealError, subprocess.TimeoutExpired):
            told = slurm.signal_steps(job, row, "TERM")
        if not told:
            running.terminate()

    signal.signal(signal.SIGTERM, stop)
    deadline = time.monotonic() + _EARLIER_S
    while slurm.signal_steps(job, row, "KILL") and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    while not all(map(slurm.answers, (plan := HostPlan.load(path)).of(row))):
        print(f"{row} waits for its host, or another one", flush=True)
        time.sleep(_LOOK_S)
    error = error_file(path, row)
    error.unlink(missing_ok=True)
    task = [*plan.prefix, sys.executable, "-m", "areal.hosts.task", *argv]
    running = subprocess.Popen(slurm.srun(row, plan.of(row), gpus=bool(plan.rows[row].gpus), command=task))
    code = running.wait()
    with suppress(OSError):
        Path(os.environ[ERROR_FILE]).write_bytes(error.read_bytes())
    return SIGNALLED - code if code > SIGNALLED and code != SIGNALLED + signal.SIGTERM else code


if __name__ == "__main__":
    if (ended := main(sys.argv[1:])) < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
