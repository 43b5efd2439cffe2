"""No wrong solution passes by a trick, none escapes its score; the same tricks win against a grader in the process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import pytest
from areal_judge.judge.judge import Judge
from areal_judge.judge.values import (
    AssertSuite,
    CallCase,
    CallSuite,
    Integrity,
    Judgement,
    Options,
    Scoring,
    Status,
    Submission,
    Suite,
)
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import Ending, Limits, ProgramRun, PythonScript, RunEnding
from judge.verdict_attacks import ATTACKS, FORGED, HONEST, INPUTS, NAIVE_GRADER, answer, forging

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]
R = TypeVar("R")

SHORT = Limits(wall_s=0.6, cpu_s=1.0, memory_bytes=256 << 20, output_bytes=1 << 16)
CASES = tuple(CallCase(([n, "label"],), answer(n)) for n in INPUTS)
CALLS = CallSuite("solve", CASES, limits=SHORT, prelude="from math import *")
TEST = "def check(candidate):\n" + "".join(f"    assert candidate([{n}, 'label']) == {answer(n)}\n" for n in INPUTS)
ASSERTS = AssertSuite(TEST, "solve", limits=SHORT, prelude="from math import *")
PATIENT = Limits()
FAILURES = (Status.PROTOCOL_VIOLATION, Status.RUNTIME_ERROR)


async def each(programs: Mapping[str, str], act: Callable[[str], Awaitable[R]]) -> dict[str, R]:
    """A few at a time."""
    gate = asyncio.Semaphore(3)

    async def one(source: str) -> R:
        async with gate:
            return await act(source)

    outcomes = await asyncio.gather(*map(one, programs.values()))
    return dict(zip(programs, outcomes, strict=True))


def tells(found: Mapping[str, Judgement]) -> dict[str, str]:
    return {name: f"{one.status} {one.score} {one.message}" for name, one in found.items()}


@pytest.mark.parametrize("suite", [CALLS, ASSERTS], ids=["calls", "asserts"])
async def test_no_trick_passes_and_none_escapes_its_score(judge: Judge, suite: Suite) -> None:
    found = await each(ATTACKS, lambda source: judge.judge(Submission(source), suite))
    assert tells({name: one for name, one in found.items() if one.status is Status.PASSED or one.score != 0.0}) == {}


async def test_frames_forged_in_the_tests_own_process_are_the_program_s_failure(judge: Judge) -> None:
    suite = AssertSuite(TEST, "solve", limits=SHORT, integrity=Integrity.IN_PROCESS)
    found = await each(FORGED, lambda frame: judge.judge(Submission(forging(frame)), suite))
    wrong = {name: one for name, one in found.items() if one.status not in FAILURES or one.score != 0.0}
    assert tells(wrong) == {}


async def test_no_trick_gains_a_part_of_the_score(judge: Judge) -> None:
    options = Options(scoring=Scoring.FRACTION, total_s=0.8)
    found = await each(ATTACKS, lambda source: judge.judge(Submission(source), CALLS, options))
    assert tells({name: one for name, one in found.items() if one.score != 0.0}) == {}


@pytest.mark.parametrize("isolate", [False, True], ids=["one process", "a process a case"])
async def test_honest_programs_with_odd_habits_pass(judge: Judge, isolate: bool) -> None:
    suite = CallSuite("solve", CASES, limits=PATIENT, prelude="from math import *", isolate_cases=isolate)
    found = await each(HONEST, lambda source: judge.judge(Submission(source), suite))
    assert tells({name: one for name, one in found.items() if one.score != 1.0}) == {}


async def test_honest_programs_pass_asserts_too(judge: Judge) -> None:
    suite = AssertSuite(TEST, "solve", limits=PATIENT, prelude="from math import *")
    found = await each(HONEST, lambda source: judge.judge(Submission(source), suite))
    assert tells({name: one for name, one in found.items() if one.score != 1.0}) == {}


@pytest.mark.parametrize("source", ["", "x = 1", "from math import *", "from math import *\nimport math"])
async def test_an_empty_program_is_not_bound_by_the_prelude(judge: Judge, source: str) -> None:
    suite = CallSuite("gcd", (CallCase((12, 18), 6),), prelude="from math import *")
    found = await judge.judge(Submission(source), suite)
    assert (found.status, found.score) == (Status.RUNTIME_ERROR, 0.0)
    assert (await judge.judge(Submission("from math import gcd"), suite)).score == 1.0


async def test_the_same_tricks_win_against_a_grader_in_the_process(sandbox: Sandbox) -> None:
    async def graded(program: str) -> RunEnding:
        cases = [([n, "label"], answer(n)) for n in INPUTS]
        return await sandbox.run(
            ProgramRun(PythonScript(NAIVE_GRADER.format(program=program, cases=cases)), limits=SHORT)
        )

    found = await each(ATTACKS, graded)
    fooled = {
        name
        for name, ended in found.items()
        if ended.ending is Ending.EXITED and (ended.exit_code == 0 or b"PASSED" in ended.stdout)
    }
    assert len(fooled) >= 20, sorted(fooled)
    assert {"always equal", "int subclass", "hard exit in call", "exit hook", "caller frames"} <= fooled
