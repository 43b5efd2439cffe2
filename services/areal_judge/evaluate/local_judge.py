"""A judge of this process, for commands that judge here and now, and what it is capable of on this machine."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from areal.errors import BugError, ExitCode
from rich.console import Console
from rich.table import Table
from rich.text import Text

from areal_judge.judge.drivers import DRIVERS
from areal_judge.judge.judge import Judge
from areal_judge.judge.languages.discovery import Toolchain, find_toolchains
from areal_judge.judge.languages.preparation import PreparedFiles
from areal_judge.judge.languages.toolchains import Toolchains
from areal_judge.sandbox.host.probing import probe
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig
from areal_judge.sandbox.host.tiers import promise
from areal_judge.sandbox.values import Powers, ProgramRun, RunEnding, Tier


@dataclass(frozen=True)
class Demands:
    """What is asked of the sandbox."""

    min_tier: Tier = Tier.T2
    highest_tier: Tier = Tier.T4  # behave like a machine that offers no more
    allow_unsafe: bool = False
    zygotes: int = 1


@contextlib.asynccontextmanager
async def local_judge(demands: Demands, language: str = "python") -> AsyncIterator[tuple[Judge, Powers]]:
    """A judge and what its sandbox can promise; everything of it has ended afterwards.

    Raises:
        ConfigError: the machine is below the tier, or lacks the language.
        InfraError: the sandbox doesn't start.
    """
    async with contextlib.AsyncExitStack() as stack:
        store: PreparedFiles | None = None
        readable: tuple[str, ...] = ()
        found: tuple[Toolchain, ...] | None = None
        if language != "python":
            store = PreparedFiles()
            stack.callback(store.close)
            found = find_toolchains()
            readable = Toolchains.readable(found, store)
        config = SandboxConfig(
            min_tier=demands.min_tier,
            highest_tier=demands.highest_tier,
            allow_unsafe=demands.allow_unsafe,
            zygotes=demands.zygotes,
            drivers=DRIVERS,
            readable=readable,
        )
        sandbox = Sandbox(config)
        stack.push_async_callback(sandbox.stop)
        await sandbox.start()
        toolchains = None
        if found is not None:
            toolchains = Toolchains(sandbox, store=store, found=found, unbounded_memory=demands.allow_unsafe)
            stack.push_async_callback(toolchains.close)
            await toolchains.prepare([language])
        yield Judge(sandbox, toolchains), sandbox.powers


# ---- `areal reward capabilities`: what this machine's sandbox promises, found by trying, and the languages it runs


class _NoCells:
    """Powers without a sandbox: enough to say which languages would run."""

    def __init__(self, powers: Powers) -> None:
        self.powers = powers

    async def run(self, run: ProgramRun) -> RunEnding:
        raise BugError("nothing runs here")


def capabilities_command(*, as_json: bool) -> int:
    """Probe and show; 64 when this machine can run nothing safely."""
    powers = probe()
    store = PreparedFiles()  # what compilations would share has a place there, as in a service
    try:
        toolchains = Toolchains(_NoCells(powers), store=store).capabilities()
    finally:
        store.close()
    if as_json:
        print(json.dumps(facts(powers, toolchains)))
    else:
        _show(powers, toolchains, Console())
    return int(ExitCode.DONE if powers.tier >= Tier.T2 else ExitCode.CONFIG)


def facts(powers: Powers, toolchains: tuple[Toolchain, ...]) -> dict[str, Any]:
    """One JSON object."""
    held = promise(powers.tier)
    return {
        "tier": powers.tier.name,
        "name": held.name,
        "memory_bound": powers.memory_bound.value,
        "kernel": powers.kernel,
        "fork": powers.fork,
        "execute": powers.execute,
        "scratch": powers.scratch,
        "runs": list(held.runs),
        "stops": list(held.stops),
        "leaves": list(held.leaves),
        "languages": [
            {
                "language": one.language,
                "runs": one.runnable,
                "version": one.version,
                "digest": one.digest,
                "why_not": one.missing or one.refused,
            }
            for one in toolchains
        ],
        "probes": [{"name": one.name, "held": one.held, "detail": one.detail} for one in powers.probes],
    }


def _show(powers: Powers, toolchains: tuple[Toolchain, ...], console: Console) -> None:
    held = promise(powers.tier)
    console.print(Text(f"{powers.tier.name} {held.name}", style="bold"), Text(f"— {held.made_of}"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for title, lines in (("runs", held.runs), ("stops", held.stops), ("leaves", held.leaves)):
        grid.add_row(title, "\n".join(lines))
    grid.add_row(
        "memory", "of all processes of a run together" if powers.memory_bound == "cgroup" else "of each process"
    )
    grid.add_row("kernel", powers.kernel)
    console.print(grid)
    console.print(_languages(toolchains))
    lost = [one for one in powers.probes if not one.held]
    if lost:
        console.print(Text("not here", style="dim"))
        for one in lost:
            console.print(Text(f"  {one.name}: {one.detail}" if one.detail else f"  {one.name}"), soft_wrap=True)


def _languages(toolchains: tuple[Toolchain, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("language", "runs", "version"):
        table.add_column(title, overflow="fold")
    for one in toolchains:
        runs = Text("yes", style="green") if one.runnable else Text("no", style="red")
        table.add_row(one.language, runs, Text(one.version if one.runnable else one.missing or one.refused))
    return table
