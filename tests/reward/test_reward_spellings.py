"""One answer in every spelling that people use, bare and boxed, and hedges spelt alike: by the real verifier."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from areal.reward.scorer_pool.pool import PoolSize
from areal.reward.verifiers.math import MathVerifier
from areal.reward.verifiers.normalisation import prose, readable, tellings
from areal.reward.verifiers.units import without_unit
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("math_verify")

QUANTITIES = [
    "24 chairs", r"24\text{ chairs}", r"24\ \mathrm{chairs}", "24 chairs in the room", r"\$24", "€24", "24 €", "£24",
    r"24 \text{ cm}^2", "24 cm^2", r"24\,\mathrm{m/s}", "24 miles per hour", "24 km/h", r"\approx 24", "about 24",
    "24.",
    r"\textbf{24}", r"24^\circ\text{F}", r"24 \text{ degrees}", "24 square units",
]  # fmt: skip
WAYS = [r"\boxed{%s}", "<answer>%s</answer>", "#### %s", "The answer is %s.", "**Answer: %s**", "So:\n%s"]
HEDGES = [
    "24 thousand", r"24 \text{ thousand}", "24 dozen", "24 and a half", "24 or 25", "25 or 24", "24 chairs or 25",
    "24 chairs or tables", "not 24", "24 million dollars", "24 percent", "24 chairs, 25 tables",
    "24 chairs and 25 tables", "$24$ or $25$", "24, 25", r"24 \pm 1", "x=24, y=25", "24 = 25", "25 = 24",
    "a: 24, b: 25", "x<5: 24", "24 025", "24 is wrong", "24 k", "24x", "about 24 to 25", "24-25", "24 to 25", "24/25",
    "24:25", "24; 25", "24 halves", "24 hundred", "no solution: 24", "between 23 and 24", "less than 24", "at most 24",
    "fewer than 24 chairs", r"25 = \begin{pmatrix}1\end{pmatrix} = 24", r"\begin{pmatrix}1\\2\end{pmatrix} = 24",
    "24 hundredths", "24 squared", "24 cubic", "24 feet 3 inches", "24 times two", "24 times as many", "24 more",
    r"24 \text{ per } 5", "24 pairs minus one", "2 4",
]  # fmt: skip
SAME = [
    ("1200", "1 200"), ("1200", r"1\,200"), ("1200", "1{,}200"), ("1200", r"1,\!200"), ("1200", "1~200"),
    ("e^2", r"\mathrm{e}^2"), (r"\mathrm{e}^2", "e^2"), ("2i", r"2\mathrm{i}"), (r"3+4\mathrm{i}", "3+4i"),
    (r"\mathbf{x}+1", "x+1"), (r"2\mathrm{\pi}", r"2\pi"), (r"\int f\,\mathrm{d}x", r"\int f\,dx"),
    ("7:30", "07:30"), ("7:30 p.m.", r"7:30 \text{ p.m.}"), ("7:30 pm", "7:30 PM"),
    (r"[0,\infty)", r"\{x \mid x\ge 0\}"), (r"\{x \mid x \geq 0\}", r"[0,\infty)"), (r"-1<x\le 1:(-1,1]", "(-1,1]"),
    ("(-1,1]", r"-1<x \le 1: (-1,1]"), (r"\{x \mid x \neq 1\}", r"(-\infty,1)\cup(1,\infty)"),
    (r"x \neq \pm 5", r"(-\infty,-5)\cup(-5,5)\cup(5,\infty)"), (r"\emptyset", r"\text{No solution}"),
    (r"d=\sqrt{83}, M=(1,2)", r"M=(1,2), d=\sqrt{83}"), ("-1./3", r"-\frac13"), (".5", "1/2"),
    ("np.arcsin(10/13)", r"\arcsin\frac{10}{13}"), (r"1 \pm \sqrt2, 3", r"3, 1+\sqrt{2}, 1-\sqrt2"),
    (r"\varnothing", r"\emptyset"), (r"\frac{1}{2}|x|", r"\frac12\mid x\mid"), ("2^{10}", "2**10"),
    (r"\begin{bmatrix}2&1\\3&0\end{bmatrix}^{-1}=\begin{bmatrix}0&1/3\\1&-2/3\end{bmatrix}",
     r"\begin{pmatrix}0&\frac13\\1&-\frac23\end{pmatrix}"),
]  # fmt: skip
OTHER = [
    ("(-1,1]", r"-2<x\le 1: (-1,1]"), ("(-1,1]", "x<5: (-1,1]"), ("7:30", r"7:30 \text{ p.m.}"), ("7:30 p.m.", "7:30"),
    ("7:30 p.m.", r"7:30 \text{ a.m.}"), ("7:30", "14:60"), ("200", "1 200"), ("d=1,M=(2,3)", "d=(2,3),M=1"),
    (r"\begin{pmatrix}3\\4\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}=\begin{pmatrix}3\\4\end{pmatrix}"),
    ("x", r"\hat{x}"), (r"\emptyset", r"\{0\}"), (r"[0,\infty)", r"\{x \mid x> 0\}"), ("2", r"2\mathrm{i}"),
    ("2", r"2\text{e}"), ("1-x+x^2", r"1-x+x^2-\cdots"), ("33.3", r"\frac{100}{3}"),
]  # fmt: skip
SENTENCES = [
    "It is 24 or 25",
    "It is 25 or 24",
    "It is not 24",
    "It is 24 thousand",
    "The answer is 24. No, the answer is 25.",
]


@pytest.fixture
async def verifier() -> AsyncIterator[MathVerifier]:
    made = MathVerifier("answer", check_s=10.0, size=PoolSize(least=2, most=2))
    yield made
    await made.stop()


async def statuses(verifier: MathVerifier, item, pairs: list[tuple[str, str]]) -> list[str]:
    results = await verifier.score([item(answer, "math", answer=gold) for gold, answer in pairs])
    return [result.verdict.status for result in results]


@pytest.mark.component
async def test_a_quantity_is_its_number_in_every_spelling_and_place(verifier: MathVerifier, item) -> None:
    pairs = [("24", way % spelling) for spelling in QUANTITIES for way in WAYS]
    pairs += [(spelling, r"\boxed{24}") for spelling in QUANTITIES]
    found = zip(pairs, await statuses(verifier, item, pairs), strict=True)
    assert [pair for pair, status in found if status != "EQUAL"] == []


@pytest.mark.component
async def test_no_hedge_passes_in_any_spelling_or_place(verifier: MathVerifier, item) -> None:
    pairs = [("24", way % hedge) for hedge in HEDGES for way in WAYS] + [("24", sentence) for sentence in SENTENCES]
    found = zip(pairs, await statuses(verifier, item, pairs), strict=True)
    passed = [pair for pair, status in found if status == "EQUAL"]
    assert passed == []


@pytest.mark.component
async def test_notation_is_read_on_either_side_and_keeps_its_value(verifier: MathVerifier, item) -> None:
    same = [(gold, rf"\boxed{{{answer}}}") for gold, answer in SAME]
    other = [(gold, rf"\boxed{{{answer}}}") for gold, answer in OTHER]
    found = zip(same, await statuses(verifier, item, same), strict=True)
    assert [pair for pair, status in found if status != "EQUAL"] == []
    found = zip(other, await statuses(verifier, item, other), strict=True)
    passed = [pair for pair, status in found if status == "EQUAL"]
    assert passed == []


@pytest.mark.component
async def test_a_rounded_expected_answer_stands_for_what_it_rounds_only_when_the_job_says_so(item) -> None:
    rounds = MathVerifier("answer", gold_rounds=True, check_s=10.0, size=PoolSize(least=1, most=1))
    pairs = [
        ("33.3", r"\boxed{\frac{100}{3}}"), ("33.3", r"\boxed{33.34}"), ("1.41", r"\boxed{\sqrt{2}}"),
        ("33.3", r"\boxed{33.4}"), ("33", r"\boxed{\frac{100}{3}}"), ("1.41", r"\boxed{1.4}"),
        ("33.3", r"\boxed{33.3, 33.4}"),
    ]  # fmt: skip
    try:
        assert await statuses(rounds, item, pairs) == ["EQUAL"] * 3 + ["NOT_EQUAL"] * 4
    finally:
        await rounds.stop()


@given(st.text(alphabet="x1.,:$\\{}()|<>=±*_ abcdmnor", max_size=60))
def test_any_text_can_be_read(text: str) -> None:
    assert isinstance(readable(text), str)
    assert tellings(readable(text))
    assert prose(text) >= 0


@given(st.integers(0, 999), st.sampled_from(["chairs", "cm", "dollars", "miles per hour"]), st.integers(0, 999))
def test_a_unit_is_cut_only_where_no_second_number_follows(number: int, unit: str, second: int) -> None:
    assert without_unit(f"{number} {unit}") == str(number)
    assert without_unit(f"{number} {unit} {second}") != str(number)
    assert without_unit(f"{number} {unit} or {second}") != str(number)
