"""Notation that computer algebra drops, though it makes another answer: kinds of brackets, bases, marks, prose.

Pure text work on an answer that was marked as one. It refuses only what the expected answer doesn't have itself.
"""

import re

from areal.reward.verifiers.normalisation import TEXT, rounded
from areal.reward.verifiers.units import DENIALS, UNITS

_LAYOUT = re.compile(r"\\(?:left|right|bigl?|bigr|Bigl?|Bigr|displaystyle)(?![a-zA-Z])|\\[,;:! ]|\s+")
_WORD = re.compile(r"[^\W\d_]+")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_OWN_NUMBER = re.compile(r"(?<![\w^])\d")  # not the 2 of m2
_SEPARATOR = re.compile(r"[,;|]")
_LIST = re.compile(r",|;|\\pm|\\cup|\\lor|\\vee|\\begin|\b(?:or|and)\b")
_LABEL = re.compile(r"\s*\\(?:text|mathrm)\{([a-zA-Z ]{1,40})\}\s*=(?=[^=]*$)")  # \text{Area} = 42
_CONNECTIVES = frozenset({"or", "and"})
_FUNCTIONS = """
    sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln lg exp det gcd lcm max min deg dim rank tr
"""
_KNOWN = UNITS | frozenset(_FUNCTIONS.split())
_BASE = re.compile(r"(?:(?<=\d)|(?<=\d[)\]}]))_\{?(?:\\text\{|\\mathrm\{)?(\w+)|base\W*(\w+)")
_PRIME = re.compile(r"[\d)\]}](?:'|′|\^\{?\\prime)")
_PERCENT = re.compile(r"%|percent(?!age)")
_RELATION = re.compile(r"\\(?:approx|mod|pmod|bmod|sim|simeq|equiv|doteq|cong)(?![a-zA-Z])|≈|≡")
_ASSIGNED = re.compile(r"^.*(?:(?<![<>!])=|\\in(?![a-zA-Z]))", re.DOTALL)
_COUNTED = re.compile(r"(?<=\d)\s+([a-zA-Z]{4,})\b")
_CLOSERS = {"(": ")", r"\{": r"\}"}


def another_answer(gold: str, answer: str) -> str | None:
    """What an answer says beside, or instead of, a value that may equal the expected one; None when nothing."""
    gold_flat, flat = _LAYOUT.sub("", gold), _LAYOUT.sub("", answer)
    if {_enclosure(gold_flat), _enclosure(flat)} == {"(", r"\{"}:
        return "a set is no tuple"
    if (base := _base(flat)) is not None and base != _base(gold_flat):
        return "a number in another base"
    for name, mark in (("a percentage", _PERCENT), ("a prime", _PRIME)):
        if mark.search(flat) and not mark.search(gold_flat):
            return f"{name} where the expected answer has none"
    if (related := _RELATION.search(answer)) and related[0] not in gold and rounded(answer) is None:
        return "a relation where the expected answer has none"
    if _says_more(gold, answer):
        return "it says more than an answer and its unit"
    return None


def _enclosure(flat: str) -> str | None:
    """The bracket around the whole of a list; None without one, or without a list in it."""
    flat = _ASSIGNED.sub("", flat)
    opening = next((opening for opening in _CLOSERS if flat.startswith(opening)), None)
    if opening is None or not flat.endswith(_CLOSERS[opening]):
        return None
    depth, listed = 0, False
    for at, character in enumerate(flat):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0 and at < len(flat) - 1:
                return None
        elif character == "," and depth == 1:
            listed = True
    return opening if listed else None


def _base(flat: str) -> str | None:
    found = _BASE.search(flat)
    return None if found is None else (found[1] or found[2]).lower()


def _says_more(gold: str, answer: str) -> bool:
    """Whether a text in an answer holds a word that is no unit, or a number of its own: 42 \\text{ is wrong}."""
    known: set[str] | None = None
    if (label := _LABEL.match(answer)) is not None and not _words(label[1]) & DENIALS:
        answer = answer[label.end() :]
    if any(word not in gold and word.lower() not in _FUNCTIONS for word in _COUNTED.findall(answer)):
        return True  # what was a unit has gone
    for found in TEXT.finditer(answer):
        if found[0] in gold or found[0] == answer:
            continue
        if known is None:
            known = _words(gold) | (_CONNECTIVES if _LIST.search(gold) else frozenset())
        said = _COMMAND.sub(" ", found[1])
        if _BASE.search(said):
            continue  # it is compared as a base
        if _OWN_NUMBER.search(said) or _SEPARATOR.search(said):
            return True
        if any(len(word) > 1 and word not in known and word not in _KNOWN for word in _words(said)):
            return True
    return False


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(_COMMAND.sub(" ", text))}
