"""A judge that does what a submission's source says: for everything around judging, without a process.

pass | wrong | time | compile | sandbox-error | raise | hang | no-score | flaky | sleep SECONDS then WORD
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from areal.errors import ConfigError, InfraError
from areal.observe.metrics import RoleMetrics
from areal_judge.judge.dispatch.dispatcher import JudgeDispatcher
from areal_judge.judge.dispatch.meters import Meters
from areal_judge.judge.dispatch.scheduler import Bounds, MemoryBudget
from areal_judge.judge.dispatch.values import Execution, ExecutionResult, LanguageOffer, Offer
from areal_judge.judge.values import (
    CaseResult,
    Flag,
    Judgement,
    Options,
    Status,
    StdioCase,
    StdioSuite,
    Submission,
    Suite,
    Timing,
)
from areal_judge.sandbox.values import Ending, MemoryBound, Powers, RunEnding, Tier

POWERS = Powers(Tier.T3, MemoryBound.CGROUP, fork=True, execute=True, scratch=True)
OFFER = Offer(POWERS, (LanguageOffer("python", "3.11", "d"), LanguageOffer("cpp", "12", "e")))
SUITE = StdioSuite((StdioCase("", "1\n"),))
_STATUSES = {
    "pass": Status.PASSED, "wrong": Status.WRONG_ANSWER, "time": Status.TIME_LIMIT, "compile": Status.COMPILE_ERROR,
}  # fmt: skip


@dataclass(eq=False)
class ScriptedJudge:
    """Counts what it was asked, and what of that was killed."""

    asked: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    a_kill: asyncio.Event = field(default_factory=asyncio.Event)

    async def judge(self, submission: Submission, suite: Suite, options: Options = Options()) -> Judgement:  # noqa: B008
        self.asked.append(submission.source)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._act(submission.source)
        except asyncio.CancelledError:
            self.killed.append(submission.source)
            self.a_kill.set()
            raise
        finally:
            self.running -= 1

    async def execute(self, execution: Execution) -> ExecutionResult:
        judgement = await self.judge(Submission(execution.source), SUITE)
        ended = RunEnding(Ending.EXITED, 0, stdout=execution.stdin, tier=Tier.T3)
        return ExecutionResult(
            judgement.status, ended if judgement.score is not None else None, message=judgement.message
        )

    async def _act(self, source: str) -> Judgement:
        words = source.split()
        if words[0] == "sleep":
            await asyncio.sleep(float(words[1]))
            words = words[3:]
        match words[0]:
            case "hang":
                await asyncio.Event().wait()
            case "sandbox-error":
                return Judgement(Status.SANDBOX_ERROR, message="a worker was lost")
            case "flaky" if self.asked.count(source) == 1:
                return Judgement(Status.SANDBOX_ERROR, message="a worker was lost")
            case "flaky":
                return _judgement(Status.PASSED)
            case "raise":
                raise InfraError("the zygote was killed")
            case "refuse":
                raise ConfigError("this tier can't fork", fix="use T3")
            case "break":
                raise ZeroDivisionError("oops")
            case "no-score":
                return Judgement(Status.PASSED, None)
            case "free-score":
                return Judgement(Status.SANDBOX_ERROR, 0.0)
        return _judgement(_STATUSES[words[0]])


def _judgement(status: Status) -> Judgement:
    return Judgement(
        status,
        1.0 if status is Status.PASSED else 0.0,
        (CaseResult(0, status, wall_s=0.01, cpu_s=0.01, max_rss_bytes=1 << 20),),
        1,
        tier=Tier.T3,
        flags=frozenset({Flag.OUTPUT_CAP}) if status is Status.TIME_LIMIT else frozenset(),
        timing=Timing(run_s=0.01, setup_s=0.001),
    )


def dispatcher_of(
    judge: ScriptedJudge,
    *,
    slots: int = 2,
    bounds: Bounds = Bounds(),  # noqa: B008
    memory_bytes: int = 8 << 30,
    offer: Offer = OFFER,
    metrics: RoleMetrics | None = None,
    clock: Callable[[], float] | None = None,
    wall: Callable[[], float] | None = None,
) -> JudgeDispatcher:
    """A dispatcher over a scripted judge, on the running loop's clock."""
    loop = asyncio.get_running_loop()
    return JudgeDispatcher(
        judge,
        offer=offer,
        slots=slots,
        memory=MemoryBudget(memory_bytes),
        executor=judge,
        bounds=bounds,
        meters=Meters(metrics or RoleMetrics("reward", "test"), offer.languages),
        clock=clock or loop.time,
        wall=wall or loop.time,
    )
