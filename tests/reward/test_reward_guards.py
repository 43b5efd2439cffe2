"""What computer algebra is spared, and what it must still get."""

from __future__ import annotations

import pytest
from areal.reward.verifiers.guards import ANSWER_CHARS, too_complex
from hypothesis import given
from hypothesis import strategies as st
from reward.reward_math_pairs import DIFFERENT, EQUAL


@pytest.mark.parametrize(
    "answer",
    [
        "9" * 401, "2^{10001}", "2**99999", "9^{9^{9}}", "x^{x^{x^x}}", r"\left(9^9\right)^{9^{99}}", "1001!", "(3!)!",
        "(600+600)!", "5!!", r"\binom{5000}{2}", r"\binom{10^9}{3}", "(" * 41 + "x" + ")" * 41, r"\sum_{i=1}^{10} i",
        r"\int_0^1 x dx", r"\Gamma(10^9)", "x+" * 150 + "x", "1" + " " * ANSWER_CHARS, "(1+x)^{2000}", "1e99999",
        "9 ^ { 9 ^ { 9 } }",
    ],
)  # fmt: skip
def test_what_would_keep_algebra_busy_is_refused(answer: str) -> None:
    assert too_complex("7", answer)


@pytest.mark.parametrize(
    "answer",
    [
        r"\frac{1}{2}", "e^{x^2}", "2^{2^3}", "5!", r"\binom{10}{2}", r"(x+1)^2", "10^{9}", r"\sqrt{2}",
        "x^2+y^2+z^2+w^2", r"\frac{(2n)!}{n!n!}", r"300 \cdot 4!", "(a+b)^{10}", "(-1)^{2023}", "6.02e23",
        "(2^{10})^{10}", "e^{-x^2}+x^2", r"\binom{n}{k}", "2^{1000}-1",
    ],
)  # fmt: skip
def test_ordinary_answers_pass(answer: str) -> None:
    assert too_complex("7", answer) is None


@pytest.mark.parametrize("answer", sorted({text for pair in [*EQUAL, *DIFFERENT] for text in pair}))
def test_no_answer_of_the_equality_set_is_refused(answer: str) -> None:
    assert too_complex("7", answer) is None


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\sum_{i=1}^n i", r"\sum_{j=1}^n j"), (r"\int x dx", r"\int t dt"), (r"\Gamma(5)", r"\Gamma(4+1)"),
        ("(x+1)^{2000}", "(1+x)^{2000}"), ("7!!", "7!!"), (r"\frac{1}{(3+2)!}", "(3+2)!"),
    ],
)  # fmt: skip
def test_what_the_expected_answer_needs_is_allowed(gold: str, answer: str) -> None:
    assert too_complex(gold, answer) is None


@given(st.text(alphabet="09x^{}()*!+\\ ,eE", max_size=300))
def test_any_text_gets_an_answer(text: str) -> None:
    assert too_complex("7", text) is None or too_complex("7", text)
