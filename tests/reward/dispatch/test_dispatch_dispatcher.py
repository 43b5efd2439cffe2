"""Requests from asking to answer, in virtual time: deadlines, cancellation, overload, faults, shared runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from areal.observe.metrics import RoleMetrics
from areal.reward.dispatch.admission import Bounds
from areal.reward.dispatch.dispatcher import Dispatcher
from areal.reward.dispatch.offer import Runtime
from areal.reward.dispatch.values import Execution, Overrides, Priority, Ticket
from areal.reward.judge.values import (
    OF_PROGRAM,
    RETRYABLE,
    Judgement,
    Options,
    Status,
    StdioCase,
    StdioSuite,
    Submission,
)
from areal.reward.sandbox.values import Limits, Tier
from support import virtual_time
from support.scripted_judge import OFFER, SUITE, ScriptedJudge, dispatcher_of

NO_CACHE = Options(no_cache=True)


def scene(body: Callable[[Dispatcher, ScriptedJudge], Awaitable[Any]], **settings: Any) -> Any:
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


def judged(source: str, suite: Any = SUITE, *, options: Options = NO_CACHE, **settings: Any) -> Judgement:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> Judgement:
        return await dispatcher.judge(Submission(source), suite, options)

    return scene(body, **settings)


def assert_no_score(judgement: Judgement, status: Status) -> None:
    assert judgement.status is status
    assert judgement.score is None
    assert judgement.message
    assert judgement.retryable == (status in RETRYABLE)


@pytest.mark.parametrize(("source", "status", "score"), [
    ("pass", Status.PASSED, 1.0), ("wrong", Status.WRONG_ANSWER, 0.0), ("time", Status.TIME_LIMIT, 0.0),
])  # fmt: skip
def test_what_the_program_did_comes_back_with_its_score(source: str, status: Status, score: float) -> None:
    judgement = judged(f"sleep 2 then {source}")
    assert (judgement.status, judgement.score, judgement.attempt) == (status, score, 1)
    assert judgement.timing.total_s == pytest.approx(2.0)
    assert len(judgement.suite_digest) == 64


@pytest.mark.parametrize("source", ["sandbox-error", "raise", "break"])
def test_a_failed_sandbox_is_tried_once_more_and_then_says_so_without_a_score(source: str) -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> tuple[Judgement, int]:
        return await dispatcher.judge(Submission(source), SUITE), len(judge.asked)

    judgement, asked = scene(body)
    assert_no_score(judgement, Status.SANDBOX_ERROR)
    assert (asked, judgement.attempt) == (2, 2)


def test_the_second_attempt_counts() -> None:
    judgement = judged("flaky")
    assert (judgement.status, judgement.score, judgement.attempt) == (Status.PASSED, 1.0, 2)


def test_a_time_limit_is_not_tried_again() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> int:
        await dispatcher.judge(Submission("time"), SUITE)
        return len(judge.asked)

    assert scene(body) == 1


@pytest.mark.parametrize("source", ["no-score", "free-score"])
def test_a_score_where_none_belongs_never_leaves(source: str) -> None:
    assert_no_score(judged(source), Status.SANDBOX_ERROR)


def test_a_judge_that_never_ends_is_given_up() -> None:
    assert_no_score(judged("hang", options=Options(total_s=5.0)), Status.SANDBOX_ERROR)


def test_a_tier_that_is_not_there_is_refused_at_once() -> None:
    assert_no_score(judged("pass", options=Options(min_tier=Tier.T4)), Status.REJECTED_TIER)
    assert_no_score(judged("refuse"), Status.REJECTED_TIER)


def test_a_language_that_is_not_there_is_refused_with_those_that_are() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> tuple[Judgement, Judgement]:
        unknown = await dispatcher.judge(Submission("pass", "cobol"), SUITE)
        return unknown, await dispatcher.judge(Submission("pass", "cpp"), SUITE)

    weak = replace(OFFER, runtimes=(Runtime("python"), Runtime("cpp", refused="it needs tier T3")))
    unknown, compiled = scene(body, offer=weak)
    assert_no_score(unknown, Status.REJECTED_TIER)
    assert "python" in unknown.message
    assert_no_score(compiled, Status.REJECTED_TIER)
    assert "it needs tier T3" in compiled.message


def test_an_empty_suite_is_the_suites_fault() -> None:
    assert_no_score(judged("pass", StdioSuite(())), Status.GOLD_ERROR)


def test_an_unknown_digest_asks_for_the_suite() -> None:
    judgement = judged("pass", "ab" * 32)
    assert_no_score(judgement, Status.INVALID_REQUEST)
    assert judgement.unknown_suite
    assert "upload" in judgement.message


def test_an_uploaded_suite_is_named_by_its_digest() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> tuple[str, Judgement]:
        digest = dispatcher.put_suite(SUITE)
        return digest, await dispatcher.judge(Submission("pass"), digest)

    digest, judgement = scene(body)
    assert (judgement.status, judgement.suite_digest) == (Status.PASSED, digest)


def test_a_request_larger_than_the_pod_is_invalid() -> None:
    suite = StdioSuite((StdioCase("", "1"),), limits=Limits(memory_bytes=64 << 30))
    judgement = judged("pass", suite)
    assert_no_score(judgement, Status.INVALID_REQUEST)
    assert not judgement.unknown_suite


def test_a_deadline_that_passed_is_not_judged() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> tuple[Judgement, list[str]]:
        late = Ticket(deadline=virtual_time.now() - 1)
        return await dispatcher.judge(Submission("pass"), SUITE, ticket=late), judge.asked

    judgement, asked = scene(body)
    assert_no_score(judgement, Status.DEADLINE_EXCEEDED)
    assert asked == []


def test_what_expires_in_the_queue_is_never_started_and_answers_in_time() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> tuple[Judgement, float, list[str]]:
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
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> tuple[Judgement, list[str]]:
        ticket = Ticket(deadline=virtual_time.now() + 2)
        judgement = await dispatcher.judge(Submission("sleep 10 then pass"), SUITE, ticket=ticket)
        await asyncio.sleep(0.01)
        return judgement, judge.killed

    judgement, killed = scene(body)
    assert_no_score(judgement, Status.DEADLINE_EXCEEDED)
    assert killed == ["sleep 10 then pass"]


def test_cancelling_by_name_kills_the_run_and_says_so() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> tuple[Judgement, bool, bool, list[str]]:
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
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> list[str]:
        running = asyncio.create_task(dispatcher.judge(Submission("sleep 9 then pass"), SUITE))
        waiting = asyncio.create_task(dispatcher.judge(Submission("sleep 8 then pass"), SUITE))
        await asyncio.sleep(1)
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        await asyncio.sleep(0.01)
        return judge.asked

    assert scene(body, slots=1) == ["sleep 9 then pass"]


def test_a_full_queue_turns_away_with_a_hint() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> list[Judgement]:
        asks = [dispatcher.judge(Submission(f"sleep 1 then pass {n}"), SUITE, NO_CACHE) for n in range(8)]
        return await asyncio.gather(*asks)

    answers = scene(body, slots=1, bounds=Bounds(items=4))
    turned_away = [each for each in answers if each.status is not Status.PASSED]
    assert len(turned_away) == 3
    for each in turned_away:
        assert_no_score(each, Status.REJECTED_OVERLOAD)
        assert each.retry_after_s > 0


def test_code_counts_by_bytes_too() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> list[Judgement]:
        asks = [dispatcher.judge(Submission("sleep 1 then pass " + "x" * 4000), SUITE, NO_CACHE) for _ in range(4)]
        return await asyncio.gather(*asks)

    answers = scene(body, slots=1, bounds=Bounds(code_bytes=10_000))
    assert [each.status for each in answers].count(Status.REJECTED_OVERLOAD) == 1


def test_a_full_queue_of_one_tenant_still_takes_in_another() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> tuple[list[Judgement], Judgement]:
        hog = [
            asyncio.create_task(dispatcher.judge(Submission(f"sleep 1 then pass {n}"), SUITE, ticket=Ticket("hog")))
            for n in range(9)
        ]
        await asyncio.sleep(0.5)
        small = await dispatcher.judge(Submission("pass"), SUITE, ticket=Ticket("small"))
        return await asyncio.gather(*hog), small

    answers, small = scene(body, slots=1, bounds=Bounds(items=8))
    assert small.status is Status.PASSED
    statuses = [each.status for each in answers]
    assert statuses.count(Status.REJECTED_OVERLOAD) == 1  # its newest made room
    assert statuses[-1] is Status.REJECTED_OVERLOAD


def test_no_more_run_at_once_than_there_are_slots_and_memory() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> int:
        asks = [dispatcher.judge(Submission(f"sleep 1 then pass {n}"), SUITE) for n in range(12)]
        await asyncio.gather(*asks)
        return judge.most_running

    assert scene(body, slots=3) == 3
    assert scene(body, slots=8, memory_bytes=(2 << 30)) == 3  # 80 % of 2 GB hold three of 512 MB


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


@pytest.mark.parametrize("limits", [{"wall_s": 0.0}, {"processes": 1 << 20}, {"cpu_s": float("nan")}])
def test_limits_that_nobody_can_have_are_invalid(limits: dict[str, float]) -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> tuple[Judgement, Any]:
        judgement = await dispatcher.judge(Submission("pass"), SUITE, overrides=Overrides(limits))
        return judgement, await dispatcher.execute(Execution("pass", limits=replace(Limits(), **limits)))

    judgement, executed = scene(body)
    assert_no_score(judgement, Status.INVALID_REQUEST)
    assert executed.status is Status.INVALID_REQUEST
    assert next(iter(limits)) in judgement.message


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


def test_priorities_share_and_the_small_tenant_comes_soon() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> float:
        large = [
            asyncio.create_task(dispatcher.judge(Submission(f"sleep 1 then pass {n}"), SUITE, ticket=Ticket("large")))
            for n in range(100)
        ]
        await asyncio.sleep(10.5)
        began = virtual_time.now()
        await dispatcher.judge(Submission("pass"), SUITE, ticket=Ticket("small"))
        waited = virtual_time.now() - began
        await asyncio.gather(*large)
        return waited

    assert scene(body, slots=2) <= 1.0


def test_executions_wait_for_the_same_slots() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> tuple[list[Any], int]:
        runs = [dispatcher.execute(Execution(f"sleep 1 then pass {n}", stdin=b"x")) for n in range(4)]
        return await asyncio.gather(*runs), judge.most_running

    executed, most = scene(body, slots=2)
    assert most == 2
    assert [each.ended.stdout for each in executed] == [b"x"] * 4
    assert executed[-1].total_s == pytest.approx(2.0)


def test_an_execution_that_was_not_run_says_why() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> list[Any]:
        return [
            await dispatcher.execute(Execution("raise")),
            await dispatcher.execute(Execution("pass", min_tier=Tier.T4)),
            await dispatcher.execute(Execution("pass", "cobol")),
            await dispatcher.execute(Execution("hang"), Ticket(deadline=virtual_time.now() + 1)),
        ]

    statuses = [(each.status, each.ended) for each in scene(body)]
    assert statuses == [
        (Status.SANDBOX_ERROR, None), (Status.REJECTED_TIER, None), (Status.REJECTED_TIER, None),
        (Status.DEADLINE_EXCEEDED, None),
    ]  # fmt: skip


def test_closing_answers_everybody_without_a_score() -> None:
    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> list[Judgement]:
        asks = [asyncio.create_task(dispatcher.judge(Submission(f"hang {n}"), SUITE)) for n in range(3)]
        await asyncio.sleep(1)
        await dispatcher.close()
        return [*await asyncio.gather(*asks), await dispatcher.judge(Submission("pass"), SUITE)]

    for judgement in scene(body, slots=1):
        assert_no_score(judgement, Status.SANDBOX_ERROR)


def test_the_catalogue_counts_what_happened() -> None:
    metrics = RoleMetrics("reward", "counted", "ns")

    async def body(dispatcher: Dispatcher, judge: ScriptedJudge) -> None:
        for source in ("pass", "pass", "time", "flaky"):
            await dispatcher.judge(Submission(source), SUITE)
        await dispatcher.judge(Submission("pass", "\u2603" * 50), SUITE)
        await dispatcher.execute(Execution("pass"))
        counts = {"runs": 5.0, "zygote_restarts": 1.0, "spare_misses": 2.0}
        for _ in range(2):
            dispatcher.meters.sample(dispatcher.scheduler, virtual_time.now(), counts, {"wall_limit": 3.0})

    scene(body, metrics=metrics)

    def value(name: str, **labels: str) -> float | None:
        common = {"namespace": "ns", "rljob": "counted", "role": "reward"}
        return metrics.registry.get_sample_value(name, {**common, **labels})

    judgements = "areal_sandbox_judgements_total"
    assert value(judgements, status="passed", language="python", tier="T3") == 3
    assert value(judgements, status="time_limit", language="python", tier="T3") == 1
    assert value(judgements, status="rejected_tier", language="other", tier="T3") == 1
    assert value("areal_sandbox_cache_total", result="hit") == 1
    assert value("areal_sandbox_cache_total", result="miss") == 3
    assert value("areal_sandbox_retries_total") == 1
    assert value("areal_sandbox_flags_total", flag="output_cap") == 1
    assert value("areal_sandbox_executions_total", status="passed", language="python", tier="T3") == 1
    assert value("areal_sandbox_wait_seconds_count", priority="train") == 4
    assert value("areal_sandbox_runs_total") == 5
    assert value("areal_sandbox_kills_total", reason="wall_limit") == 3
    assert value("areal_sandbox_queue_depth", priority="train") == 0


def test_every_status_of_the_program_and_no_other_is_a_score() -> None:
    assert not OF_PROGRAM & RETRYABLE
