"""The reward service beside a bare subprocess and bubblewrap, in one run, against the targets of its design.

    python bench/reward.py                     everything; a soak of 10,000 runs
    python bench/reward.py --soak 1000         a shorter one
    python bench/reward.py --only latency,math

Absolute targets are judged on a quiet machine only (load below 1 before the start); ratios always. Leaks always count.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median

import psutil
import reward_baselines as baselines
import reward_grpc
import reward_pressure as pressure
import reward_rates as rates
from areal.reward.verifiers.math import MathVerifier
from areal_judge.judge.drivers import DRIVERS
from areal_judge.judge.judge import Judge
from areal_judge.judge.languages.preparation import PreparedFiles
from areal_judge.judge.languages.toolchains import Toolchains
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig
from areal_judge.sandbox.values import Tier
from report import write
from reward_soak import see_own_mounts_only, soak

SLOTS = 2
_ROUNDS = 7
SECTIONS = ("latency", "suites", "math", "soak")


@dataclass(frozen=True)
class Row:
    """One figure and its target. `relative` targets hold on a busy machine too."""

    name: str
    value: float
    unit: str
    target: str
    met: bool
    relative: bool = False


@dataclass
class Table:
    """What was measured."""

    quiet: bool
    rows: list[Row] = field(default_factory=list)

    def most(self, name: str, value: float, unit: str, limit: float, *, relative: bool = False) -> None:
        self._add(Row(name, value, unit, f"<= {limit:g}", value <= limit, relative))

    def least(self, name: str, value: float, unit: str, limit: float, *, relative: bool = False) -> None:
        self._add(Row(name, value, unit, f">= {limit:g}", value >= limit, relative))

    def shown(self, name: str, value: float, unit: str) -> None:
        self._add(Row(name, value, unit, "", True, True))

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        judged = row.relative or self.quiet
        verdict = "" if not row.target else ("met" if row.met else "MISSED") if judged else "busy machine: not judged"
        print(f"  {row.name:<52} {row.value:>10.2f} {row.unit:<10} {row.target:<10} {verdict}", flush=True)

    @property
    def missed(self) -> list[str]:
        return [row.name for row in self.rows if not row.met and (row.relative or self.quiet)]


@asynccontextmanager
async def running(tier: Tier) -> AsyncIterator[Sandbox]:
    """A sandbox of two zygotes that behaves like a machine which offers no more than `tier`."""
    sandbox = Sandbox(SandboxConfig(highest_tier=tier, zygotes=SLOTS))
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.stop()


def _beside(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The middle one of the rounds' ratios: both rates of a round see the same machine."""
    return median(mine / other for mine, other in zip(ours, theirs, strict=True))


def _ms(seconds: float) -> float:
    return seconds * 1000


async def latency(table: Table) -> None:
    """Trivial runs: ours by tier, through gRPC, and the baselines, the measures interleaved."""
    subprocess_rates, bubblewrap_rates, ours = [], [], []  # of one round after the other
    known = baselines.available()
    for name, once in known.items():
        taken = await asyncio.to_thread(baselines.latencies, once, 40)
        table.shown(f"{name}: start p50", _ms(rates.percentile(taken, 0.5)), "ms")
        table.shown(f"{name}: start p99", _ms(rates.percentile(taken, 0.99)), "ms")
    async with running(Tier.T4) as sandbox:
        tier = sandbox.powers.tier.name
        await rates.at_once(lambda n: rates.trivial(sandbox, n), 20, SLOTS)
        taken = await rates.cell_latencies(sandbox, 400)
        table.most(f"{tier} start p50, warm spare", _ms(rates.percentile(taken, 0.5)), "ms", 3)
        table.most(f"{tier} start p99, warm spare", _ms(rates.percentile(taken, 0.99)), "ms", 15)
        late = await rates.kill_latencies(sandbox, 60)
        table.most(f"{tier} kill after the deadline p99", _ms(rates.percentile(late, 0.99)), "ms", 50)
        for _ in range(_ROUNDS):
            ours.append(await rates.at_once(lambda n: rates.trivial(sandbox, n), 300, SLOTS))
            subprocess_rates.append(await asyncio.to_thread(baselines.rate, known["subprocess"], 40, SLOTS))
            if "bubblewrap" in known:
                bubblewrap_rates.append(await asyncio.to_thread(baselines.rate, known["bubblewrap"], 40, SLOTS))
    table.least(f"{tier} runs a second, 2 slots", median(ours), "/s", 150)
    table.shown("subprocess: runs a second, 2 at once", median(subprocess_rates), "/s")
    table.least(f"{tier} beside subprocess", _beside(ours, subprocess_rates), "times", 3, relative=True)
    if bubblewrap_rates:
        table.shown("bubblewrap: runs a second, 2 at once", median(bubblewrap_rates), "/s")
        table.least(f"{tier} beside bubblewrap", _beside(ours, bubblewrap_rates), "times", 4, relative=True)
    async with running(Tier.T2) as sandbox:
        taken = await rates.cell_latencies(sandbox, 200)
        table.shown("T2 start p50", _ms(rates.percentile(taken, 0.5)), "ms")
        restricted = [await rates.at_once(lambda n: rates.trivial(sandbox, n), 300, SLOTS) for _ in range(3)]
        table.least("T2 runs a second, 2 slots", median(restricted), "/s", 180)
    through = await reward_grpc.latencies(rates.ECHO, b"1 2\n", 300)
    table.most("through gRPC p50", _ms(rates.percentile(through.runs, 0.5)), "ms", 6)
    table.most("through gRPC p99", _ms(rates.percentile(through.runs, 0.99)), "ms", 25)
    table.shown("of these inside the service p50", _ms(rates.percentile(through.inside, 0.5)), "ms")
    table.shown("gRPC echo p50, the limit", _ms(rates.percentile(through.echoes, 0.5)), "ms")


async def suites(table: Table) -> None:
    """Suites of twenty cases, a C++ program, and what an idle sandbox holds."""
    toolchains_found, store = Toolchains.found(), PreparedFiles()
    config = SandboxConfig(zygotes=4, drivers=DRIVERS, readable=Toolchains.readable(toolchains_found, store))
    sandbox = Sandbox(config)
    await sandbox.start()
    toolchains = Toolchains(sandbox, store=store, found=toolchains_found)
    try:
        judge = Judge(sandbox, toolchains)
        await rates.trivial(sandbox)
        await asyncio.sleep(2)  # all spares are there
        table.most("idle memory, 4 zygotes and 8 spares", _idle_bytes() / 2**20, "MiB", 250, relative=True)
        table.least("20-case function suites", await rates.call_suites(judge, 400, SLOTS), "/s", 80)
        table.least("20-case stdio suites", await rates.stdio_suites(judge, 40, SLOTS), "/s", 10)
        await toolchains.prepare(["cpp"])  # headers made ahead, as a service does at its start
        table.most("C++: one file, ten cases", await rates.cpp_seconds(judge, 3), "s", 1)
    finally:
        await toolchains.close()
        await sandbox.stop()
        store.close()


def _idle_bytes() -> int:
    """Proportional memory of all zygotes and spares: pages that they share count once."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


async def math(table: Table) -> None:
    """Answers that text decides, answers that computer algebra decides, and poison."""
    verifier = MathVerifier("answer")
    await verifier.start()
    try:
        fast, results = await pressure.scored(verifier, pressure.integers(20_000))
        assert all(result.verdict.score == 1.0 for result in results)
        table.least("math: integers", fast, "/s", 5000)
        await pressure.scored(verifier, pressure.mixed_pairs(20))
        slow, results = await pressure.scored(verifier, pressure.mixed_pairs(600)[20:])
        assert all(result.verdict.score == 1.0 for result in results), [r for r in results if not r.verdict.score][:3]
        table.least("math: pairs for computer algebra", slow, "/s", 40)
        found = await pressure.poisoned(verifier)
        table.least("math: right answers beside 10 poisoned", found.right, "of 90", 90, relative=True)
        table.shown("math: poisoned answers killed at 2 s", found.timeouts, "of 10")
        table.most("math: 100 items with 10 poisoned", found.seconds, "s", 10 * 2 / 2 + 5)
    finally:
        await verifier.stop()


async def long_life(table: Table, runs: int) -> dict[str, object]:
    """Ten thousand programs of every habit."""
    async with running(Tier.T4) as sandbox:
        found = await soak(sandbox, runs, SLOTS * 2)
    leaked = found["leaked"]
    assert isinstance(leaked, dict)
    for name, count in leaked.items():
        table.most(f"soak of {runs:,}: leaked {name}", count, "", 0, relative=True)
    growth = found["rss_growth"]
    assert isinstance(growth, float)
    table.most(f"soak of {runs:,}: growth of resident memory", growth * 100, "%", 10, relative=True)
    return found


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--soak", type=int, default=10_000, help="runs of the soak")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas: " + ", ".join(SECTIONS))
    given = parser.parse_args()
    wanted = given.only.split(",")
    load, began = os.getloadavg()[0], time.time()
    table, more = Table(quiet=load < 1), {}
    see_own_mounts_only()
    print(f"\nreward  (load {load:.1f} before the start)")
    measures: dict[str, Callable[[Table], Awaitable[None]]] = {
        "latency": latency, "suites": suites, "math": math,
    }  # fmt: skip
    for name in wanted:
        if name == "soak":
            more["soak"] = await long_life(table, given.soak)
        else:
            await measures[name](table)
    write("reward", {"load": load, "seconds": time.time() - began, "rows": table.rows, "missed": table.missed, **more})
    if table.missed:
        print("  missed: " + "; ".join(table.missed))
    return 1 if table.missed else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="bench-reward-") as scratch:
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        sys.exit(asyncio.run(main()))
