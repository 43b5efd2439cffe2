"""Which judgements are remembered, and for which questions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.reward.dispatch.results_cache import ResultsCache, key_of
from areal.reward.dispatch.values import Overrides
from areal.reward.judge.values import (
    CaseResult,
    Checker,
    Integrity,
    Judgement,
    Options,
    Scoring,
    Status,
    Submission,
    Timing,
)
from areal.reward.sandbox.values import Tier

PASSED = Judgement(Status.PASSED, 1.0, (CaseResult(0, Status.PASSED),), 1, timing=Timing(run_s=1.0))
BASE = ("r", Tier.T3, Submission("print(1)\n"), "s", Options(), Overrides())


@pytest.mark.parametrize("status", list(Status))
def test_only_deterministic_statuses_are_remembered(status: Status) -> None:
    cache = ResultsCache()
    cache.put("k", Judgement(status, 0.0))
    lasting = {"PASSED", "WRONG_ANSWER", "COMPILE_ERROR", "RUNTIME_ERROR"}
    assert (cache.get("k") is not None) == (status.value in lasting)


@pytest.mark.parametrize("status", [Status.TIME_LIMIT, Status.MEMORY_LIMIT, Status.SANDBOX_ERROR])
def test_a_share_that_a_limit_had_a_part_in_is_not_remembered(status: Status) -> None:
    cases = (CaseResult(0, Status.WRONG_ANSWER), CaseResult(1, status))
    assert not ResultsCache().put("k", Judgement(Status.WRONG_ANSWER, 0.0, cases, 2))


def test_what_is_remembered_says_so_and_took_no_time() -> None:
    cache = ResultsCache()
    assert cache.put("k", PASSED)
    found = cache.get("k")
    assert found == replace(PASSED, cached=True, timing=Timing())


def test_the_least_recently_used_goes_first() -> None:
    cache = ResultsCache(2)
    cache.put("a", PASSED)
    cache.put("b", PASSED)
    cache.get("a")
    cache.put("c", PASSED)
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]
    assert len(cache) == 2


@pytest.mark.parametrize("source", ["print(1)\r\n", "print(1)\r"])
def test_line_ends_make_no_other_question(source: str) -> None:
    assert key_of(*BASE) == key_of("r", Tier.T3, Submission(source), "s", Options(), Overrides())


@pytest.mark.parametrize(
    "other",
    [
        ("r2", *BASE[1:]),
        ("r", Tier.T2, *BASE[2:]),
        (*BASE[:2], Submission("print(1) \n"), *BASE[3:]),
        (*BASE[:2], Submission("print(1)\n", "bash"), *BASE[3:]),
        (*BASE[:2], Submission("print(1)\n\ud800"), *BASE[3:]),
        (*BASE[:3], "s2", *BASE[4:]),
        (*BASE[:4], Options(scoring=Scoring.FRACTION), Overrides()),
        (*BASE[:4], Options(run_all=True), Overrides()),
        (*BASE[:4], Options(reveal=True), Overrides()),
        (*BASE[:4], Options(min_integrity=Integrity.SPLIT), Overrides()),
        (*BASE[:5], Overrides({"wall_s": 1.0})),
        (*BASE[:5], Overrides(checker=Checker("exact"))),
    ],
)
def test_whatever_a_judgement_depends_on_makes_another_question(other: tuple) -> None:
    assert key_of(*BASE) != key_of(*other)


def test_parts_of_a_question_do_not_run_into_each_other() -> None:
    one = key_of("r", Tier.T3, Submission("b", "a"), "c", Options(), Overrides())
    two = key_of("r", Tier.T3, Submission("", "ab"), "c", Options(), Overrides())
    assert one != two
