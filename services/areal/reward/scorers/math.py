"""Mathematical equality by math-verify, without its timeouts: whoever runs this kills the process at a deadline."""

from __future__ import annotations

import logging
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

from areal.distribution import install
from areal.errors import ConfigError
from areal.reward.scorers import closeness
from areal.reward.verifiers.normalisation import comparable, rounded

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
    """Imports math-verify (about a second) and returns what judges `[gold, answer, boxed]` as `[status, detail]`."""
    try:
        from math_verify import LatexExtractionConfig, parse, verify
        from sympy import Abs, And, Equality, Expr, N, Rational
    except ImportError:
        raise ConfigError("the math verifier needs math-verify", fix=install("reward")) from None
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns once a call that its timeouts are off
    closeness.install()

    whole = [LatexExtractionConfig(boxed_match_priority=0)]  # without its fallback: the last number of any text

    def readable(text: str, boxed: bool) -> Any:
        """What the library read; nothing when it could only keep the text, which equals nothing but itself."""
        if boxed:
            found = parse(f"\\boxed{{{text}}}", extraction_config=whole, parsing_timeout=None)
        else:
            found = parse(text, parsing_timeout=None)
        return found if any(not isinstance(one, str) for one in found) else []

    def false_statement(found: Any) -> bool:
        """Whether an answer such as 41=42 is wrong whatever was asked: only its right side would be compared."""
        stated = [part for one in found for part in (one.args if isinstance(one, And) else (one,))]
        numeric = [one for one in stated if isinstance(one, Equality) and not one.free_symbols]
        return any(bool(Abs(N(one.lhs - one.rhs)) > _ROUNDING * (1 + Abs(N(one.rhs)))) for one in numeric)

    def within(gold: Any, value: Decimal, last_place: Decimal) -> bool:
        """Whether a decimal is an expected number, rounded or cut at the decimal's last place."""
        number = next((one for one in gold if not isinstance(one, str)), None)
        number = number.rhs if isinstance(number, Equality) else number
        if not isinstance(number, Expr) or number.free_symbols:
            return False
        expected, given, unit = N(number), Rational(str(value)), Rational(str(last_place))
        beyond = Abs(given) - Abs(expected)
        return bool(And(Abs(given - expected) < unit, beyond <= unit / 2))

    @lru_cache(_GOLDS)
    def gold_of(text: str) -> Any:
        # Always boxed: bare text such as 2\sqrt{3} would be read as its first number.
        return readable(text, boxed=True)

    def judge(payload: list[Any]) -> list[str]:
        gold_text, answer, boxed = payload
        try:
            gold_text, answer = comparable(gold_text, answer)
            gold = gold_of(gold_text)
            if not gold:
                return ["GOLD_UNPARSEABLE", ""]
            if rounded(gold_text) is None and (approximation := rounded(answer)) is not None:
                answer, value, last_place = approximation
                if not within(gold, value, last_place):
                    return ["NOT_EQUAL", "its decimal is no rounding of the expected answer"]
            predicted = readable(answer, boxed)
            if not predicted:
                return ["UNPARSEABLE" if boxed else "NO_ANSWER", ""]
            equal = verify(gold, predicted, timeout_seconds=None) and not false_statement(predicted)
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
