"""Requests from asking to answer, in virtual time: refusals, overload, slots, classes, executions, counts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from areal.observe.metrics import RoleMetrics
from areal_judge.judge.dispatch.dispatcher import JudgeDispatcher
from areal_judge.judge.dispatch.scheduler import Bounds
from areal_judge.judge.dispatch.values import Execution, LanguageOffer, Priority, RequestOverrides, Ticket
from areal_judge.judge.values import (
    OF_PROGRAM,
    RETRYABLE,
    Judgement,
    Options,
    Status,
    StdioCase,
    StdioSuite,
    Submission,
)
from areal_judge.sandbox.values import Limits, Tier
from support import virtual_time
from support.dispatch_scene import assert_no_score, judged, scene
from support.scripted_judge import OFFER, SUITE, ScriptedJudge


@pytest.mark.parametrize(("source", "status", "score"), [
    ("pass", Status.PASSED, 1.0), ("wrong", Status.WRONG_ANSWER, 0.0), ("time", Status.TIME_LIMIT, 0.0),
])  # fmt: skip
def test_what_the_program_did_comes_back_with_its_score(source: str, status: Status, score: float) -> None:
    judgement = judged(f"sleep 2 then {source}")
    assert (judgement.status, judgement.score, judgement.attempt) == (status, score, 1)
    assert judgement.timing.total_s == pytest.approx(2.0)
    assert len(judgement.suite_digest) == 64


def test_a_tier_that_is_not_there_is_refused_at_once() -> None:
    assert_no_score(judged("pass", options=Options(min_tier=Tier.T4)), Status.REJECTED_TIER)
    assert_no_score(judged("refuse"), Status.REJECTED_TIER)


def test_a_language_that_is_not_there_is_refused_with_those_that_are() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> tuple[Judgement, Judgement]:
        unknown = await dispatcher.judge(Submission("pass", "cobol"), SUITE)
        return unknown, await dispatcher.judge(Submission("pass", "cpp"), SUITE)

    weak = replace(OFFER, runtimes=(LanguageOffer("python"), LanguageOffer("cpp", refused="it needs tier T3")))
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
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> tuple[str, Judgement]:
        digest = dispatcher.put_suite(SUITE)
        return digest, await dispatcher.judge(Submission("pass"), digest)

    digest, judgement = scene(body)
    assert (judgement.status, judgement.suite_digest) == (Status.PASSED, digest)


def test_a_request_larger_than_the_pod_is_invalid() -> None:
    suite = StdioSuite((StdioCase("", "1"),), limits=Limits(memory_bytes=64 << 30))
    judgement = judged("pass", suite)
    assert_no_score(judgement, Status.INVALID_REQUEST)
    assert not judgement.unknown_suite


def test_a_full_queue_turns_away_with_a_hint() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> list[Judgement]:
        asks = [dispatcher.judge(Submission(f"sleep 1 then pass {n}"), SUITE) for n in range(8)]
        return await asyncio.gather(*asks)

    answers = scene(body, slots=1, bounds=Bounds(items=4))
    turned_away = [each for each in answers if each.status is not Status.PASSED]
    assert len(turned_away) == 3
    for each in turned_away:
        assert_no_score(each, Status.REJECTED_OVERLOAD)
        assert each.retry_after_s > 0


def test_code_counts_by_bytes_too() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> list[Judgement]:
        asks = [dispatcher.judge(Submission("sleep 1 then pass " + "x" * 4000), SUITE) for _ in range(4)]
        return await asyncio.gather(*asks)

    answers = scene(body, slots=1, bounds=Bounds(code_bytes=10_000))
    assert [each.status for each in answers].count(Status.REJECTED_OVERLOAD) == 1


def test_no_more_run_at_once_than_there_are_slots_and_memory() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> int:
        asks = [dispatcher.judge(Submission(f"sleep 1 then pass {n}"), SUITE) for n in range(12)]
        await asyncio.gather(*asks)
        return judge.most_running

    assert scene(body, slots=3) == 3
    assert scene(body, slots=8, memory_bytes=(2 << 30)) == 3  # 80 % of 2 GB hold three of 512 MB


@pytest.mark.parametrize("limits", [{"wall_s": 0.0}, {"processes": 1 << 20}, {"cpu_s": float("nan")}])
def test_limits_that_nobody_can_have_are_invalid(limits: dict[str, float]) -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> tuple[Judgement, Any]:
        judgement = await dispatcher.judge(Submission("pass"), SUITE, overrides=RequestOverrides(limits))
        return judgement, await dispatcher.execute(Execution("pass", limits=replace(Limits(), **limits)))

    judgement, executed = scene(body)
    assert_no_score(judgement, Status.INVALID_REQUEST)
    assert executed.status is Status.INVALID_REQUEST
    assert next(iter(limits)) in judgement.message


def test_an_evaluation_comes_soon_whatever_training_waits() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> float:
        training = [
            asyncio.create_task(dispatcher.judge(Submission(f"sleep 1 then pass {n}"), SUITE)) for n in range(100)
        ]
        await asyncio.sleep(10.5)
        began = virtual_time.now()
        await dispatcher.judge(Submission("pass"), SUITE, ticket=Ticket(priority=Priority.EVAL))
        waited = virtual_time.now() - began
        await asyncio.gather(*training)
        return waited

    assert scene(body, slots=2) <= 2.0


def test_executions_wait_for_the_same_slots() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> tuple[list[Any], int]:
        runs = [dispatcher.execute(Execution(f"sleep 1 then pass {n}", stdin=b"x")) for n in range(4)]
        return await asyncio.gather(*runs), judge.most_running

    executed, most = scene(body, slots=2)
    assert most == 2
    assert [each.ended.stdout for each in executed] == [b"x"] * 4
    assert executed[-1].total_s == pytest.approx(2.0)


def test_an_execution_that_was_not_run_says_why() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> list[Any]:
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


def test_the_time_in_the_queue_is_told() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> tuple[Judgement, Any]:
        busy = asyncio.create_task(dispatcher.judge(Submission("sleep 5 then pass"), SUITE))
        await asyncio.sleep(1)
        judged = asyncio.create_task(dispatcher.judge(Submission("sleep 1 then pass"), SUITE))
        await asyncio.sleep(1)
        executed = await dispatcher.execute(Execution("pass"))
        await busy
        return await judged, executed

    judgement, executed = scene(body, slots=1)
    assert (judgement.timing.queued_s, judgement.timing.total_s) == pytest.approx((4.0, 5.0))
    assert (executed.queued_s, executed.total_s) == pytest.approx((4.0, 4.0))


def test_equal_questions_are_judged_each_and_a_cancelled_one_ends_its_run_alone() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> tuple[Judgement, list[str], list[str]]:
        asks = [asyncio.create_task(dispatcher.judge(Submission("sleep 1 then pass"), SUITE)) for _ in range(2)]
        await asyncio.sleep(0.5)
        asks[0].cancel()
        await asyncio.gather(asks[0], return_exceptions=True)
        return await asks[1], judge.asked, judge.killed

    judgement, asked, killed = scene(body)
    assert (judgement.score, len(asked), len(killed)) == (1.0, 2, 1)


def test_closing_answers_everybody_without_a_score() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> list[Judgement]:
        asks = [asyncio.create_task(dispatcher.judge(Submission(f"hang {n}"), SUITE)) for n in range(3)]
        await asyncio.sleep(1)
        await dispatcher.close()
        return [*await asyncio.gather(*asks), await dispatcher.judge(Submission("pass"), SUITE)]

    for judgement in scene(body, slots=1):
        assert_no_score(judgement, Status.SANDBOX_ERROR)


def test_the_catalogue_counts_what_happened() -> None:
    metrics = RoleMetrics("reward", "counted", "ns")

    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> None:
        for source in ("pass", "pass 2", "time", "flaky"):
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
    assert value("areal_sandbox_retries_total") == 1
    assert value("areal_sandbox_flags_total", flag="output_cap") == 1
    assert value("areal_sandbox_executions_total", status="passed", language="python", tier="T3") == 1
    assert value("areal_sandbox_wait_seconds_count", priority="train") == 5
    assert value("areal_sandbox_runs_total") == 5
    assert value("areal_sandbox_kills_total", reason="wall_limit") == 3
    assert value("areal_sandbox_queue_depth", priority="train") == 0


def test_every_status_of_the_program_and_no_other_is_a_score() -> None:
    assert not OF_PROGRAM & RETRYABLE
