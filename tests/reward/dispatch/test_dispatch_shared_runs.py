"""Equal questions share a run and its answer; who asks more urgently, or for longer, changes it. In virtual time."""

from __future__ import annotations

import asyncio

from areal.reward.dispatch.dispatcher import Dispatcher
from areal.reward.dispatch.values import Overrides, Priority, Ticket
from areal.reward.judge.values import (
    Judgement,
    Status,
    Submission,
)
from support import virtual_time
from support.dispatch_scene import NO_CACHE, assert_no_score, scene
from support.scripted_judge import SUITE, ScriptedJudge


def test_equal_questions_are_judged_once_and_remembered() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> tuple[list[Judgement], Judgement, int]:
        group = await asyncio.gather(*(dispatcher.judge(Submission("sleep 1 then pass"), SUITE) for _ in range(16)))
        later = await dispatcher.judge(Submission("sleep 1 then pass\r\n".replace("pass\r\n", "pass")), SUITE)
        return group, later, len(judge.asked)

    group, later, asked = scene(body)
    assert asked == 1
    assert all(each.score == 1.0 and not each.cached for each in group)
    assert later.cached
    assert later.timing.total_s == 0.0


def test_no_cache_judges_anew_each_time() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> int:
        await asyncio.gather(*(dispatcher.judge(Submission("pass"), SUITE, NO_CACHE) for _ in range(3)))
        return len(judge.asked)

    assert scene(body) == 3


def test_other_limits_are_another_question() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> int:
        for wall_s in (1.0, 2.0, 1.0):
            overrides = Overrides({"wall_s": wall_s})
            await dispatcher.judge(Submission("pass"), SUITE, overrides=overrides)
        return len(judge.asked)

    assert scene(body) == 2


def test_a_limit_and_a_fault_are_not_remembered() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> int:
        for _ in range(2):
            await dispatcher.judge(Submission("time"), SUITE)
            await dispatcher.judge(Submission("sandbox-error"), SUITE)
        return len(judge.asked)

    assert scene(body) == 2 + 4


def test_a_shared_run_outlives_the_deadline_of_who_asked_first() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> tuple[Judgement, Judgement, list[str]]:
        now = virtual_time.now()
        source = Submission("sleep 5 then pass")
        hasty = asyncio.create_task(dispatcher.judge(source, SUITE, ticket=Ticket(deadline=now + 2)))
        await asyncio.sleep(0)
        patient = asyncio.create_task(dispatcher.judge(source, SUITE, ticket=Ticket(deadline=now + 20)))
        return await hasty, await patient, judge.asked

    hasty, patient, asked = scene(body)
    assert_no_score(hasty, Status.DEADLINE_EXCEEDED)
    assert (patient.status, len(asked)) == (Status.PASSED, 1)


def test_a_shared_run_that_waits_lives_until_the_later_deadline() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> tuple[Judgement, Judgement]:
        now = virtual_time.now()
        busy = asyncio.create_task(dispatcher.judge(Submission("sleep 5 then pass"), SUITE))
        await asyncio.sleep(0)
        hasty = asyncio.create_task(dispatcher.judge(Submission("pass"), SUITE, ticket=Ticket(deadline=now + 2)))
        await asyncio.sleep(0)
        patient = asyncio.create_task(dispatcher.judge(Submission("pass"), SUITE, ticket=Ticket(deadline=now + 20)))
        await busy
        return await hasty, await patient

    hasty, patient = scene(body, slots=1)
    assert_no_score(hasty, Status.DEADLINE_EXCEEDED)
    assert patient.status is Status.PASSED


def test_an_urgent_caller_pulls_a_shared_run_forward() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> list[str]:
        asks = [asyncio.create_task(dispatcher.judge(Submission("sleep 1 then pass"), SUITE))]
        await asyncio.sleep(0)
        batch = Ticket(priority=Priority.BATCH)
        asks.append(asyncio.create_task(dispatcher.judge(Submission("wrong"), SUITE, ticket=batch)))
        asks += [asyncio.create_task(dispatcher.judge(Submission(f"sleep 1 then pass {n}"), SUITE)) for n in range(20)]
        await asyncio.sleep(0.5)
        soon = Ticket(deadline=virtual_time.now() + 5)
        asks.append(asyncio.create_task(dispatcher.judge(Submission("wrong"), SUITE, ticket=soon)))
        await asyncio.gather(*asks)
        return judge.asked

    assert scene(body, slots=1)[1] == "wrong"
