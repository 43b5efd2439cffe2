"""Attack probes of a running sandbox: one benign and one hostile program of each kind of run.

For readiness: quick, harmless, and judged from what comes back. A kind that the tier refuses has to be refused.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from areal.errors import ArealError, ConfigError
from areal.yaml_file.table import read_table

from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import (
    Ending,
    ImageCommand,
    Limits,
    Powers,
    ProgramRun,
    PythonScript,
    RunEnding,
    Tier,
    TierProbe,
)

_PATIENT = Limits(wall_s=20.0, cpu_s=5.0)  # a busy machine is no broken one
_SPIN = Limits(wall_s=20.0, cpu_s=1.0)
_GREEDY = Limits(wall_s=20.0, cpu_s=5.0, memory_bytes=128 << 20)
_LOUD = Limits(wall_s=20.0, cpu_s=5.0, output_bytes=4096)
_IDLE = Limits(wall_s=0.2, cpu_s=5.0)
_FULL = Limits(wall_s=20.0, cpu_s=5.0, disk_bytes=4 << 20, inodes=64)
_SEVERAL = Limits(wall_s=20.0, cpu_s=5.0, processes=4)
_ATTACKS: dict[str, str] = read_table("areal_judge.sandbox.host", "attacks.yaml")


@dataclass(frozen=True)
class _Trial:
    name: str
    run: ProgramRun
    right: Callable[[RunEnding], bool]
    capability: Callable[[Powers], bool] = lambda powers: True
    least: Tier = Tier.T0
    costly: bool = False  # seconds of processor, or much memory


def _printed(text: bytes) -> Callable[[RunEnding], bool]:
    return lambda ended: ended.clean and ended.stdout.strip() == text


def _trials(service_pid: int) -> tuple[_Trial, ...]:
    reach = _ATTACKS["reach"].replace("@pid@", str(service_pid)).replace("@file@", __file__)
    forks = PythonScript("import os\npid = os.fork()\npid or os._exit(0)\nos.wait()\nprint('child')")
    shell = ImageCommand(("/bin/sh", "-c", "read line; echo $line"))
    outside = ImageCommand(("/bin/sh", "-c", f"cat {__file__} >/dev/null 2>&1 && echo won || echo held"))
    return (
        _Trial("script", ProgramRun(PythonScript("print(input())"), b"42\n", limits=_PATIENT), _printed(b"42")),
        _Trial("script_attack", ProgramRun(PythonScript(reach), limits=_PATIENT), _printed(b"held"), least=Tier.T2),
        _Trial(
            "time_attack",
            ProgramRun(PythonScript("while True: pass"), limits=_SPIN),
            lambda ended: ended.ending in (Ending.CPU_LIMIT, Ending.WALL_LIMIT),
            costly=True,
        ),
        _Trial(
            "memory_attack",
            ProgramRun(PythonScript("held = [b'x' * (1 << 20) for _ in range(400)]\nprint('won')"), limits=_GREEDY),
            lambda ended: ended.ending is Ending.MEMORY_LIMIT,
            costly=True,
        ),
        _Trial(
            "wall_attack",
            ProgramRun(PythonScript("import time\ntime.sleep(20)"), limits=_IDLE),
            lambda ended: ended.ending is Ending.WALL_LIMIT,
        ),
        _Trial(
            "output_attack",
            ProgramRun(PythonScript("while True: print('x' * 1000)"), limits=_LOUD),
            lambda ended: ended.ending is Ending.OUTPUT_LIMIT,
        ),
        _Trial("descriptors_attack", ProgramRun(PythonScript(_ATTACKS["opens"]), limits=_PATIENT), _printed(b"held")),
        _Trial(
            "disk_attack",
            ProgramRun(PythonScript(_ATTACKS["writes"]), limits=_FULL),
            lambda ended: ended.ending is Ending.DISK_LIMIT,
            lambda powers: powers.scratch,
            Tier.T3,
        ),
        _Trial(
            "inodes_attack",
            ProgramRun(PythonScript(_ATTACKS["names"]), limits=_FULL),
            _printed(b"held"),
            lambda powers: powers.scratch,
            Tier.T3,
        ),
        _Trial("several", ProgramRun(forks, limits=_SEVERAL), _printed(b"child"), lambda powers: powers.fork),
        _Trial(
            "several_attack",
            ProgramRun(PythonScript(_ATTACKS["forks"]), limits=_SEVERAL),
            _printed(b"held"),
            lambda powers: powers.fork,
            Tier.T2,
        ),
        _Trial("command", ProgramRun(shell, b"42\n", limits=_SEVERAL), _printed(b"42"), lambda powers: powers.execute),
        _Trial(
            "command_attack",
            ProgramRun(outside, limits=_SEVERAL),
            _printed(b"held"),
            lambda powers: powers.execute,
            Tier.T2,
        ),
        _Trial(
            "files",
            ProgramRun(PythonScript("print(open('given').read())"), files={"given": b"42"}, limits=_PATIENT),
            _printed(b"42"),
            lambda powers: powers.scratch,
        ),
    )


async def self_test(sandbox: Sandbox, *, thorough: bool = True, service_pid: int | None = None) -> list[TierProbe]:
    """One probe a kind of run, benign and hostile; all held where the sandbox does what it reports.

    Args:
        thorough: also what takes a second of processor time or much memory.
        service_pid: whom the attack tries to reach; this process.
    """
    trials = _trials(os.getpid() if service_pid is None else service_pid)
    powers = sandbox.powers
    wanted = [one for one in trials if powers.base >= one.least and (thorough or not one.costly)]
    # Under gVisor neither a limit nor a cgroup counts processes: the report says so, and no self-test fails for it.
    bounds = [probe.held for probe in powers.probes if probe.name in ("rlimit_processes", "cgroup_processes")]
    if powers.fork and not any(bounds):
        wanted = [one for one in wanted if one.name != "several_attack"]
    return list(await asyncio.gather(*(_try(sandbox, one) for one in wanted)))


async def _try(sandbox: Sandbox, trial: _Trial) -> TierProbe:
    can = trial.capability(sandbox.powers)
    try:
        ended = await sandbox.run(trial.run)
    except ConfigError as error:
        return TierProbe(trial.name, not can, f"refused: {error.message}")
    except ArealError as error:
        return TierProbe(trial.name, False, str(error))
    if not can:
        return TierProbe(trial.name, False, f"it ran, though {sandbox.powers.tier.name} reports no way to")
    right = trial.right(ended)
    said = (ended.stdout[-200:] + ended.stderr[-200:]).decode(errors="replace").strip()
    return TierProbe(trial.name, right, ended.ending.value if right else f"{ended.ending.value}: {said}")
