"""Output checkers: compare a printed output with the expected one. Pure functions of two texts.

Owns the rules by name. Every rule reads the program's output as hostile: linear time, no number conversion of a token
that is longer than a number has any need to be, not-a-number equal to nothing.
`custom` is no rule of this module: its program runs in a cell of its own (`judge.custom`).
"""

import re
from collections.abc import Callable
from decimal import Decimal

from areal_judge.judge.values import Checker

CUSTOM = "custom"
MAX_NUMBER = 400  # characters of a token that may be a number: a double has 17 digits, its longest decimal form 325
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
_NAN = re.compile(r"[+-]?nan", re.IGNORECASE)


def exact(output: str, expected: str, checker: Checker) -> bool:
    """The same text, to the last line end."""
    return output == expected


def rstrip_lines(output: str, expected: str, checker: Checker) -> bool:
    """The same lines; blanks at their ends and empty lines at the end don't count."""
    return _lines(output) == _lines(expected)


def tokens(output: str, expected: str, checker: Checker) -> bool:
    """The same words in the same order, whatever stands between them."""
    return output.split() == expected.split()


def tokens_float(output: str, expected: str, checker: Checker) -> bool:
    """The same words; two numbers may differ by `absolute`, or by `relative` of the expected one."""
    found, wanted = output.split(), expected.split()
    return len(found) == len(wanted) and all(
        _close(a, b, checker.absolute, checker.relative) for a, b in zip(found, wanted, strict=True)
    )


def lines_unordered(output: str, expected: str, checker: Checker) -> bool:
    """The same lines in any order, each as often."""
    return sorted(_lines(output)) == sorted(_lines(expected))


def last_line(output: str, expected: str, checker: Checker) -> bool:
    """The last line that is not empty is the expected one's."""
    return _last(output) == _last(expected)


def lcb_decimal(output: str, expected: str, checker: Checker) -> bool:
    """LiveCodeBench: stripped lines, as many, each the same or the same decimal numbers (1.0 is 1; no tolerance)."""
    found = [line.strip() for line in output.strip().split("\n")]
    wanted = [line.strip() for line in expected.strip().split("\n")]
    return len(found) == len(wanted) and all(a == b or _same_decimals(a, b) for a, b in zip(found, wanted, strict=True))


RULES: dict[str, Callable[[str, str, Checker], bool]] = {
    rule.__name__: rule for rule in (exact, rstrip_lines, tokens, tokens_float, lines_unordered, last_line, lcb_decimal)
}
NAMES = (*RULES, CUSTOM)


def check(checker: Checker, output: bytes, expected: str) -> bool:
    """Whether an output is right. Raises KeyError for a name that is no rule (the suite's fault)."""
    rule = RULES[checker.name]
    text = output.decode("utf-8", "surrogateescape")  # bytes that are no UTF-8 equal nothing that was expected
    if checker.fold_case:
        text, expected = text.casefold(), expected.casefold()
    return rule(text, expected, checker)


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _last(text: str) -> str:
    lines = _lines(text)
    return lines[-1].strip() if lines else ""


def _is_number(token: str) -> bool:
    return len(token) <= MAX_NUMBER and _NUMBER.fullmatch(token) is not None


def _close(found: str, wanted: str, absolute: float, relative: float) -> bool:
    if _NAN.fullmatch(found) or _NAN.fullmatch(wanted):
        return False
    if found == wanted:
        return True
    if not (_is_number(found) and _is_number(wanted)):
        return False
    a, b = Decimal(found), Decimal(wanted)  # exact: a tolerance of 1e-9 at 1e18 is no tolerance in doubles
    difference = abs(a - b)
    return difference <= Decimal(str(absolute)) or difference <= Decimal(str(relative)) * abs(b)


def _same_decimals(found: str, wanted: str) -> bool:
    mine, theirs = found.split(), wanted.split()
    return (
        len(mine) == len(theirs)
        and all(_is_number(token) for token in (*mine, *theirs))
        and [Decimal(token) for token in mine] == [Decimal(token) for token in theirs]
    )
