"""Leak check of a long run: processes, descriptors, mounts, cgroups, directories, memory."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.kernel import calls as kernel
from areal_judge.sandbox.values import Ending, Limits, ProgramRun, PythonScript
from reward_rates import at_once


@dataclass(frozen=True)
class Traces:
    """What this process and its children hold now."""

    processes: int
    descriptors: int
    mounts: int
    cgroups: int
    directories: int
    rss_bytes: int


def see_own_mounts_only() -> None:
    """From here on other people's mounts don't show. Needs root; an ordinary user's cells can't mount here anyway."""
    if os.geteuid() == 0:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)


def _cgroups() -> int:
    """Groups of this process's sandboxes, on either version."""
    mine = f"areal-sandbox-*-{os.getpid()}-*"
    return sum(1 for parent in Path("/sys/fs/cgroup").rglob(mine) for _ in parent.rglob(""))


def traces() -> Traces:
    """Counted outside in, so that nothing which hides from the sandbox's own books is missed."""
    gc.collect()
    me = psutil.Process()
    return Traces(
        processes=len(me.children(recursive=True)),
        descriptors=len(os.listdir("/proc/self/fd")),
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        cgroups=_cgroups(),
        directories=sum(1 for entry in os.scandir(tempfile.gettempdir()) if "areal" in entry.name),
        rss_bytes=me.memory_info().rss,
    )


_SETTLED_S = 1.0  # for so long nothing has come or gone: all spares are made again
_SETTLES_S = 30.0

HABITS = (
    ("print(1)", Ending.EXITED),
    ("import sys; sys.exit(3)", Ending.EXITED),
    ("print('x' * (2 << 20))", Ending.OUTPUT_LIMIT),
    ("raise ValueError(1)", Ending.EXITED),
    ("while True: pass", Ending.WALL_LIMIT),
    ("import os; os.abort()", Ending.SIGNALED),
)


async def _settled() -> Traces:
    """What is there once nothing comes or goes any more."""
    until = time.monotonic() + _SETTLES_S
    found = traces()
    since = time.monotonic()
    while time.monotonic() - since < _SETTLED_S and time.monotonic() < until:
        await asyncio.sleep(0.1)
        seen = traces()
        if replace(seen, rss_bytes=0) != replace(found, rss_bytes=0):
            since = time.monotonic()
        found = seen
    return found


async def soak(sandbox: Sandbox, runs: int, slots: int) -> dict[str, object]:
    """Runs programs of every habit; says what was there before and what is there after."""

    async def one(number: int) -> None:
        # Most programs are quick; one in a hundred never ends.
        source, ending = HABITS[4] if number % 100 == 99 else HABITS[(0, 1, 2, 3, 5)[number % 5]]
        ended = await sandbox.run(
            ProgramRun(PythonScript(source), limits=Limits(wall_s=0.2 if ending is Ending.WALL_LIMIT else 4.0))
        )
        assert ended.ending is ending, (number, source, ended)

    await at_once(one, 200, slots)  # zygotes and spares of every profile exist from here on
    before = await _settled()
    rate = await at_once(one, runs, slots)
    after = await _settled()
    leaked = {
        name: getattr(after, name) - getattr(before, name)
        for name in ("processes", "descriptors", "mounts", "cgroups", "directories")
    }
    growth = after.rss_bytes / before.rss_bytes - 1
    return {
        "runs": runs,
        "runs_per_s": rate,
        "leaked": leaked,
        "rss_growth": growth,
        "before": asdict(before),
        "after": asdict(after),
    }
