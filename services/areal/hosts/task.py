"""`python -m areal.hosts.task`: a row's program on its host, as the task of a step.

Tells the program its address, its rank of a gang and its GPUs, passes SIGTERM on, and ends all that the program started
when it, or what started this, ends: where sites track a step by its process group, ranks with their own sessions get
away.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from areal.hosts.placement import ENV_HOST, ENV_RANK, HostPlan
from areal.hosts.step import error_file
from areal.nvidia import VISIBLE
from areal.plan.cluster_names import ENV_ADDRESS
from areal.processes import family
from areal.processes.exits import ERROR_FILE, SIGNALLED
from areal.processes.keeper import die_with

_RANK = "--node-rank"


def fitted(
    plan: HostPlan, row: str, command: Sequence[str], ours: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The program's command and environment on this host."""
    host, rank = (ours[ENV_HOST], ours[ENV_RANK]) if plan.ray else (ours["SLURMD_NODENAME"], ours["SLURM_PROCID"])
    made, told = {**ours, ENV_ADDRESS: plan.hosts[host].address}, list(command)
    if plan.rows[row].gpus:
        seen = ours[VISIBLE].split(",")  # in this site's numbers
        made[VISIBLE] = ",".join(seen[number] for number in plan.rows[row].gpus)
    if _RANK in told:
        told[told.index(_RANK) + 1] = rank
    return told, made


async def run(row: str, command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run the program to its end; answers its exit code as shells have it."""
    family.adopt()
    started = family.Family.start(family.Command(row, command, env), sys.stdout.fileno(), set())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, started.terminate)
    code = await started.wait()
    return code if code >= 0 else SIGNALLED - code


if __name__ == "__main__":
    die_with(os.getppid())
    plan_file, name, *program = sys.argv[1:]
    order, surroundings = fitted(HostPlan.load(Path(plan_file)), name, program, os.environ)
    surroundings[ERROR_FILE] = str(error_file(Path(plan_file), name))
    sys.exit(asyncio.run(run(name, order, surroundings)))
