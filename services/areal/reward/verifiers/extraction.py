"""Answer extraction: the final answer of a completion, and what can be decided without computer algebra.

Pure text work, linear in the text. Finds the last `\\boxed{…}` after the reasoning, or what stands in `<answer>` tags,
or follows `####` or "the answer is", or the last line.
"""

import re
from dataclasses import dataclass
from decimal import Decimal

from areal.reward.verifiers.normalisation import readable
from areal.reward.verifiers.units import NUMERALS

TAIL_CHARS = 64_000  # an answer stands at the end
_INTEGER = re.compile(r"[+-]?\d{1,400}")
_DECIMAL = re.compile(r"[+-]?\d{1,300}\.\d{1,300}")
_CLOCK = re.compile(
    r"(\d{1,2}):(\d\d)\s*(?:\\text\s*\{\s*)?(?:([ap])\.?\s?m\.?)?\s*\}?", re.IGNORECASE
)  # of a time of day, not a ratio: two digits behind the colon
_LETTER = re.compile(
    r"(?:\\(?:text|textbf|mathrm|mathbf)\{)?\(?([A-Z])\)?\.?\}?"
)  # as multiple-choice answers are written
_ANCHOR = re.compile(r"answer\s*(?:is|:|=)\s*:?\s*(?=\S)", re.IGNORECASE)
_UNSURE = re.compile(
    r"(?:\b(?:or|not|no|never|neither|nor|than|most|least)|n't)\s+(?:\w+\W{1,3}){0,2}[^\w\s]{0,4}\d[\d.,/]*\D*$"
    r"|\d\W{0,4}(?:and|to|or|[-–])\W{0,4}\d[\d.,/]*\D*$"
    r"|\d\W{0,4}(?:is|was)\s+(?:wrong|incorrect|false|not)\b\D*$"
    rf"|\d\W{{0,4}}(?:or|{'|'.join(sorted(NUMERALS))})\b\D*$",
    re.IGNORECASE,
)  # a sentence that ends in another number than the one it seems to name
_WORD = re.compile(r"(?<!\\)\b[a-zA-Z]{2,}")
_QUANTITY = re.compile(r"[$\\(]{0,3}\d(?!.*\b(?:is|are|was|were|has|have|gives?|makes?)\b)", re.DOTALL)
_SENTENCE_END = re.compile(r"\.(?:\s|$)")
_BRACE = re.compile(r"\\\\(?!boxed|fbox)|\\[{}]|\\(?:boxed|fbox)\s{0,8}\{|[{}]")


@dataclass(frozen=True)
class FinalAnswer:
    """A final answer; `marked` says that the completion marked it as one (a box, an anchor, a tag)."""

    text: str
    marked: bool


def extract(completion: str) -> FinalAnswer | None:
    """The final answer of a completion; None when there is none."""
    tail = _after_reasoning(completion)[-TAIL_CHARS:].strip()
    if (found := last_boxed(tail)) is None:
        found = last_tagged(tail)
    if found is None and "####" in tail:
        found = tail.rpartition("####")[2].partition("\n")[0]
    if found is None and (anchors := list(_ANCHOR.finditer(tail))):
        found = _SENTENCE_END.split(tail[anchors[-1].end() :].partition("\n")[0], maxsplit=1)[0]
    if found is not None:
        text = readable(found)
        return FinalAnswer(text, marked=True) if text else None
    last = tail.rpartition("\n")[2].strip()
    whole = readable(last)
    if whole and (_QUANTITY.match(whole) or not _WORD.search(whole)):  # all of it is the answer, not its last number
        return FinalAnswer(whole, marked=True)
    return FinalAnswer(whole, marked=False) if whole and not _UNSURE.search(whole) else None


def _after_reasoning(completion: str) -> str:
    """What follows the last closed reasoning, up to where the model began to reason anew and never ended."""
    closed = completion.rfind("</think>")
    start = 0 if closed < 0 else closed + len("</think>")
    reopened = completion.find("<think>", start)
    return completion[start:] if reopened < 0 else completion[start:reopened]


# what is counted, as ASDiv's answers have it: 9 (apples); no part of the number, and no base
_COUNTED = re.compile(
    r"(?<=\d)\s+\((?!hundred|thousand|million|billion|dozen|percent|base|mod)[a-zA-Z]{2}[a-zA-Z -]*\)\s*$"
)


def gold_text(gold: str) -> str:
    """The expected answer as a dataset writes it, without its box, dollars or GSM8K's `####`."""
    boxed = last_boxed(gold)
    return readable(_COUNTED.sub("", boxed if boxed is not None else gold.rpartition("####")[2]))


def last_boxed(text: str) -> str | None:
    """What the last complete `\\boxed{…}` holds, braces balanced; None without one. One pass, whatever the text."""
    opened: list[int] = []  # where the content of each open brace begins; negative: no box
    last: tuple[int, int] | None = None
    for token in _BRACE.finditer(text):
        if token[0] in ("\\\\", "\\{", "\\}"):  # a line's end, or braces of a set
            continue
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
    """Equality where the text alone decides it: two integers, two decimals of one value, letters, times of day."""
    if _INTEGER.fullmatch(gold):
        return int(gold) == int(answer) if _INTEGER.fullmatch(answer) else None
    if (due := _CLOCK.fullmatch(gold)) and (told := _CLOCK.fullmatch(answer)):
        return _time(due) == _time(told)
    if (due and due[3]) or ((told := _CLOCK.fullmatch(answer)) and told[3]):
        return False  # 7:30 p.m. is no number
    if expected := _LETTER.fullmatch(gold):
        given = _LETTER.fullmatch(answer)
        return expected[1] == given[1] if given else None
    if _DECIMAL.fullmatch(gold) and _DECIMAL.fullmatch(answer):
        return True if Decimal(gold) == Decimal(answer) else None  # nearly equal ones are math-verify's to round
    return None


def _time(clock: re.Match[str]) -> tuple[int, int, str]:
    return int(clock[1]), int(clock[2]), (clock[3] or "").lower()
