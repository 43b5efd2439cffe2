"""The judge: what each ending means, who is at fault, what is told and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from areal.errors import InfraError
from areal_judge.judge.judge import Judge
from areal_judge.judge.program import Program
from areal_judge.judge.values import (
    AssertSuite,
    CallCase,
    CallSuite,
    Checker,
    Flag,
    Integrity,
    Options,
    Scoring,
    Status,
    StdioCase,
    StdioSuite,
    Submission,
    Suite,
)
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.host.session import CellSession
from areal_judge.sandbox.values import Limits, ProgramRun, RunEnding, Tier

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]

LIMITS = Limits(wall_s=1.0, cpu_s=1.0, memory_bytes=128 << 20, output_bytes=1 << 16)
DOUBLE = StdioSuite((StdioCase("2", "4"), StdioCase("5", "10"), StdioCase("7", "14")))
ADD = CallSuite("add", tuple(CallCase((i, 1), i + 1) for i in range(4)))
RIGHT = "print(2 * int(input()))"


@pytest.mark.parametrize(
    ("source", "status"),
    [
        (RIGHT, Status.PASSED),
        ("import sys\nfor line in sys.stdin:\n    assert line[-1] == '\\n'\n    print(2 * int(line))", Status.PASSED),
        ("print(int(input()))", Status.WRONG_ANSWER),
        ("", Status.WRONG_ANSWER),
        (RIGHT + "\nraise SystemExit(3)", Status.RUNTIME_ERROR),
        (RIGHT + "\nimport os, sys; sys.stdout.flush(); os.abort()", Status.RUNTIME_ERROR),
        (RIGHT + "\nimport os, sys; sys.stdout.flush(); os.kill(os.getpid(), 11)", Status.RUNTIME_ERROR),
        ("print(", Status.COMPILE_ERROR),
        ("while True: pass", Status.TIME_LIMIT),
        ("import time; time.sleep(30)", Status.TIME_LIMIT),
        ("while True: print('4' * 1000)", Status.OUTPUT_LIMIT),
        ("x = bytearray(1 << 30)", Status.MEMORY_LIMIT),
    ],
)
async def test_a_printing_program_gets_the_status_of_its_end(judge: Judge, source: str, status: Status) -> None:
    found = await judge.judge(Submission(source), replace(DOUBLE, limits=LIMITS))
    assert (found.status, found.score) == (status, float(status is Status.PASSED)), found.message
    assert found.cases_total == len(found.cases) == 3
    if status is not Status.PASSED:
        assert [case.status for case in found.cases[1:]] == [Status.SKIPPED] * 2


async def test_printing_programs_import_numpy_where_their_suite_says_so(judge: Judge) -> None:
    program = Submission("import numpy as np\nprint(int(np.arange(int(input()) + 1).sum()))")
    suite = StdioSuite((StdioCase("3", "6"), StdioCase("4", "10")))
    found = await judge.judge(program, replace(suite, needs_numpy=True))
    assert (found.status, found.score) == (Status.PASSED, 1.0), found.message
    assert (await judge.judge(program, suite)).status is Status.RUNTIME_ERROR


async def test_an_exit_code_counts_unless_the_suite_ignores_it(judge: Judge) -> None:
    source = RIGHT + "\nraise SystemExit(3)"
    assert (await judge.judge(Submission(source), replace(DOUBLE, ignore_exit_code=True))).score == 1.0


async def test_all_cases_run_for_a_fraction_and_the_first_failure_names_it(judge: Judge) -> None:
    program = Submission("n = int(input())\nprint(n if n == 5 else 2 * n)")
    found = await judge.judge(program, DOUBLE, Options(scoring=Scoring.FRACTION))
    assert (found.status, found.score, found.cases_passed) == (Status.WRONG_ANSWER, pytest.approx(2 / 3), 2)
    found = await judge.judge(program, DOUBLE, Options(run_all=True))
    assert (found.score, found.cases_passed) == (0.0, 2)


async def test_calls_go_on_after_a_lost_process(judge: Judge) -> None:
    program = Submission("import os\ndef add(a, b):\n    if a == 1: os._exit(0)\n    return a + b")
    found = await judge.judge(program, ADD, Options(scoring=Scoring.FRACTION))
    assert [case.status for case in found.cases] == [
        Status.PASSED, Status.PROTOCOL_VIOLATION, Status.PASSED, Status.PASSED,
    ]  # fmt: skip
    assert found.score == 0.75
    assert Flag.EXITED_EARLY in found.flags


async def test_state_lasts_for_a_process_and_no_longer(judge: Judge) -> None:
    program = Submission("seen = []\ndef add(a, b):\n    seen.append(a)\n    return len(seen)")
    suite = CallSuite("add", tuple(CallCase((i, 1), i + 1) for i in range(3)))
    assert (await judge.judge(program, suite)).score == 1.0
    assert (await judge.judge(program, replace(suite, isolate_cases=True))).status is Status.WRONG_ANSWER


async def test_all_cases_together_have_a_time(judge: Judge) -> None:
    slow = Submission("import time\ndef add(a, b):\n    time.sleep(0.4)\n    return a + b")
    found = await judge.judge(slow, ADD, Options(total_s=1.0, run_all=True))
    assert found.status is Status.TIME_LIMIT
    assert 1 <= found.cases_passed <= 2
    assert found.timing.run_s < 3


async def test_what_is_expected_is_told_to_people_only(judge: Judge) -> None:
    secret = CallSuite("add", (CallCase((1, 1), "s3cr3t"),))
    tests = AssertSuite("assert add(1, 1) == 's3cr3t', 's3cr3t'", "add")
    printed = StdioSuite((StdioCase("1", "s3cr3t"),))
    calls, prints = Submission("def add(a, b): return 2"), Submission("print(2)")
    for program, suite in ((calls, secret), (calls, tests), (prints, printed)):
        for reveal in (False, True):
            found = await judge.judge(program, suite, Options(reveal=reveal))
            assert found.status is Status.WRONG_ANSWER
            assert ("s3cr3t" in repr(found)) is reveal


async def test_what_a_program_says_is_cut(judge: Judge) -> None:
    program = Submission("def add(a, b):\n    print('x' * 9000)\n    raise ValueError('y' * 9000)")
    found = await judge.judge(program, ADD)
    assert found.status is Status.RUNTIME_ERROR
    assert "ValueError" in found.message
    assert len(found.message) <= 600
    assert found.cases[0].stdout_head == "x" * 2048


@pytest.mark.parametrize(
    "suite",
    [
        StdioSuite(()),
        CallSuite("add", ()),
        AssertSuite("", "add"),
        AssertSuite("def check(candidate): pass", "add"),
        AssertSuite("assert 1 == 1", "add"),
        AssertSuite("import nothing_like_it\nassert add(1, 1) == 2", "add"),
        AssertSuite("assert add(1, 1) == helper()", "add"),
        AssertSuite("assert add(1, object()) == 2", "add"),
        AssertSuite("assert 0 == add", "add"),
        CallSuite("add", (CallCase((1, 1), object()),)),
        CallSuite("add", (CallCase((object(), 1), 2),)),
        CallSuite("add", (CallCase((1, 1), 2),), prelude="import nothing_like_it"),
        StdioSuite((StdioCase("1", "2"),), Checker("vibes")),
        StdioSuite((StdioCase("1", "2"),), Checker("custom", program="raise RuntimeError")),
        StdioSuite((StdioCase("1", "2"),), Checker("custom", program="import sys; sys.exit(7)")),
    ],
    ids=lambda suite: type(suite).__name__,  # the same in each process
)
async def test_a_suite_at_fault_passes_nobody_and_fails_nobody(judge: Judge, suite: Suite) -> None:
    source = "print(2)" if isinstance(suite, StdioSuite) else "def add(a, b): return a + b"
    found = await judge.judge(Submission(source), suite)
    assert (found.status, found.score) == (Status.GOLD_ERROR, None)
    assert found.message


@pytest.mark.parametrize("suite", [ADD, AssertSuite("assert add(1, 1) == 2", "add")])
async def test_a_program_that_failed_is_ended_without_being_asked_to_leave(
    judge: Judge, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave(program: Program) -> None:
        pytest.fail("it was asked to leave")

    monkeypatch.setattr(Program, "leave", leave)
    found = await judge.judge(Submission("def add(a, b): return -1"), suite)
    assert (found.status, found.score) == (Status.WRONG_ANSWER, 0.0)


async def test_a_tier_below_the_one_asked_for_is_refused(judge: Judge, sandbox: Sandbox) -> None:
    above = Tier(sandbox.powers.tier + 1)
    found = await judge.judge(Submission(RIGHT), DOUBLE, Options(min_tier=above))
    assert (found.status, found.score) == (Status.REJECTED_TIER, None)
    assert above.name in found.message


async def test_a_language_without_toolchain_is_refused(judge: Judge) -> None:
    found = await judge.judge(Submission("int main() {}", "cpp"), DOUBLE)
    assert (found.status, found.score) == (Status.REJECTED_TIER, None)
    found = await judge.judge(Submission("int main() {}", "cpp"), ADD)
    assert (found.status, found.score) == (Status.INVALID_REQUEST, None)


async def test_a_custom_checker_sees_input_output_and_answer(judge: Judge) -> None:
    program = (
        "import sys\nn = int(open('input').read())\nfound = int(open(sys.argv[2]).read())\n"
        "wanted = int(open(sys.argv[3], 'rb').read())\nsys.exit(0 if found % n == 0 and found >= wanted else 1)"
    )
    suite = StdioSuite((StdioCase("3", "6"), StdioCase("5", "10")), Checker("custom", program=program))
    assert (await judge.judge(Submission("print(4 * int(input()))"), suite)).score == 1.0
    assert (await judge.judge(Submission("print(int(input()))"), suite)).status is Status.WRONG_ANSWER


@pytest.mark.parametrize("output", ["words", "\x00", "", "9" * 5000, "[" * 9000, "1 2 3", "Traceback (most recent)"])
@pytest.mark.parametrize("checker", [
    "import sys\nsys.exit(int(open('output').read()) != int(open('answer').read()))",
    "import sys\na, b = open('output').read().split()\nsys.exit(a == b)",
    "import sys\ntext = open('output').read()\nprint(text, file=sys.stderr)\nsys.exit(eval(text) != 4)",
    "import os, sys\nif open('output').read() != '4': os.kill(os.getpid(), 9)",
    "import sys\nsys.exit({'4': 0, '5': 1}.get(open('output').read().strip(), 7))",
])  # fmt: skip
async def test_no_output_makes_a_good_row_the_suites_fault(judge: Judge, checker: str, output: str) -> None:
    suite = StdioSuite((StdioCase("2", "4 4" if "a, b" in checker else "4"),), Checker("custom", program=checker))
    found = await judge.judge(Submission(f"print({output!r}, end='')"), suite)
    assert (found.status, found.score) == (Status.WRONG_ANSWER, 0.0), found.message


@pytest.mark.parametrize(
    "suite",
    [CallSuite("f", (CallCase((3,), 9),)), AssertSuite("assert f(3) == 9", "f"),
     AssertSuite("assert f(3) == 9", "f", integrity=Integrity.IN_PROCESS)],
    ids=["call", "asserts", "in process"],
)  # fmt: skip
async def test_the_time_of_a_prelude_is_not_the_program_s(judge: Judge, suite: CallSuite | AssertSuite) -> None:
    slow = replace(suite, prelude="import time\ntime.sleep(1.2)", limits=replace(LIMITS, wall_s=0.4))
    found = await judge.judge(Submission("def f(n): return n * n"), slow)
    assert (found.status, found.score) == (Status.PASSED, 1.0), found.message
    found = await judge.judge(Submission("def f(n):\n    while True: pass"), slow)
    assert (found.status, found.score) == (Status.TIME_LIMIT, 0.0)


async def test_tests_that_share_the_process_say_so_and_can_be_refused(judge: Judge) -> None:
    test = "c = Counter()\nc.add()\nassert c.n == 1\nassert isinstance(c, Counter)"
    suite = AssertSuite(test, "Counter", integrity=Integrity.IN_PROCESS)
    right = Submission("class Counter:\n    n = 0\n    def add(self): self.n += 1")
    found = await judge.judge(right, suite)
    assert (found.status, found.score, found.integrity) == (Status.PASSED, 1.0, Integrity.IN_PROCESS)
    for wrong, status in (
        ("class Counter:\n    n = 0\n    def add(self): pass", Status.WRONG_ANSWER),
        ("class Counter:\n    n = 0\n    def add(self): 1 / 0", Status.RUNTIME_ERROR),
        ("class Counter:\n    def add(self): import os; os._exit(0)", Status.PROTOCOL_VIOLATION),
        ("import os\nos._exit(0)", Status.PROTOCOL_VIOLATION),
        ("raise ValueError", Status.RUNTIME_ERROR),
        ("", Status.RUNTIME_ERROR),
        ("class", Status.COMPILE_ERROR),
        ("while True: pass", Status.TIME_LIMIT),
    ):
        found = await judge.judge(Submission(wrong), replace(suite, limits=LIMITS))
        assert (found.status, found.score) == (status, 0.0), (wrong, found.message)
    found = await judge.judge(right, suite, Options(min_integrity=Integrity.SPLIT))
    assert (found.status, found.score) == (Status.INVALID_REQUEST, None)


async def test_many_split_judgings_at_once_all_end(judge: Judge) -> None:
    suite = AssertSuite("assert add(1, 1) == 2", "add")
    found = await asyncio.gather(*(judge.judge(Submission("def add(a, b): return a + b"), suite) for _ in range(20)))
    assert [one.score for one in found] == [1.0] * 20


async def running(sandbox: Sandbox) -> None:
    async with asyncio.timeout(60):
        while not sandbox.counters().running:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)


async def test_a_cancelled_judging_ends_its_run(judge: Judge, sandbox: Sandbox) -> None:
    task = asyncio.ensure_future(judge.judge(Submission("def add(a, b):\n    while True: pass"), ADD))
    await running(sandbox)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sandbox.counters().running == 0


class Failing:
    """A sandbox that loses its first runs."""

    def __init__(self, real: Sandbox, losses: int, *, after: bool = False) -> None:
        self.powers = real.powers
        self.losses = losses
        self._real = real
        self._after = after

    def _lose(self) -> None:
        if self.losses:
            self.losses -= 1
            raise InfraError("a worker was lost", fix="try again")

    async def run(self, run: ProgramRun) -> RunEnding:
        self._lose()
        return await self._real.run(run)

    @asynccontextmanager
    async def session(self, run: ProgramRun, max_frame_bytes: int = 1 << 20) -> AsyncIterator[CellSession]:
        if not self._after:
            self._lose()
        async with self._real.session(run, max_frame_bytes) as session:
            yield session
        self._lose()


@pytest.mark.parametrize("suite", [DOUBLE, ADD], ids=["stdio", "calls"])
async def test_a_failure_of_the_sandbox_is_tried_once_more_and_never_scored(sandbox: Sandbox, suite: Suite) -> None:
    program = Submission(RIGHT if suite is DOUBLE else "def add(a, b): return a + b")
    found = await Judge(Failing(sandbox, 1)).judge(program, suite)  # type: ignore[arg-type]
    assert (found.status, found.score, found.attempt) == (Status.PASSED, 1.0, 2)
    failing = Failing(sandbox, 9)
    found = await Judge(failing).judge(program, suite)  # type: ignore[arg-type]
    assert (found.status, found.score, found.retryable) == (Status.SANDBOX_ERROR, None, True)
    assert failing.losses == 7


async def test_a_program_out_of_time_gets_no_second_try(sandbox: Sandbox) -> None:
    failing = Failing(sandbox, 9, after=True)
    program = Submission("def add(a, b):\n    while True: pass")
    found = await Judge(failing).judge(program, replace(ADD, limits=LIMITS))  # type: ignore[arg-type]
    assert (found.status, found.score) == (Status.TIME_LIMIT, 0.0)
    assert failing.losses == 8
