"""From a completion to its final answer, and what can be said of an answer without computer algebra.

Pure text work. Finds the last `\\boxed{…}` after the reasoning, or what follows "the answer is", `####` or stands in
`<answer>` tags, or the last line. Refuses answers that would keep computer algebra busy for ever.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

TAIL_CHARS = 64_000  # an answer stands at the end
ANSWER_CHARS = 2_000
_INTEGER = re.compile(r"[+-]?\d{1,400}")
_DECIMAL = re.compile(r"[+-]?\d{1,300}\.\d{1,300}")
_LETTER = re.compile(r"[A-Z]")
_ANCHOR = re.compile(r"(?:final answer|answer)\s*(?:is|:|=)\s*:?\s*([^\n]+)", re.IGNORECASE)
_BRACE = re.compile(r"\\boxed\{|[{}]")
_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+|\S")
_LONG_NUMBER = re.compile(r"\d{401,}")
_EXPONENT = re.compile(r"(?:\^|\*\*)\s*\{?\s*[+-]?\s*(\d+)")
_TOWER = re.compile(r"(?:\^|\*\*)[\s{(]*[^\s^{}()]+[\s})]*(?:\^|\*\*)[\s{(]*[^\s^{}()]+[\s})]*(?:\^|\*\*)")
_POWER_OF_POWER = re.compile(r"\d[\s})]*(?:\^|\*\*)[\s{(]*(\d+)[\s})]*(?:\^|\*\*)[\s{(]*(\d+)")  # 9^{9^{9}}
_FACTORIAL = re.compile(r"(\d+)\s*\}?\s*\)?\s*!")
_BINOMIAL = re.compile(r"\\[dt]?binom\D{0,3}(\d+)|\bbinomial\((\d+)")
_HEAVY = re.compile(r"\\(?:sum|prod|int|iint|iiint|oint|lim)(?![a-zA-Z])|∑|∏|∫")
_MAX_TOKENS, _MAX_NESTING = 200, 40
_MAX_EXPONENT, _MAX_FACTORIAL = 10_000, 1_000


@dataclass(frozen=True)
class Extracted:
    """A final answer; `marked` says that the completion marked it as one (a box, an anchor, a tag)."""

    text: str
    marked: bool


def extract(completion: str) -> Extracted | None:
    """The final answer of a completion; None when there is none."""
    tail = completion[-TAIL_CHARS:].rpartition("</think>")[2].strip()
    found = last_boxed(tail)
    if found is None:
        found = last_tagged(tail)
    if found is None and "####" in tail:
        found = tail.rpartition("####")[2].partition("\n")[0]
    if found is None and (anchored := _ANCHOR.findall(tail)):
        found = anchored[-1].rstrip(" .*")
    if found is not None:
        text = _bare(found)
        return Extracted(text, marked=True) if text else None
    last = tail.rpartition("\n")[2].strip()
    return Extracted(last, marked=False) if last else None


def gold_text(gold: str) -> str:
    """The expected answer as a dataset writes it, without its box, dollars or GSM8K's `####`."""
    boxed = last_boxed(gold)
    return _bare(boxed if boxed is not None else gold.rpartition("####")[2])


def last_boxed(text: str) -> str | None:
    """What the last complete `\\boxed{…}` holds, braces balanced; None without one. One pass, whatever the text."""
    opened: list[int] = []  # where the content of each open brace begins; negative: no box
    last: tuple[int, int] | None = None
    for token in _BRACE.finditer(text):
        if token[0] != "}":
            opened.append(token.end() if len(token[0]) > 1 else -1)
        elif opened and (start := opened.pop()) >= 0 and (last is None or start > last[0]):
            last = (start, token.start())
    return None if last is None else text[last[0] : last[1]]


def last_tagged(text: str) -> str | None:
    """What the last complete `<answer>…</answer>` holds; None without one."""
    lower = text.lower()
    end = lower.rfind("</answer>")
    start = lower.rfind("<answer>", 0, max(end, 0))
    return text[start + len("<answer>") : end] if 0 <= start < end else None


def quick_verdict(gold: str, answer: str) -> bool | None:
    """Equality where the text alone decides it: two integers, two decimals of one value, two letters."""
    if gold == answer:
        return True if _INTEGER.fullmatch(gold) or _DECIMAL.fullmatch(gold) or _LETTER.fullmatch(gold) else None
    if _INTEGER.fullmatch(gold) and _INTEGER.fullmatch(answer):
        return int(gold) == int(answer)
    if _LETTER.fullmatch(gold) and _LETTER.fullmatch(answer):
        return False
    if _DECIMAL.fullmatch(gold) and _DECIMAL.fullmatch(answer):
        try:
            return True if Decimal(gold) == Decimal(answer) else None  # nearly equal ones are math-verify's to round
        except InvalidOperation:
            return None
    return None


def too_complex(gold: str, answer: str) -> str | None:
    """Why an answer must not be given to computer algebra; None when it may."""
    if len(answer) > ANSWER_CHARS:
        return f"longer than {ANSWER_CHARS} characters"
    if _LONG_NUMBER.search(answer):
        return "a number of more than 400 digits"
    if len(_TOKEN.findall(answer)) > _MAX_TOKENS:
        return f"more than {_MAX_TOKENS} tokens"
    if _nesting(answer) > _MAX_NESTING:
        return f"nested deeper than {_MAX_NESTING}"
    if any(int(digits) > _MAX_EXPONENT for digits in _EXPONENT.findall(answer)):
        return f"an exponent above {_MAX_EXPONENT}"
    if _TOWER.search(answer) or any(_power_above(int(b), int(e)) for b, e in _POWER_OF_POWER.findall(answer)):
        return "a tower of powers"
    if any(int(digits) > _MAX_FACTORIAL for digits in _FACTORIAL.findall(answer)) or re.search(
        r"!\s*[)}]*\s*!", answer
    ):
        return f"a factorial above {_MAX_FACTORIAL}"
    if any(int(a or b) > _MAX_FACTORIAL for a, b in _BINOMIAL.findall(answer)):
        return f"a binomial above {_MAX_FACTORIAL}"
    if _HEAVY.search(answer) and not _HEAVY.search(gold):
        return "a sum, product, integral or limit where the answer has none"
    return None


def _power_above(base: int, exponent: int) -> bool:
    """Whether base^exponent, itself an exponent, exceeds the limit. Never computes a large power."""
    return base > 1 and exponent * (base.bit_length() - 1) >= _MAX_EXPONENT.bit_length()


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "({[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")}]":
            depth -= 1
    return deepest


def _bare(text: str) -> str:
    stripped = text.strip()
    if len(stripped) > 1 and stripped[0] == stripped[-1] == "$":
        stripped = stripped.strip("$").strip()
    return stripped
