"""Notation that computer algebra misreads, rewritten before it reads: one table, the same for either side.

A rewriting keeps the value. What depends on the other side (a logarithm without a base, an angle in degrees) is
rewritten only where the two sides would otherwise be read by different conventions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

_REPEATING = re.compile(
    r"(?<![\d.])(\d{1,3}(?:,\d{3})+|\d{0,100})\.(\d{0,100})\\(?:overline|bar|dot|overset\{\\cdot\})\s?\{?(\d{1,100})\}?"
)
_PLAIN_LOG = re.compile(r"\\log(?![a-zA-Z])(?!\s*_)")
_LN = re.compile(r"\\ln(?![a-zA-Z])")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree|°)")
_RADIANS = re.compile(r"\\pi(?![a-zA-Z])|π")
_ROUNDED = re.compile(r"(.+?)(?:\\approx(?![a-zA-Z])|≈|\\doteq(?![a-zA-Z]))(.+)", re.DOTALL)
_DECIMAL = re.compile(r"[+-]?(\d{1,100})(?:\.(\d{1,100}))?")


def _fraction(found: re.Match[str]) -> str:
    """0.1666…, written with a bar over the 6, as a fraction."""
    whole, once, repeated = found[1].replace(",", ""), found[2], found[3]
    below = (10 ** len(repeated) - 1) * 10 ** len(once)
    above = int(f"{whole}{once}{repeated}") - int(f"{whole}{once}" or "0")
    return rf"(\frac{{{above}}}{{{below}}})"


def _natural(text: str) -> str:
    return _PLAIN_LOG.sub(r"\\ln ", text)


def _in_radians(text: str) -> str:
    return _DEGREES.sub(r"(\\frac{\1\\pi}{180})", text)


# Where one side is written as the first pattern says and the other as the second, not the other way round, too, the
# second is rewritten.
_CONVENTIONS: tuple[tuple[re.Pattern[str], re.Pattern[str], Callable[[str], str]], ...] = (
    (_LN, _PLAIN_LOG, _natural),
    (_RADIANS, _DEGREES, _in_radians),
)


def readable(text: str) -> str:
    """A text whose repeating decimals are fractions."""
    return _REPEATING.sub(_fraction, text) if "\\" in text else text


def comparable(gold: str, answer: str) -> tuple[str, str]:
    """Both sides by one convention."""
    gold, answer = readable(gold), readable(answer)
    for first, second, rewrite in _CONVENTIONS:
        if first.search(gold) and second.search(answer) and not second.search(gold):
            answer = rewrite(answer)
        elif first.search(answer) and second.search(gold) and not second.search(answer):
            gold = rewrite(gold)
    return gold, answer


def rounded(answer: str) -> tuple[str, Decimal, Decimal] | None:
    """An answer such as 22/7 \\approx 3.14: what stands before the sign, the decimal after it, one unit of its last
    place. None for any other."""
    found = _ROUNDED.fullmatch(answer)
    decimal = _DECIMAL.fullmatch(found[2].strip()) if found is not None else None
    if found is None or decimal is None:
        return None
    return found[1].strip(), Decimal(decimal[0]), Decimal(1).scaleb(-len(decimal[2] or ""))
