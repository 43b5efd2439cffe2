"""The math verifier: equality, guards, deadlines. All processes here are real."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from areal.reward.scorer_pool.pool import PoolSize
from areal.reward.verifiers.math import MathVerifier
from areal.v1 import common_pb2 as common

pytest.importorskip("math_verify")
pytestmark = pytest.mark.component


@pytest.fixture
async def verifier() -> AsyncIterator[MathVerifier]:
    made = MathVerifier("answer", check_s=1.5, size=PoolSize(least=1, most=1))
    yield made
    await made.stop()


PAIRS = [
    ("42", r"\boxed{42}", "EQUAL"),
    (r"\frac{1}{2}", r"\boxed{0.5}", "EQUAL"),
    (r"2\sqrt{3}", r"\boxed{2\sqrt{3}}", "EQUAL"),
    (r"2\sqrt{3}", r"\boxed{2}", "NOT_EQUAL"),  # bare, this expected answer would be read as 2
    (r"\frac{\pi}{4}", r"The answer is $\pi/4$.", "EQUAL"),
    ("(1,2)", r"\boxed{(1, 2)}", "EQUAL"),
    ("(1,2)", r"\boxed{(2, 1)}", "NOT_EQUAL"),
    ("x^2+2x+1", r"\boxed{(x+1)^2}", "EQUAL"),
    ("1000", r"\boxed{1,000}", "EQUAL"),
    ("7", r"\boxed{8}", "NOT_EQUAL"),
    ("9 (apples)", r"\boxed{9}", "EQUAL"),  # as ASDiv has it: what is counted
    ("9 (apples)", r"\boxed{8}", "NOT_EQUAL"),
    ("3 (mod 4)", r"\boxed{3}", "NOT_EQUAL"),
    ("2 (thousand)", r"\boxed{2}", "NOT_EQUAL"),
    ("7", "I don't know", "NO_ANSWER"),
    ("7", "", "NO_ANSWER"),
    ("7", r"\boxed{9^{9^{9^{9}}}}", "TOO_COMPLEX"),
]


async def test_answers_are_compared_as_mathematics(verifier: MathVerifier, item) -> None:
    results = await verifier.score([item(answer, "math", answer=gold) for gold, answer, _ in PAIRS])
    assert [result.verdict.status for result in results] == [status for _, _, status in PAIRS]
    assert [result.verdict.score for result in results] == [float(status == "EQUAL") for _, _, status in PAIRS]
    assert results[0].verdict.method == "FAST"
    assert results[1].verdict.method == "SYMPY"
    (again,) = await verifier.score([item(PAIRS[1][1], "math", answer=PAIRS[1][0])])
    assert again.verdict.method == "CACHED"


async def test_numbers_in_the_row_are_answers_too(verifier: MathVerifier, item) -> None:
    right, wrong = await verifier.score([item("42", "math", answer=[42]), item("41", "math", answer=["42"])])
    assert (right.verdict.score, wrong.verdict.score) == (1.0, 0.0)  # as OlympiadBench has it: a list of one
    right, wrong = await verifier.score([item("42", "math", answer=42), item("41", "math", answer=42)])
    assert (right.verdict.score, wrong.verdict.score) == (1.0, 0.0)


async def test_a_row_without_a_usable_answer_is_a_fault_of_the_data_not_a_zero(verifier: MathVerifier, item) -> None:
    missing, empty, unreadable = await verifier.score(
        [item("1", "math"), item("1", "math", answer=" "), item("1", "math", answer="]]}{")]
    )
    for result in (missing, empty, unreadable):
        assert result.fault.kind == common.FAULT_KIND_DATA
    assert "GOLD_UNPARSEABLE" in unreadable.fault.message


async def test_an_answer_that_never_ends_is_killed_and_the_others_are_scored(verifier: MathVerifier, item) -> None:
    poison = item(r"\boxed{\sqrt{10^{9999}+1}}", "math", answer="7")
    good = [item(rf"\boxed{{\frac{{{2 * n}}}{{2}}}}", "math", answer=str(n)) for n in range(1, 6)]
    results = await verifier.score([poison, *good, poison])
    assert [result.verdict.status for result in results] == ["TIMEOUT", *["EQUAL"] * 5, "TIMEOUT"]
    assert verifier._pool.kills == 1  # both questions were the same one
