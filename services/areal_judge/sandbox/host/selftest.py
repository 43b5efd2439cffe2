"""Attack probes of a running sandbox: one benign and one hostile program of each kind of run.

For readiness: quick, harmless, and judged from what comes back. A kind that the tier refuses has to be refused.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from areal.errors import ArealError, ConfigError
from areal.yaml_file.table import read_table, tuple_fields

from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import ImageCommand, Limits, ProgramRun, PythonScript, RunEnding, Tier, TierProbe


@dataclass(frozen=True)
class _Trial:
    """A row of `attacks.yaml`."""

    name: str
    limits: Mapping[str, Any]
    script: str = ""
    shell: str = ""  # a line of the shell, instead
    stdin: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    prints: str = ""
    ends: tuple[str, ...] = ()
    needs: str = ""  # a power
    least: str = Tier.T0.name
    costly: bool = False  # seconds of processor, or much memory

    def run(self, service_pid: int) -> ProgramRun:
        text = (self.script or self.shell).replace("@pid@", str(service_pid)).replace("@file@", __file__)
        entry = PythonScript(text) if self.script else ImageCommand(("/bin/sh", "-c", text))
        files = {name: content.encode() for name, content in self.files.items()}
        return ProgramRun(entry, self.stdin.encode(), files, limits=Limits(**self.limits))

    def right(self, ended: RunEnding) -> bool:
        if self.ends:
            return ended.ending in self.ends
        return ended.clean and ended.stdout.strip() == self.prints.encode()


_TRIALS = [_Trial(**tuple_fields(row)) for row in read_table("areal_judge.sandbox.host", "attacks.yaml")["trials"]]


async def self_test(sandbox: Sandbox, *, thorough: bool = True, service_pid: int | None = None) -> list[TierProbe]:
    """One probe a kind of run, benign and hostile; all held where the sandbox does what it reports.

    Args:
        thorough: also what takes a second of processor time or much memory.
        service_pid: whom the attack tries to reach; this process.
    """
    pid = os.getpid() if service_pid is None else service_pid
    powers = sandbox.powers
    wanted = [one for one in _TRIALS if powers.base >= Tier[one.least] and (thorough or not one.costly)]
    # Under gVisor neither a limit nor a cgroup counts processes: the report says so, and no self-test fails for it.
    bounds = [probe.held for probe in powers.probes if probe.name in ("rlimit_processes", "cgroup_processes")]
    if powers.fork and not any(bounds):
        wanted = [one for one in wanted if one.name != "several_attack"]
    return list(await asyncio.gather(*(_try(sandbox, one, pid) for one in wanted)))


async def _try(sandbox: Sandbox, trial: _Trial, service_pid: int) -> TierProbe:
    can = not trial.needs or getattr(sandbox.powers, trial.needs)
    try:
        ended = await sandbox.run(trial.run(service_pid))
    except ConfigError as error:
        return TierProbe(trial.name, not can, f"refused: {error.message}")
    except ArealError as error:
        return TierProbe(trial.name, False, str(error))
    if not can:
        return TierProbe(trial.name, False, f"it ran, though {sandbox.powers.tier.name} reports no way to")
    right = trial.right(ended)
    said = (ended.stdout[-200:] + ended.stderr[-200:]).decode(errors="replace").strip()
    return TierProbe(trial.name, right, ended.ending.value if right else f"{ended.ending.value}: {said}")
