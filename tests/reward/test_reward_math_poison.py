"""Answers that are meant to stall, fill or break the judge: each ends as a verdict and costs the others nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from areal.reward.scorer_pool.pool import PoolSize
from areal.reward.verifiers.math import MathVerifier

pytest.importorskip("math_verify")
pytestmark = pytest.mark.component

BOXES = r"\boxed{1}" * 2_000
ATTACKS = {
    "tower": "9^{9^{9^{9}}}", "tower by stars": "9**9**9**9", "short tower": "9^{9^{9}}",
    "tower in brackets": "((9^9)^9)^9^9", "hidden tower": r"\left(9^{9}\right)^{9^{99}}",
    "powers of powers": "((((2^{999})^{999})^{999})^{999})^{999}", "negative exponent": "2^{-99999999}",
    "exponentials": r"\exp(\exp(\exp(\exp(9))))", "full width": "９^{９^{９^９}}", "factorial": "100000!",
    "nested factorials": "((9!)!)!", "many factorials": "3!!!!!!", "factorial of a power": "(10^{9})!",
    "factorial of a product": r"(99 \cdot 99 \cdot 99)!", "factorial of a sum": "(500+500+9000)!",
    "power of a factorial": "999!^{999}", "gamma": r"\Gamma(10^9)", "sum": r"\sum_{i=1}^{10^{10}} \frac{1}{i}",
    "product": r"\prod_{i=1}^{1000000} i", "sum sign": "∑_{i=1}^{9999999} i",
    "integral": r"\int_0^1 \sin(\sin(\sin(x^x))) dx", "limit": r"\lim_{x\to 0} \frac{\sin(\sin x)}{x^x}",
    "derivative": r"\frac{d^{50}}{dx^{50}} \sin(x^x)", "integer": "9" * 5_000, "decimal": "0." + "3" * 1_900,
    "fraction of giants": rf"\frac{{{'7' * 380}}}{{{'3' * 380}}}", "period": rf"0.\overline{{{'1234567' * 40}}}",
    "scientific": "1e999999999", "scientific capital": "1.5E+99999999", "boxes": BOXES,
    "binomial": r"\binom{1000000}{500000}", "binomial of powers": r"\binom{10^9}{10^8}",
    "chosen": r"{1000000 \choose 500000}", "binomial power": r"\binom{999}{500}^{999}",
    "brackets": "(" * 500 + "1" + ")" * 500, "fractions in fractions": r"\frac{1}{" * 39 + "2" + "}" * 39,
    "roots in roots": r"\sqrt{" * 39 + "2" + "}" * 39, "bars": "|" * 90 + "1" + "|" * 90, "expansion": "(1+x)^{9000}",
    "wide expansion": "(x+y+z+w)^{60}", "nested expansion": "(((x^{99}+1)^{99}+1)^{99}+1)^{99}",
    "imaginary power": "(1+i)^{9999}", "matrix power": r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^{9999}",
    "giant root": r"\sqrt{10^{9999}+1}", "surds": "".join(rf"(1+\sqrt{{{n}}})" for n in range(2, 20)),
    "partial fractions": "+".join(rf"\frac{{1}}{{x+{n}}}" for n in range(18)),
    "sines": "+".join(rf"\sin({n})" for n in range(30)), "minus signs": "-" * 150 + "x", "commas": "," * 199,
    "equals": "=" * 199, "backslashes": "\\" * 199, "half fractions": r"\frac" * 190, "unclosed": r"\left(" * 30,
    "braces": "{" * 64_000, "import": "__import__('os').system('sleep 9')",
    "subclasses": "().__class__.__bases__[0].__subclasses__()", "generator": "(lambda: (yield))()",
    "exec": "exec('while 1: pass')", "sympify": "Integer(9)**9**9**9", "function": "factorial(99999999)",
    "nul": "4\x002", "surrogates": "\ud83d".encode("utf-8", "replace").decode() * 50,
}  # fmt: skip


@pytest.fixture
async def verifier() -> AsyncIterator[MathVerifier]:
    made = MathVerifier("answer", check_s=1.5, size=PoolSize(least=2, most=2))
    yield made
    await made.stop()


async def test_every_attack_ends_as_a_verdict_that_is_no_pass(verifier: MathVerifier, item) -> None:
    boxed = [item(rf"so \boxed{{{attack}}}", "math", answer="7") for attack in ATTACKS.values()]
    bare = [item(attack, "math", answer="7") for attack in ATTACKS.values()]
    results = await verifier.score([*boxed, *bare])
    named = list(zip([*ATTACKS, *ATTACKS], results, strict=True))
    assert [(name, result.fault.message) for name, result in named if result.WhichOneof("outcome") != "verdict"] == []
    assert [name for name, result in named if result.verdict.score != 0.0] == []


async def test_attacks_that_the_guards_must_let_through_are_killed(verifier: MathVerifier, item) -> None:
    gold = r"\sum_{i=1}^{n} i"  # sums are this answer's language
    results = await verifier.score(
        [
            item(r"\boxed{\sum_{i=1}^{10^{9}} \sin(i^i)}", "math", answer=gold),
            item(r"\boxed{\sum_{i=1}^{n} i}", "math", answer=gold),
        ]
    )
    assert results[0].verdict.status in ("TIMEOUT", "TOO_COMPLEX", "NOT_EQUAL", "UNPARSEABLE")
    assert results[1].verdict.status == "EQUAL"


async def test_ten_poison_answers_among_a_hundred_cost_ten_kills_and_no_right_answer(
    verifier: MathVerifier, item
) -> None:
    good = [item(rf"\boxed{{\frac{{{2 * n}}}{{2}}}}", "math", answer=str(n)) for n in range(1, 91)]
    poison = [item(rf"\boxed{{\sqrt{{10^{{9999}}+{n}}}}}", "math", answer="7") for n in range(1, 11)]
    mixed = [*good]
    for place, each in enumerate(poison):
        mixed.insert(place * 10, each)
    results = await verifier.score(mixed)
    answers = {index: result.verdict.status for index, result in enumerate(results)}
    poisoned = {place * 10 for place in range(10)}
    assert [answers[index] for index in poisoned] == ["TIMEOUT"] * 10
    assert {answers[index] for index in answers.keys() - poisoned} == {"EQUAL"}
    assert verifier._pool.kills == 10  # nothing is tried twice, nobody else is killed
