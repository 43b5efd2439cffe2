"""Everything that judges programs, on real cells: what the scripted judge stands for, faults of the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psutil
import pytest
from areal.errors import ConfigError
from areal.observe.metrics import RoleMetrics
from areal_judge.judge.dispatch.values import Execution, Ticket
from areal_judge.judge.judge import Judge
from areal_judge.judge.stack import CodeStack, SelfTest, StackSettings, code_stack
from areal_judge.judge.values import CallCase, CallSuite, Options, Status, StdioSuite, Submission
from areal_judge.sandbox.values import Limits, ProgramRun, PythonScript, Tier
from support.scripted_judge import SUITE, ScriptedJudge

pytestmark = pytest.mark.component
PYTHON = StackSettings(languages=("python",), slots=2)
ADD = CallSuite("add", (CallCase((1, 2), 3), CallCase((5, -7), -2)))
PROGRAMS = {"pass": "print(1)", "wrong": "print(2)", "time": "while True: pass"}
IMPATIENT = StdioSuite(SUITE.cases, limits=Limits(wall_s=3.0, cpu_s=0.5))


async def nobody(ready: bool) -> None:
    """Needs no telling."""


@pytest.fixture
async def stack() -> AsyncIterator[CodeStack]:
    async with code_stack(PYTHON, RoleMetrics("reward", "tests"), nobody) as made:
        yield made


def zygotes(before: set[int]) -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.pid not in before]


async def test_the_scripted_judge_stands_for_the_real_one(stack: CodeStack) -> None:
    real: Judge = stack.dispatcher._judge
    for name, program in PROGRAMS.items():
        ours = await ScriptedJudge().judge(Submission(name), IMPATIENT, Options())
        theirs = await real.judge(Submission(program), IMPATIENT, Options())
        assert (theirs.status, theirs.score) == (ours.status, ours.score), name
        assert len(theirs.cases) == len(ours.cases)


async def test_programs_are_judged_and_executed(stack: CodeStack) -> None:
    dispatcher = stack.dispatcher
    good = await dispatcher.judge(Submission("def add(a, b):\n    return a + b\n"), ADD)
    bad = await dispatcher.judge(Submission("def add(a, b):\n    return 3\n"), ADD)
    assert (good.status, good.score, good.cases_passed) == (Status.PASSED, 1.0, 2)
    assert (bad.status, bad.score) == (Status.WRONG_ANSWER, 0.0)
    executed = await dispatcher.execute(Execution("import sys; print(input()); sys.exit(3)", stdin=b"hello\n"))
    assert executed.ended is not None
    assert (executed.status, executed.ended.exit_code) == (Status.RUNTIME_ERROR, 3)
    assert executed.ended.stdout == b"hello\n"


async def test_a_deadline_ends_a_run_within_moments(stack: CodeStack) -> None:
    suite = StdioSuite(SUITE.cases, limits=Limits(wall_s=60.0, cpu_s=60.0))
    judgement = await stack.dispatcher.judge(
        Submission("while True: pass"), suite, Options(total_s=60), Ticket(deadline=time.time() + 1.0)
    )
    assert (judgement.status, judgement.score) == (Status.DEADLINE_EXCEEDED, None)
    await idle(stack)


async def test_a_cancelled_run_leaves_its_slot(stack: CodeStack) -> None:
    suite = StdioSuite(SUITE.cases, limits=Limits(wall_s=60.0, cpu_s=60.0))
    asking = asyncio.create_task(
        stack.dispatcher.judge(
            Submission("import time; time.sleep(50)"), suite, Options(total_s=60), Ticket("t", request_id="r")
        )
    )
    await running(stack)
    assert stack.dispatcher.cancel("t", "r")
    judgement = await asking
    assert (judgement.status, judgement.score) == (Status.CANCELLED, None)
    await idle(stack)


async def test_a_killed_zygote_is_no_verdict_and_the_next_attempt_counts() -> None:
    before = {child.pid for child in psutil.Process().children()}
    async with code_stack(PYTHON, RoleMetrics("reward", "tests"), nobody) as stack:
        asking = asyncio.create_task(
            stack.dispatcher.judge(Submission("import time; time.sleep(1.5); print(1)"), SUITE)
        )
        await running(stack)
        for zygote in zygotes(before):
            zygote.kill()
        judgement = await asking
        assert (judgement.status, judgement.score, judgement.attempt) == (Status.PASSED, 1.0, 2)
        assert stack.sandbox.counters().zygote_restarts >= 1


async def test_a_zygote_that_is_killed_twice_is_a_fault_without_a_score() -> None:
    before = {child.pid for child in psutil.Process().children()}
    async with code_stack(PYTHON, RoleMetrics("reward", "tests"), nobody) as stack:
        asking = asyncio.create_task(stack.dispatcher.judge(Submission("import time; time.sleep(3); print(1)"), SUITE))
        for attempt in (1, 2):
            await running(stack)
            for zygote in zygotes(before):
                zygote.kill()
            await until(lambda lost=attempt: stack.sandbox.counters().infra_errors >= lost)
            await until(lambda: stack.sandbox.counters().running == 0)
        judgement = await asking
        assert (judgement.status, judgement.score, judgement.retryable) == (Status.SANDBOX_ERROR, None, True)
        async with asyncio.timeout(60):  # the kill may have met a zygote that was just starting
            while (again := await stack.dispatcher.judge(Submission("print(1)"), SUITE)).retryable:
                pass
        assert again.score == 1.0


async def test_a_machine_below_the_tier_is_refused_with_what_it_lacks() -> None:
    settings = StackSettings(min_tier=Tier.T3, highest_tier=Tier.T2, languages=("python",))
    with pytest.raises(ConfigError, match="T2") as refused:
        async with code_stack(settings, RoleMetrics("reward", "tests"), nobody):
            pass
    assert refused.value.fix


async def test_a_leaking_sandbox_is_not_ready_and_judges_nothing(stack: CodeStack) -> None:
    held = await SelfTest(stack.sandbox, stack.dispatcher._judge)()  # type: ignore[arg-type]
    assert (held.passed, held.breach) == (True, False)

    class Leaking:
        powers = stack.sandbox.powers

        async def run(self, run: ProgramRun) -> Any:
            return await stack.sandbox.run(ProgramRun(PythonScript("print('won: a socket')")))

    stack.readiness._test = SelfTest(Leaking(), stack.dispatcher._judge)  # type: ignore[arg-type]
    assert not await stack.readiness.check()
    assert "a socket" in stack.readiness.words
    judgement = await stack.dispatcher.judge(Submission("print(1)"), SUITE)
    assert (judgement.status, judgement.score) == (Status.REJECTED_TIER, None)
    assert (await stack.dispatcher.execute(Execution("print(1)"))).status is Status.REJECTED_TIER


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not what():  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.01)


def running(stack: CodeStack) -> Awaitable[None]:
    return until(lambda: stack.sandbox.counters().running > 0)


def idle(stack: CodeStack) -> Awaitable[None]:
    return until(lambda: stack.sandbox.counters().running == 0 and stack.dispatcher.scheduler.running == 0)
