"""What computer algebra would drop or misread: refused or rewritten as text."""

from __future__ import annotations

from decimal import Decimal

import pytest
from areal.reward.verifiers.math import another_answer
from areal.reward.verifiers.normalisation import comparable, readable, rounded
from hypothesis import given
from hypothesis import strategies as st
from reward.reward_math_pairs import EQUAL


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("42", r"42 \text{ or 43}"), ("42", r"42 \text{(or 43)}"), ("42", r"42 \text{, 43}"), ("42", r"42 \mathrm{43}"),
        ("42", r"42 \text{ or forty-three}"), ("42", r"42 \text{ is wrong}"), ("42", r"42 \textsf{ {maybe} }"),
        ("42", r"42 \approx 43 \approx 44"), ("42", r"42 \mod 43"), ("42", r"42 \text{ thousand}"),
        ("42", r"\text{not} = 42"), ("42", r"\text{Area} = 42 \text{ or so}"),
        ("101", "101_2"), ("101", r"(101)_{\text{two}}"), ("101", r"101 \text{ (base 2)}"), ("101_2", "101_3"),
        ("5", r"5\%"), ("5", r"500\%"), ("5", r"5 \text{ percent}"), ("5", "5'"), ("5", r"5^{\prime}"),
        ("(1,2)", r"\{1,2\}"), (r"\{1,2\}", r"\left(1, 2\right)"), ("(1,2)", r"x \in \left\{1,2\right\}"),
    ],
)  # fmt: skip
def test_another_answer_in_dropped_notation_is_seen(gold: str, answer: str) -> None:
    assert another_answer(gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("42", r"42\text{ cm}"), ("42", r"\text{42}"), ("42", r"42 \text{ m2}"), ("42", r"5 \text{ m/s}"),
        ("42", r"42 \text{ square feet}"), ("42", r"\text{Total Area} = 42 \text{ cm}"),
        ("42", r"42 \text{ different ways}"), (r"x \text{ or 43}", r"42 \text{ or 43}"), ("1,2", r"1 \text{ or } 2"),
        ("101_2", r"101 \text{ (base 2)}"), ("101_2", "101"), (r"25\%", r"25\%"), ("f'(2)", "f'(2)"),
        ("2x", "f'(x)=2x"),
        ("3", "x_1=3"), (r"\{1,2\}", r"\{2,1\}"), ("(1,2)", "(x,y)=(1,2)"), (r"\{(1,2)\}", "(1,2),(3,4)"),
        (r"3 \mod 7", r"10 \mod 7"), (r"\frac{22}{7}", r"\frac{22}{7} \approx 3.14"), ("42", "42"),
    ],
)  # fmt: skip
def test_units_and_what_the_expected_answer_has_itself_are_allowed(gold: str, answer: str) -> None:
    assert another_answer(gold, answer) is None


def test_no_answer_of_the_equality_set_is_refused() -> None:
    assert [pair for pair in EQUAL if another_answer(*pair)] == []


@pytest.mark.parametrize(
    ("text", "fraction"),
    [
        (r"0.\overline{3}", r"(\frac{3}{9})"), (r"-0.1\overline{6}", r"-(\frac{15}{90})"),
        (r".\bar{3}", r"(\frac{3}{9})"),
        (r"1,234.\overline{5}", r"(\frac{11111}{9})"), (r"\overline{AB}", r"\overline{AB}"), ("0.3", "0.3"),
        (r"1,0.\overline{3}", r"1,(\frac{3}{9})"),
    ],
)  # fmt: skip
def test_repeating_decimals_are_fractions(text: str, fraction: str) -> None:
    assert readable(text) == fraction


@pytest.mark.parametrize(
    ("first", "second", "rewritten"),
    [
        (r"\ln 2", r"\log 2", (r"\ln 2", r"\ln  2")),
        (r"\ln 2", r"\log_2 4", (r"\ln 2", r"\log_2 4")),
        ("2", r"\log 100", ("2", r"\log 100")),
        (r"\ln 2 + \log 3", r"\log 3", (r"\ln 2 + \log 3", r"\log 3")),
        (r"\frac{\pi}{6}", r"30^\circ", (r"\frac{\pi}{6}", r"(\frac{30\pi}{180})")),
        ("30", "30°", ("30", "30°")),
    ],
)
def test_one_convention_holds_for_both_sides_whichever_is_expected(
    first: str, second: str, rewritten: tuple[str, str]
) -> None:
    assert comparable(first, second) == rewritten
    assert comparable(second, first) == rewritten[::-1]


def test_a_rounding_has_a_value_and_a_last_place() -> None:
    assert rounded(r"\sqrt{2} \approx 1.414") == (r"\sqrt{2}", Decimal("1.414"), Decimal("0.001"))
    assert rounded("42 ≈ 43") == ("42", Decimal(43), Decimal(1))
    assert rounded(r"42 \approx x") is None


@given(st.text(alphabet="0,.5\\{}()_'%≈ a", max_size=80), st.text(alphabet="0,.5\\{}()_'%≈ a", max_size=80))
def test_any_two_texts_get_an_answer(gold: str, answer: str) -> None:
    assert another_answer(gold, answer) is None or another_answer(gold, answer)
    assert all(isinstance(side, str) for side in comparable(gold, answer))
