"""A sandbox that fails is tried once more; what no judge may answer never leaves. In virtual time."""

from __future__ import annotations

import pytest
from areal_judge.judge.dispatch.dispatcher import JudgeDispatcher
from areal_judge.judge.values import Judgement, Options, Status, Submission
from support.dispatch_scene import assert_no_score, judged, scene
from support.scripted_judge import SUITE, ScriptedJudge


@pytest.mark.parametrize("source", ["sandbox-error", "raise", "break"])
def test_a_failed_sandbox_is_tried_once_more_and_then_says_so_without_a_score(source: str) -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> tuple[Judgement, int]:
        return await dispatcher.judge(Submission(source), SUITE), len(judge.asked)

    judgement, asked = scene(body)
    assert_no_score(judgement, Status.SANDBOX_ERROR)
    assert (asked, judgement.attempt) == (2, 2)


def test_the_second_attempt_counts() -> None:
    judgement = judged("flaky")
    assert (judgement.status, judgement.score, judgement.attempt) == (Status.PASSED, 1.0, 2)


def test_a_time_limit_is_not_tried_again() -> None:
    async def body(dispatcher: JudgeDispatcher, judge: ScriptedJudge) -> int:
        await dispatcher.judge(Submission("time"), SUITE)
        return len(judge.asked)

    assert scene(body) == 1


@pytest.mark.parametrize("source", ["no-score", "free-score"])
def test_a_score_where_none_belongs_never_leaves(source: str) -> None:
    assert_no_score(judged(source), Status.SANDBOX_ERROR)


def test_a_judge_that_never_ends_is_given_up() -> None:
    assert_no_score(judged("hang", options=Options(total_s=5.0)), Status.SANDBOX_ERROR)
