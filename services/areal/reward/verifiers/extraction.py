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
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+|\S")
_LONG_NUMBER = re.compile(r"\d{401,}")
_EXPONENT = re.compile(r"(?:\^|\*\*)\s*\{?\s*[+-]?\s*(\d+)")
_TOWER = re.compile(r"(?:\^|\*\*)[\s{(]*[^\s^{}()]+[\s})]*(?:\^|\*\*)[\s{(]*[^\s^{}()]+[\s})]*(?:\^|\*\*)")
_FACTORIAL = re.compile(r"(\d+)\s*\}?\s*\)?\s*!")
_BINOMIAL = re.compile(r"\\[dt]?binom\D{0,3}(\d+)|\bbinomial\((\d+)")
_HEAVY = re.compile(r"\\(?:sum|prod|int|iint|iiint|oint|lim)\b|∑|∏|∫")
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
    if found is None and (tagged := _TAGGED.findall(tail)):
        found = tagged[-1]
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
    """What the last complete `\\boxed{…}` holds, braces balanced; None without one."""
    end = len(text)
    while (start := text.rfind("\\boxed{", 0, end)) >= 0:
        depth = 1
        for position in range(start + len("\\boxed{"), len(text)):
            if text[position] == "{":
                depth += 1
            elif text[position] == "}":
                depth -= 1
                if depth == 0:
                    return text[start + len("\\boxed{") : position]
        end = start  # this one never closes
    return None


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
    if _TOWER.search(answer):
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
