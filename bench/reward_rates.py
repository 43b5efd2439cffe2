"""Rates and latencies of cells, suites and math, each in one process of the service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from areal_judge.judge.judge import Judge
from areal_judge.judge.values import CallCase, CallSuite, Judgement, Options, StdioCase, StdioSuite, Submission, Suite
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import Ending, Limits, ProgramRun, PythonScript
from reward_baselines import TRIVIAL

CASES = 20
ADDER = "def add(a, b):\n    return a + b\n"
ECHO = "a, b = map(int, input().split())\nprint(a + b)\n"
ECHO_CPP = "#include <bits/stdc++.h>\nint main(){long long a,b;std::cin>>a>>b;std::cout<<a+b<<'\\n';}\n"


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def at_once(work: Callable[[int], Awaitable[object]], count: int, slots: int) -> float:
    """Does `work(0) … work(count - 1)`, `slots` at a time; returns how many a second."""
    numbers = iter(range(count))

    async def lane() -> None:
        for number in numbers:
            await work(number)

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(slots)))
    return count / (time.perf_counter() - began)


async def trivial(sandbox: Sandbox, _number: int = 0) -> None:
    """One program that prints a line."""
    ended = await sandbox.run(ProgramRun(PythonScript(TRIVIAL)))
    assert ended.clean, ended
    assert ended.stdout == b"1\n", ended


async def cell_latencies(sandbox: Sandbox, runs: int) -> list[float]:
    """Seconds from asking to the result, one run after the other: each finds a warm spare."""
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        await trivial(sandbox)
        taken.append(time.perf_counter() - began)
        await asyncio.sleep(0.005)  # the spare is refilled meanwhile, as between a training run's answers
    return taken


async def kill_latencies(sandbox: Sandbox, runs: int) -> list[float]:
    """Seconds by which the result of an endless program comes after its deadline."""
    limit = 0.2
    late = []
    for _ in range(runs):
        began = time.perf_counter()
        ended = await sandbox.run(ProgramRun(PythonScript("while True: pass"), limits=Limits(wall_s=limit)))
        assert ended.ending is Ending.WALL_LIMIT, ended
        late.append(time.perf_counter() - began - ended.setup_s - limit)
    return late


def call_suite() -> CallSuite:
    """Twenty calls of a function of two numbers."""
    return CallSuite("add", tuple(CallCase((i, i * i), i + i * i) for i in range(CASES)))


def stdio_suite() -> StdioSuite:
    """Twenty programs' worth of standard input."""
    return StdioSuite(tuple(StdioCase(f"{i} {i * i}\n", f"{i + i * i}\n") for i in range(CASES)))


async def judged(judge: Judge, source: str, suite: Suite, language: str = "python") -> Judgement:
    """One judgement that has to pass."""
    found = await judge.judge(Submission(source, language), suite, Options())
    assert found.score == 1.0, found
    return found


async def call_suites(judge: Judge, count: int, slots: int) -> float:
    """Twenty-case function suites a second; every program is new."""
    suite = call_suite()
    return await at_once(lambda n: judged(judge, f"{ADDER}# {n}\n", suite), count, slots)


async def stdio_suites(judge: Judge, count: int, slots: int) -> float:
    """Twenty-case stdio suites a second, a process a case."""
    suite = stdio_suite()
    return await at_once(lambda n: judged(judge, f"{ECHO}# {n}\n", suite), count, slots)


async def cpp_seconds(judge: Judge, rounds: int) -> float:
    """Seconds for one C++ file and ten cases: compiled once, run ten times. The best of some rounds."""
    suite = StdioSuite(stdio_suite().cases[:10])
    best = float("inf")
    for number in range(rounds):
        began = time.perf_counter()
        await judged(judge, f"{ECHO_CPP}// {number}\n", suite, "cpp")
        best = min(best, time.perf_counter() - began)
    return best
