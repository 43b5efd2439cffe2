"""A dispatcher with a scripted judge behind it, played in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from areal_judge.judge.dispatch.dispatcher import JudgeDispatcher
from areal_judge.judge.values import RETRYABLE, Judgement, Options, Status, Submission
from support import virtual_time
from support.scripted_judge import SUITE, ScriptedJudge, dispatcher_of

PLAIN = Options()


def scene(body: Callable[[JudgeDispatcher, ScriptedJudge], Awaitable[Any]], **settings: Any) -> Any:
    """Runs `body` with a dispatcher in virtual time; afterwards no slot is held and nothing waits."""

    async def play() -> Any:
        judge = ScriptedJudge()
        dispatcher = dispatcher_of(judge, **settings)
        result = await body(dispatcher, judge)
        await asyncio.sleep(0.001)
        scheduler = dispatcher.scheduler
        assert (scheduler.running, len(scheduler.queue), scheduler.memory.held_bytes) == (0, 0, 0)
        assert judge.running == 0
        await dispatcher.close()
        return result

    return virtual_time.run(play())


def judged(source: str, suite: Any = SUITE, *, options: Options = PLAIN, **settings: Any) -> Judgement:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> Judgement:
        return await dispatcher.judge(Submission(source), suite, options)

    return scene(body, **settings)


def assert_no_score(judgement: Judgement, status: Status) -> None:
    assert judgement.status is status
    assert judgement.score is None
    assert judgement.message
    assert judgement.retryable == (status in RETRYABLE)
