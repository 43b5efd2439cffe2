"""Numeric equality by relative difference, in the place of math-verify's absolute one.

math-verify 0.9 rounds decimals to six places and cuts what lies below 10⁻¹⁵, so that any two small numbers are equal to
it: 7⁻²¹ and 7⁻²², Boltzmann's constant and a wrong one. Here exact values are equal or not, a decimal of six
significant digits or more equals the value that it rounds or cuts, and all else is compared to fifty digits.
"""

from decimal import Decimal
from typing import Any

from areal.errors import ConfigError

_DIGITS = 60  # that a value is worked out to
_AGREEING = 50  # of them that have to agree: near misses of constants (Ramanujan's) differ after thirty
_ROUNDED = 6  # significant digits from which a decimal stands for the value that it rounds
_PROBES = ((3, 7), (-5, 11), (13, 17), (-19, 23))  # rational points where two expressions are compared first


def install() -> None:
    """Let math-verify compare numbers so, inside tuples, sets and intervals too, and look at points before it
    simplifies. Raises ConfigError for a library in which these functions have no place any more.
    """
    from math_verify import grader
    from sympy import Integer, MatrixBase, Number
    from sympy.matrices.expressions.matexpr import MatrixExpr

    if not (hasattr(grader, "sympy_numeric_eq") and hasattr(grader, "sympy_symbolic_eq")):
        raise ConfigError("this math-verify compares numbers elsewhere", fix="install the version of constraints.txt")
    theirs = getattr(grader.sympy_numeric_eq, "replaced", grader.sympy_numeric_eq)
    simplified = getattr(grader.sympy_symbolic_eq, "replaced", grader.sympy_symbolic_eq)

    def numeric(one: Any, other: Any, float_rounding: int, numeric_precision: int) -> bool:
        sides = (one, other)
        matrices = any(isinstance(side, MatrixBase | MatrixExpr) for side in sides)  # it asks here for each element
        if matrices or all(grader.is_atomic_or_pct_atomic(side, Integer) for side in sides):  # 9 % is 9
            return bool(theirs(one, other, float_rounding, numeric_precision))
        if not (hasattr(one, "free_symbols") and hasattr(other, "free_symbols")):
            return False
        try:
            # 2·10⁻⁹ is read as a product that was left alone: worked out, it is one exact number
            return same_number(*(side if isinstance(side, Number) else side.doit() for side in sides))
        except (TypeError, ValueError, ArithmeticError, AttributeError):
            return False

    def symbolic(one: Any, other: Any) -> bool:
        return not differ_somewhere(one, other) and bool(simplified(one, other))

    numeric.replaced = theirs  # type: ignore[attr-defined]  # another call finds the library's own again
    symbolic.replaced = simplified  # type: ignore[attr-defined]
    grader.sympy_numeric_eq, grader.sympy_symbolic_eq = numeric, symbolic


def same_number(one: Any, other: Any) -> bool:
    """Whether two sympy values without symbols are the same number; False where that can't be said."""
    from sympy import N, Rational, im, re

    exact = [_exact(side) for side in (one, other)]
    if exact[0] is not None and exact[1] is not None:
        pairs = ((exact[0], exact[1], other), (exact[1], exact[0], one))
        return bool(exact[0] == exact[1]) or any(_stands_for(value, near, text) for value, near, text in pairs)
    if one.free_symbols or other.free_symbols:
        return False  # the library simplifies their difference next
    for decimal, value in ((one, other), (other, one)):
        if _significant(decimal) is not None:
            number = N(value, _DIGITS)
            return bool(number.is_real) and _stands_for(Rational(str(number)), _exact(decimal), decimal)
    a, b = N(one, _DIGITS), N(other, _DIGITS)
    if not (a.is_number and b.is_number) or not (a.is_finite and b.is_finite):
        return bool(a == b)
    largest = max(abs(part(side)) for part in (re, im) for side in (a, b))
    apart = max(abs(part(a) - part(b)) for part in (re, im))
    return bool(apart <= largest * Rational(1, 10**_AGREEING))


def differ_somewhere(one: Any, other: Any) -> bool:
    """Whether two expressions of the same symbols surely differ: at some rational point they do. Never proves equality.

    Simplifying a difference takes seconds, evaluating it a millisecond.
    """
    from sympy import Expr, N, Rational
    from sympy.concrete.expr_with_limits import ExprWithLimits

    if not (isinstance(one, Expr) and isinstance(other, Expr)) or one.has(ExprWithLimits) or other.has(ExprWithLimits):
        return False  # a sum of a billion terms is not evaluated here
    if not (symbols := sorted(one.free_symbols | other.free_symbols, key=str)):
        return False
    for top, bottom in _PROBES:
        point = {symbol: Rational(top + 2 * place, bottom) for place, symbol in enumerate(symbols)}
        a, b = (N(side.subs(point), 30) for side in (one, other))
        known = a.is_number and b.is_number and a.is_finite and b.is_finite
        if known and abs(a - b) > (abs(a) + abs(b)) * Rational(1, 10**12):
            return True
    return False


def _exact(value: Any) -> Any:
    """The rational number that a literal is, decimals read digit by digit; None for anything else."""
    from sympy import Float, Rational

    return value if isinstance(value, Rational) else Rational(str(value)) if isinstance(value, Float) else None


def _significant(value: Any) -> int | None:
    """Significant digits of a decimal as it was written; None for what is no decimal."""
    from sympy import Float

    if not isinstance(value, Float):
        return None
    return len(str(value).lower().partition("e")[0].lstrip("+-").replace(".", "").strip("0"))


def _stands_for(value: Any, near: Any, decimal: Any) -> bool:
    """Whether a decimal, `near` as a rational, is `value` rounded or cut at the decimal's last place."""
    from sympy import Abs, N, Rational

    places = _significant(decimal)
    if places is None or places < _ROUNDED or value == 0 or near == 0:
        return False
    unit = Rational(10) ** (Decimal(str(N(Abs(near), 20))).adjusted() - places + 1)
    off = Abs(near - value)
    return bool(off < unit and (Abs(near) <= Abs(value) or off <= unit / 2))
