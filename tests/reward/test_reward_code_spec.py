"""What a job file says of programs agrees with those who run them."""

from __future__ import annotations

from typing import get_args

from areal.spec import code_tiers
from areal.spec.code_tiers import LEAST_TIER_OF_LANGUAGE, LEAST_TIER_OF_NEED, Language, SuiteFormat, TierName
from areal.spec.serving import COMPILE_S, CodeReward
from areal_judge.judge.dispatch import scheduler
from areal_judge.judge.dispatch.dispatcher import COMPILE_S as DISPATCH_COMPILE_S
from areal_judge.judge.formats.registry import FORMATS
from areal_judge.judge.languages.table import COMPILE_LIMITS, LANGUAGES
from areal_judge.judge.values import Scoring
from areal_judge.sandbox.host.tiers import CAPABILITIES
from areal_judge.sandbox.values import Limits, Tier


def test_languages_and_their_tiers_are_those_of_the_toolchains():
    assert {name: language.tier.name for name, language in LANGUAGES.items()} == dict(LEAST_TIER_OF_LANGUAGE)
    assert set(get_args(Language)) == set(LANGUAGES)


def test_needs_have_the_tiers_of_the_sandbox():
    tier = {name: least.name for name, (least, _) in CAPABILITIES.items()}
    assert dict(LEAST_TIER_OF_NEED) == {"fork": tier["fork"], "scratch": tier["scratch"], "compiler": tier["execute"]}


def test_formats_tiers_and_scorings_are_those_of_the_judge():
    assert get_args(SuiteFormat) == ("auto", *FORMATS)
    assert get_args(TierName) == tuple(Tier.__members__)
    assert set(get_args(CodeReward.model_fields["scoring"].annotation)) == {each.value for each in Scoring}


def test_the_time_for_a_compilation_is_the_compiler_s_limit():
    assert COMPILE_LIMITS.wall_s == DISPATCH_COMPILE_S == COMPILE_S


def test_the_room_of_a_pod_is_counted_as_the_service_counts_it():
    assert code_tiers.MEMORY_SHARE == scheduler.MEMORY_SHARE
    assert Limits().memory_bytes == code_tiers.RUN_BYTES
    assert COMPILE_LIMITS.memory_bytes == code_tiers.COMPILE_BYTES
    compiled = {name for name, language in LANGUAGES.items() if language.compiled}
    assert compiled == {name for name in LANGUAGES if code_tiers.bytes_of_one(name, "auto") > code_tiers.RUN_BYTES}
