"""Tiers, as far as a job file knows them: what is refused, what is accepted, and what people are told."""

from __future__ import annotations

from typing import get_args

import pytest
from areal.spec import check, explain, load_job
from areal.spec.code_tiers import LEAST_TIER_OF_LANGUAGE, LEAST_TIER_OF_NEED, Language, Need
from areal.spec.problems import SpecError
from areal.spec.serving import CodeReward
from spec_corpus import CORPUS

QUICKSTART = CORPUS / "accepted" / "quickstart.yaml"


def rules(*overrides: str) -> dict[str, str]:
    job = load_job(QUICKSTART, ["recipe=null", "reward.verifier=code", *overrides])
    return {finding.rule: finding.message for finding in check(job)}


def test_every_language_and_every_need_has_a_tier():
    assert set(LEAST_TIER_OF_LANGUAGE) == set(get_args(Language))
    assert set(LEAST_TIER_OF_NEED) == set(get_args(Need))


@pytest.mark.parametrize("tier", ["T2", "T3", "T4"])
@pytest.mark.parametrize("language", get_args(Language))
def test_a_language_is_refused_below_its_tier_and_nowhere_else(tier, language):
    refused = "code-tier" in rules(f"reward.code.minTier={tier}", f"reward.code.language={language}")
    assert refused == (tier < LEAST_TIER_OF_LANGUAGE[language])


def test_a_job_that_asks_for_t1_is_told_to_use_t2():
    with pytest.raises(SpecError, match="use T2, the weakest sandbox"):
        rules("reward.code.minTier=T1")


@pytest.mark.parametrize("need", get_args(Need))
def test_a_need_is_named_with_the_tier_that_has_it(need):
    message = rules(f"reward.code.needs=[{need}]")["code-tier"]
    assert f"needs {need} ({LEAST_TIER_OF_NEED[need]})" in message
    assert rules(f"reward.code.needs=[{need}]", "reward.code.minTier=T3") == {}


def test_whoever_allows_no_sandbox_says_so_twice():
    assert set(rules("reward.code.minTier=T0")) == {"code-unsafe"}
    assert rules("reward.code.minTier=T0", "reward.code.allowUnsafe=true") == {}
    assert set(rules("reward.code.allowUnsafe=true")) == {"code-unsafe-unused"}


def test_a_job_without_the_block_has_its_defaults():
    job = load_job(QUICKSTART, ["recipe=null", "reward.verifier=code"])
    assert job.spec.reward.code is None
    assert job.spec.reward.programs == CodeReward()
    assert job.spec.reward.programs.min_tier == "T2"


def test_a_score_of_a_program_may_take_its_total_and_the_compilation():
    spec = load_job(QUICKSTART, ["recipe=null", "reward.verifier=code", "reward.code.totalSeconds=30"]).spec
    assert spec.reward.longest_score_s == 50
    assert load_job(QUICKSTART).spec.reward.longest_score_s == 10


def test_people_are_told_how_programs_are_judged():
    job = load_job(QUICKSTART, ["recipe=null", "reward.verifier=code", "reward.code.scoring=fraction"])
    said = dict(explain(job))["programs"]
    assert said == "python, run in tier T2 or above; the share of tests that pass; at most 20 s an answer"
    unsafe = load_job(QUICKSTART, ["reward.verifier=code", "reward.code.minTier=T0", "reward.code.allowUnsafe=true"])
    assert "WITHOUT a sandbox" in dict(explain(unsafe))["programs"]
    assert "programs" not in dict(explain(load_job(QUICKSTART)))
