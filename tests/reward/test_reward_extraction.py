"""Final answers, quick verdicts and guards: text only."""

from __future__ import annotations

import time

import pytest
from areal.reward.verifiers.extraction import extract, gold_text, last_boxed, quick_verdict
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"so \boxed{1} no, \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{3} and then \boxed{4", "3"),
        (r"<think>\boxed{1}</think> It is \boxed{2}.", "2"),
        ("The answer is 42.", "42"),
        ("Final answer: $x+1$", "x+1"),
        ("work\n#### 1,234", "1,234"),
        ("<answer> 7 </answer>", "7"),
        ("42", "42"),
        ("first line\nx = 5", "x = 5"),
        (r"\boxed {7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed{[0,1\}}", r"[0,1\}"),
        (r"\begin{aligned}a\\\boxed{7}\end{aligned}", "7"),
        ("\\\\boxed{7}", "7"),
        (r"\boxed{$7$}", "7"),
        (r"\boxed{\(7\)}", "7"),
        (r"\boxed{\approx 7}", "7"),
        ("The answer is 42. It is not 43.", "42"),
        ("The answer is 3.5.", "3.5"),
        ("**Answer: A**", "A"),
    ],
)
def test_the_final_answer_is_found(completion: str, answer: str) -> None:
    found = extract(completion)
    assert found is not None
    assert found.text == answer


def test_reasoning_that_was_begun_anew_and_never_ended_holds_no_answer() -> None:
    assert extract(r"<think>a</think> <think>\boxed{7}") is None
    assert extract("<think>" + "so " * 30_000 + r"\boxed{7}") is None
    found = extract(r"<think>a</think> \boxed{8} <think>no, \boxed{7}")
    assert found is not None
    assert found.text == "8"


def test_an_empty_completion_has_no_answer() -> None:
    assert extract("") is None
    assert extract("<think>long</think>  \n ") is None
    assert extract(r"\boxed{}") is None


@given(st.text(alphabet="ab{}\\boxed", max_size=60))
def test_a_box_always_holds_balanced_braces(text: str) -> None:
    inside = last_boxed(text)
    assert inside is None or inside.count("{") == inside.count("}")


def test_hostile_text_is_read_in_linear_time() -> None:
    began = time.process_time()
    for text in (r"\boxed{" * 9_000, "<answer>" * 8_000, "answer is " * 6_000, "answer" + " " * 60_000, "{" * 64_000):
        extract(text)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    ("gold", "text"),
    [(r"\boxed{12}", "12"), ("6*7=42 #### 42", "42"), ("$x$", "x"), (" 5 ", "5"), (r"\frac{1}{2}", r"\frac{1}{2}")],
)
def test_the_expected_answer_loses_its_wrapping(gold: str, text: str) -> None:
    assert gold_text(gold) == text


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("42", "42", True), ("42", "+042", True), ("-0", "0", True), ("42", "43", False), ("1.50", "1.5", True),
        ("0.3333333", "0.3333334", None), ("A", "A", True), ("A", "B", False), ("1/2", "0.5", None), ("x", "x", None),
        ("A", "(A)", True), ("A", r"\text{B}", False), ("A", "AB", None),
        ("42", "4e1", None), ("42", "40 or 42", None), ("1000", "1,000", None),
    ],
)  # fmt: skip
def test_text_alone_decides_only_what_is_certain(gold: str, answer: str, equal: bool | None) -> None:
    assert quick_verdict(gold, answer) is equal


def test_a_last_line_of_numbers_is_one_answer_not_the_last_of_many() -> None:
    listed, said = extract("I tried\n41, 42, 43"), extract("I tried\nit must be 43")
    assert listed is not None
    assert said is not None
    assert (listed.text, listed.marked) == ("41, 42, 43", True)
    assert said.marked is False
