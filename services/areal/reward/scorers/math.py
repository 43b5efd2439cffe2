"""Mathematical equality by math-verify, without its timeouts: whoever runs this kills the process at a deadline."""

import logging
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

from areal.distribution import install
from areal.errors import ConfigError
from areal.reward.scorers import closeness
from areal.reward.verifiers.normalisation import DECIMAL, SERIES, comparable, rounded, tellings

_ROUNDING = 1e-6  # of 1/3=0.333333
_SELF_TEST = (
    ("1/2", "0.5", "EQUAL"),
    ("x^2+1", "1+x^2", "EQUAL"),
    ("(1,2)", "(1,2)", "EQUAL"),
    ("\\frac{1}{7^{21}}", "\\frac{1}{7^{22}}", "NOT_EQUAL"),  # a rule of `closeness` each from here
    ("\\frac{1}{3}", "0.333333", "EQUAL"),
    ("x^2+1", "x^2+2", "NOT_EQUAL"),
)
_GOLDS = 4096  # parsed expected answers kept; a group repeats its own for every sample


def make_judge() -> Callable[[Any], Any]:
    """Imports math-verify, about a second. What it returns judges `[gold, answer, boxed]` as `[status, detail]`.

    A fourth part that is true lets an expected decimal stand for what it rounds (`reward.goldRounds`).
    """
    try:
        from math_verify import LatexExtractionConfig, parse, verify
        from sympy import Abs, And, Equality, Expr, FiniteSet, MatrixBase, N, Number, Rational, S, Set, Unequality
        from sympy.core.relational import Relational
    except ImportError:
        raise ConfigError("the math verifier needs math-verify", fix=install("reward")) from None
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns once a call that its timeouts are off
    closeness.install()

    whole = [LatexExtractionConfig(boxed_match_priority=0)]  # without its fallback: the last number of any text

    def readable(text: str, boxed: bool) -> Any:
        """What the library read; nothing when it could only keep the text, which equals nothing but itself."""
        if SERIES.search(text):
            return []  # its first terms would stand for the whole
        if boxed:
            found = parse(f"\\boxed{{{text}}}", extraction_config=whole, parsing_timeout=None)
        else:
            found = parse(text, parsing_timeout=None)
        return [as_set(one) for one in found] if any(not isinstance(one, str) for one in found) else []

    def as_set(one: Any) -> Any:
        """The set that inequalities with ≠ among them allow: the library compares only those with < and > as sets."""
        conditions = tuple(one) if isinstance(one, FiniteSet) else (one,)
        if not any(isinstance(each, Unequality) for each in conditions) or not all(map(comparing, conditions)):
            return one
        whole = And(*conditions)
        return whole.as_set() if len(whole.free_symbols) == 1 and whole not in (S.true, S.false) else one

    def comparing(one: Any) -> bool:
        return isinstance(one, And) or (isinstance(one, Relational) and all(isinstance(at, Expr) for at in one.args))

    def false_statement(found: Any) -> bool:
        """Whether an answer such as 41=42 is wrong whatever was asked: only its right side would be compared."""
        stated = [part for one in found for part in (one.args if isinstance(one, And) else (one,))]
        numeric = [one for one in stated if isinstance(one, Equality) and not one.free_symbols]
        differences = [(N(Abs(one.lhs - one.rhs)), 1 + Abs(N(one.rhs))) for one in numeric if all_numbers(one)]
        return any(bool(off > _ROUNDING * size) for off, size in differences if off.is_number and off.is_comparable)

    def all_numbers(statement: Any) -> bool:
        return all(isinstance(side, Expr) and not side.has(MatrixBase) for side in statement.args)

    def within(gold: Any, value: Decimal, last_place: Decimal) -> bool:
        """Whether a decimal is an expected number, rounded or cut at the decimal's last place."""
        number = next((one for one in gold if not isinstance(one, str)), None)
        number = number.rhs if isinstance(number, Equality) else number
        if not isinstance(number, Expr) or number.free_symbols:
            return False
        expected, given, unit = N(number), Rational(str(value)), Rational(str(last_place))
        beyond = Abs(given) - Abs(expected)
        return bool(And(Abs(given - expected) < unit, beyond <= unit / 2))

    def is_rounding(gold_text: str, predicted: Any) -> bool:
        """Whether the expected answer is a decimal that an answer rounds or cuts to: 33.3 for 100/3."""
        decimal = DECIMAL.fullmatch(gold_text)
        if decimal is None or not decimal[2] or any(isinstance(one, FiniteSet) for one in predicted):
            return False
        return within(predicted, Decimal(gold_text), Decimal(1).scaleb(-len(decimal[2])))

    def same(gold: Any, answer: Any) -> bool:
        """Whether two values are equal. The library compares an expected inequality with a set, not the reverse."""
        turned = any(isinstance(one, Set) for one in gold) and any(isinstance(one, Relational | And) for one in answer)
        return bool(
            verify(gold, answer, timeout_seconds=None) or (turned and verify(answer, gold, timeout_seconds=None))
        )

    def agrees(gold: Any, told: Any) -> bool:
        """Whether what an answer says on its way is the same, where it is a value at all."""
        if not any(isinstance(one, Number | MatrixBase | Set | Relational | And) for one in told):
            return True
        try:
            return same(gold, told) or same(told, gold)
        except (TypeError, ValueError):
            return True

    @lru_cache(_GOLDS)
    def gold_of(text: str) -> Any:
        # Always boxed: bare text such as 2\sqrt{3} would be read as its first number.
        return readable(text, boxed=True)

    def judge(payload: list[Any]) -> list[str]:
        gold_text, answer, boxed, *options = payload
        try:
            gold_text, answer = comparable(gold_text, answer)
            *given, gold_text = tellings(gold_text)
            if not (gold := gold_of(gold_text)):
                return ["GOLD_UNPARSEABLE", ""]
            *before, answer = tellings(answer)
            if before != given and any(not agrees(gold, readable(one, boxed=True)) for one in before):
                return ["NOT_EQUAL", "it tells another value before"]
            if rounded(gold_text) is None and (approximation := rounded(answer)) is not None:
                answer, value, last_place = approximation
                if not within(gold, value, last_place):
                    return ["NOT_EQUAL", "its decimal is no rounding of the expected answer"]
            if not (predicted := readable(answer, boxed)):
                return ["UNPARSEABLE" if boxed else "NO_ANSWER", ""]
            equal = same(gold, predicted) or (any(options) and is_rounding(gold_text, predicted))
            equal = equal and (false_statement(gold) or not false_statement(predicted))
        except (MemoryError, RecursionError) as error:
            return ["TOO_COMPLEX", type(error).__name__]
        except Exception as error:  # the library answers False for what it can't read; anything else is no verdict
            return ["ERROR", f"{type(error).__name__}: {error}"[:300]]
        return ["EQUAL" if equal else "NOT_EQUAL", ""]

    # The first calls build grammars and caches. They also prove that the library works: it answers every failure of its
    # own, a missing parser included, with "not equal".
    for gold_text, answer, status in _SELF_TEST:
        if (found := judge([gold_text, answer, True])[0]) != status:
            raise ConfigError(
                f"math-verify finds {answer} against {gold_text} {found}, not {status}",
                fix="reinstall it with its parser: pip install --force-reinstall 'math-verify[antlr4_13_2]'",
            )
    return judge
