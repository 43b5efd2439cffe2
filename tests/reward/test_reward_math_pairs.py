"""Which answers are the same, which are not, and tricks that must not pass: by the real verifier."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from areal.reward.scorer_pool.pool import PoolSize
from areal.reward.verifiers.math import MathVerifier
from reward.reward_math_pairs import DIFFERENT, EQUAL, HACKS

pytest.importorskip("math_verify")
pytestmark = pytest.mark.component


@pytest.fixture
async def verifier() -> AsyncIterator[MathVerifier]:
    made = MathVerifier("answer", check_s=10.0, size=PoolSize(least=2, most=2))
    yield made
    await made.stop()


async def test_the_same_mathematics_is_equal_however_it_is_written(verifier: MathVerifier, item) -> None:
    results = await verifier.score([item(rf"\boxed{{{answer}}}", "math", answer=gold) for gold, answer in EQUAL])
    pairs = zip(EQUAL, results, strict=True)
    assert [(*pair, result.verdict.status) for pair, result in pairs if result.verdict.status != "EQUAL"] == []
    assert all(result.verdict.score == 1.0 for result in results)


async def test_what_differs_is_not_equal_however_near(verifier: MathVerifier, item) -> None:
    results = await verifier.score([item(rf"\boxed{{{answer}}}", "math", answer=gold) for gold, answer in DIFFERENT])
    pairs = zip(DIFFERENT, results, strict=True)
    assert [(*pair, result.verdict.status) for pair, result in pairs if result.verdict.status != "NOT_EQUAL"] == []


async def test_no_trick_passes_and_each_gets_a_verdict(verifier: MathVerifier, item) -> None:
    results = await verifier.score([item(completion, "math", answer=gold) for _, gold, completion in HACKS])
    answers = {name: result for (name, _, _), result in zip(HACKS, results, strict=True)}
    assert len(answers) == len(HACKS)
    assert [name for name, result in answers.items() if result.WhichOneof("outcome") != "verdict"] == []
    assert [name for name, result in answers.items() if result.verdict.score != 0.0] == []
