"""Deadlines and cancellation: every caller has an answer in time, and what nobody waits for is ended."""

from __future__ import annotations

import asyncio

import pytest
from areal_judge.judge.dispatch.dispatcher import JudgeDispatcher
from areal_judge.judge.dispatch.values import Ticket
from areal_judge.judge.values import Judgement, Status, Submission
from support import virtual_time
from support.dispatch_scene import assert_no_score, scene
from support.scripted_judge import SUITE, ScriptedJudge


def test_a_deadline_that_passed_is_not_judged() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> tuple[Judgement, list[str]]:
        late = Ticket(deadline=virtual_time.now() - 1)
        return await dispatcher.judge(Submission("pass"), SUITE, ticket=late), judge.asked

    judgement, asked = scene(body)
    assert_no_score(judgement, Status.DEADLINE_EXCEEDED)
    assert asked == []


def test_what_expires_in_the_queue_is_never_started_and_answers_in_time() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> tuple[Judgement, float, list[str]]:
        first = asyncio.create_task(dispatcher.judge(Submission("sleep 10 then pass"), SUITE))
        await asyncio.sleep(0)
        began = virtual_time.now()
        second = await dispatcher.judge(Submission("pass"), SUITE, ticket=Ticket(deadline=began + 3))
        took = virtual_time.now() - began
        await first
        return second, took, judge.asked

    judgement, took, asked = scene(body, slots=1)
    assert_no_score(judgement, Status.DEADLINE_EXCEEDED)
    assert took == pytest.approx(3.0)
    assert asked == ["sleep 10 then pass"]


def test_a_deadline_kills_what_runs() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> tuple[Judgement, list[str]]:
        ticket = Ticket(deadline=virtual_time.now() + 2)
        judgement = await dispatcher.judge(Submission("sleep 10 then pass"), SUITE, ticket=ticket)
        await asyncio.sleep(0.01)
        return judgement, judge.killed

    judgement, killed = scene(body)
    assert_no_score(judgement, Status.DEADLINE_EXCEEDED)
    assert killed == ["sleep 10 then pass"]


def test_cancelling_by_name_kills_the_run_and_says_so() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> tuple[Judgement, bool, bool, list[str]]:
        asking = asyncio.create_task(
            dispatcher.judge(Submission("hang"), SUITE, ticket=Ticket(tenant="a", request_id="r1"))
        )
        await asyncio.sleep(1)
        other = dispatcher.cancel("b", "r1")
        found = dispatcher.cancel("a", "r1")
        judgement = await asking
        await asyncio.sleep(0.01)
        return judgement, found, other, judge.killed

    judgement, found, other, killed = scene(body)
    assert_no_score(judgement, Status.CANCELLED)
    assert (found, other, killed) == (True, False, ["hang"])


def test_a_cancelled_caller_is_gone_wherever_it_was() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> list[str]:
        running = asyncio.create_task(dispatcher.judge(Submission("sleep 9 then pass"), SUITE))
        waiting = asyncio.create_task(dispatcher.judge(Submission("sleep 8 then pass"), SUITE))
        await asyncio.sleep(1)
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        await asyncio.sleep(0.01)
        return judge.asked

    assert scene(body, slots=1) == ["sleep 9 then pass"]
