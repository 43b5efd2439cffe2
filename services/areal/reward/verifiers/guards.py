"""Complexity guards: refuse answers that would keep computer algebra busy for ever.

Pure text work, linear in a text of bounded length. A refusal is a verdict (TOO_COMPLEX, score 0), so every guard gives
way where the expected answer needs the same thing. What slips through is killed at the deadline: guards save that time.
"""

import re
from math import comb

from areal.reward.verifiers.normalisation import prose

ANSWER_CHARS = 2_000
MOST_TOKENS = 600  # of an expected answer that such a long one may be given to
MAX_DIGITS, MAX_TOKENS, MAX_NESTING = 400, 200, 40
MAX_EXPONENT, MAX_TOWER, MAX_FACTORIAL, MAX_MONOMIALS = 10_000, 2, 1_000, 1_000
_WORDS = 4  # more are a derivation
_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+|\S")
_LAYOUT = re.compile(r"\\(?:left|right|bigl?|bigr|Bigl?|Bigr|displaystyle)(?![a-zA-Z])|\\[,;:! ]|\s+|\{\}")
_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1},}}")
_SCIENTIFIC = re.compile(r"\d\.?[eE][+-]?(\d+)")
_EXPONENT = re.compile(r"\^[{(]*[+-]?(\d+)")
_NESTED_POWER = re.compile(r"\^[{(]*(\d+)\^[{(]*(\d+)")  # 9^{9^{9}}
_POWER_OF_POWER = re.compile(r"\^[{(]*(\d+)[})]+\^[{(]*(\d+)")  # (9^{9})^{9}
_FACTORIAL = re.compile(r"(\d+)!")
_BRACKET_FACTORIAL = re.compile(r"[)}\]]!")
_BINOMIAL = re.compile(r"\\[dt]?binom|\\choose|\bbinomial\(")
_BRACKET_POWER = re.compile(r"[)\]]\^\{?(\d+)")
_HEAVY = re.compile(r"\\(?:sum|prod|int|iint|iiint|oint|lim|Gamma|zeta)(?![a-zA-Z])|[∑∏∫]")
_CLOSERS = {")": "(", "}": "{", "]": "["}


def too_complex(gold: str, answer: str) -> str | None:
    """Why an answer must not be given to computer algebra; None when it may."""
    if len(answer) > ANSWER_CHARS:
        return f"longer than {ANSWER_CHARS} characters"
    due = len(_TOKEN.findall(gold))
    most = max(MAX_TOKENS, 2 * due) if due <= MOST_TOKENS and prose(gold) <= _WORDS else MAX_TOKENS
    if len(_TOKEN.findall(answer)) > most:
        return f"more than {most} tokens"
    if _nesting(answer) > MAX_NESTING:
        return f"nested deeper than {MAX_NESTING}"
    if _HEAVY.search(answer) and not _HEAVY.search(gold):
        return "a sum, product, integral or limit where the expected answer has none"
    text = _flat(answer)
    if _LONG_NUMBER.search(text):
        return f"a number of more than {MAX_DIGITS} digits"
    return _too_large(_flat(gold), text)


def _flat(text: str) -> str:
    """Without what could hide a power: \\left, spaces, two ways to write one."""
    return _LAYOUT.sub("", text).replace("**", "^")


def _too_large(gold: str, text: str) -> str | None:
    """Powers, factorials and binomials whose value, or whose expansion, is too large to write down."""
    if any(int(digits) > MAX_DIGITS for digits in _SCIENTIFIC.findall(text)) or any(
        int(digits) > MAX_EXPONENT for digits in _EXPONENT.findall(text)
    ):
        return f"an exponent above {MAX_EXPONENT}"
    if _tower_height(text) > MAX_TOWER or any(_power_above(int(b), int(e)) for b, e in _NESTED_POWER.findall(text)):
        return "a tower of powers"
    if any(int(inner) * int(outer) > MAX_EXPONENT for inner, outer in _POWER_OF_POWER.findall(text)):
        return f"an exponent above {MAX_EXPONENT}"
    if any(int(digits) > MAX_FACTORIAL for digits in _FACTORIAL.findall(text)) or ("!!" in text and "!!" not in gold):
        return f"a factorial above {MAX_FACTORIAL}"
    for found in _BRACKET_FACTORIAL.finditer(text):
        inside = _bracket(text, found.start())
        if not inside.isdigit() and (inside not in gold or "!" in inside) and not _symbolic(inside):
            return f"a factorial above {MAX_FACTORIAL}"
    if _BINOMIAL.search(text) and any(len(number) > 3 for number in re.findall(r"\d+", text.replace("1000", ""))):
        return f"a binomial above {MAX_FACTORIAL}"
    if _BINOMIAL.search(text) and re.search(r"[\^!]", text) and not _BINOMIAL.search(gold):
        return "a binomial among powers or factorials"
    for power in _BRACKET_POWER.finditer(text):
        terms = 1 + len(re.findall(r"(?<!^)[+-]|&", _bracket(text, power.start())))
        exponent = int(power[1])
        if terms > 1 and comb(exponent + terms - 1, terms - 1) > MAX_MONOMIALS and f"^{{{exponent}}}" not in gold:
            return f"a power of a sum with more than {MAX_MONOMIALS} terms"
    return None


def _tower_height(text: str) -> int:
    """Depth of nested exponents: 1 for x^2, 2 for e^{x^2}."""
    highest = level = above = last = 0
    raised = False  # the next token begins an exponent, of height `above`
    outer: list[tuple[int, int]] = []  # level outside an open bracket, and height of the bracket itself
    for token in _TOKEN.findall(text):
        if token == "^":
            above = max(level, last) + 1
            highest = max(highest, above)
            raised = True
        elif token in "({[":
            outer.append((level, above if raised else level))
            level = last = outer[-1][1]
            raised = False
        elif token in ")}]":
            level, last = outer.pop() if outer else (0, 0)
        elif not (raised and token in "+-"):
            last = above if raised else level
            raised = False
    return highest


def _power_above(base: int, exponent: int) -> bool:
    """Whether base^exponent, itself an exponent, exceeds the limit. Never computes a large power."""
    return base > 1 and exponent * (base.bit_length() - 1) >= MAX_EXPONENT.bit_length()


def _bracket(text: str, end: int) -> str:
    """What stands in the bracket that closes at `end`."""
    closes, opens = text[end], _CLOSERS[text[end]]
    depth = 0
    for at in range(end, -1, -1):
        if text[at] == closes:
            depth += 1
        elif text[at] == opens:
            depth -= 1
            if depth == 0:
                return text[at + 1 : end]
    return text[:end]


def _symbolic(text: str) -> bool:
    """Whether there is a variable in it, so that nobody computes its factorial."""
    return re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", text)) is not None


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "({[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")}]":
            depth -= 1
    return deepest
