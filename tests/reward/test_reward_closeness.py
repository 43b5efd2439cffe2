"""Numbers are compared relatively, whatever their size."""

from __future__ import annotations

import pytest

pytest.importorskip("math_verify")

from areal.reward.scorers.closeness import differ_somewhere, same_number
from areal.reward.scorers.math import make_judge
from sympy import Float, I, Rational, exp, pi, sin, sqrt, symbols


@pytest.fixture(scope="module")
def judge():
    return make_judge()


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{7^{40}}", r"\frac{1}{5^{60}}"),
        ("7^{-21}", "7^{-22}"),
        (r"\frac{3}{20!}", r"\frac{4}{20!}"),
        (r"1.38\cdot 10^{-23}", r"1.38\cdot 10^{-24}"),
        ("e^{-50}", "e^{-51}"),
        (r"\sin(10^{-20})", "2 \\cdot 10^{-20}"),
        ("3^{200}", "3^{200}+1"),
        (r"6.02\cdot 10^{23}", r"6.022\cdot 10^{23}"),
        ("10^{-8}", "0"),
        (r"\frac{1}{3}", "0.333"),
        (r"\frac{1}{3}", "0.333334"),
        (r"\sqrt{2}", "1.4142"),
        (r"e^{\pi\sqrt{163}}", "640320^3+744"),
        (r"(1, 7^{-21})", r"(1, 7^{-22})"),
        (r"\{2^{-60}, 1\}", r"\{3^{-60}, 1\}"),
        ("y=2x+1", "y=2x+2"),
    ],
)
def test_different_numbers_of_any_size_are_not_equal(judge, gold: str, answer: str) -> None:
    assert judge([gold, answer, True])[0] == "NOT_EQUAL"
    assert judge([answer, gold, True])[0] == "NOT_EQUAL"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{3}", "0.333333"),
        (r"\pi", "3.14159"),
        ("10^{-8}", "0.00000001"),
        (r"2\cdot 10^{-9}", "0.000000002"),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
        ("(x+1)^2", "x^2+2x+1"),
        (r"\sin^2 x+\cos^2 x", "1"),
        (r"\{1,2\}", r"\{2,1\}"),
        (r"\frac{2}{7^{21}}", r"2\cdot 7^{-21}"),
        ("2.0", "2"),
    ],
)
def test_equal_numbers_stay_equal(judge, gold: str, answer: str) -> None:
    assert judge([gold, answer, True])[0] == "EQUAL"


def test_values_beyond_the_reals_are_compared_by_both_parts() -> None:
    assert same_number(sqrt(-4), 2 * I)
    assert not same_number(1 + I * Rational(1, 10**30), 1 + I * Rational(2, 10**30) + exp(1) - exp(1))
    assert not same_number(exp(-50), exp(-50) + exp(-200) * 10**70)
    assert same_number(Float("3.14159"), pi)
    assert not same_number(Float("3.1416"), pi), "five digits stand for themselves"


def test_a_point_refutes_an_equality_and_never_proves_one() -> None:
    x, y = symbols("x y")
    assert differ_somewhere(x**2 + 1, x**2 + 2)
    assert differ_somewhere(x + y, x - y)
    assert not differ_somewhere(sin(x) ** 2, 1 - (1 - sin(x) ** 2))
    assert not differ_somewhere(sqrt(2), sqrt(2))
