"""Units and counted nouns: words that may stand behind a number without changing what it answers."""

import re

from areal.yaml_file.table import read_table

_WORDS: dict[str, list[str]] = {
    kind: words.split() for kind, words in read_table("areal.reward.verifiers", "units.yaml").items()
}
_PLURAL = [f"{word}s" for word in _WORDS["singular"]]
UNITS = frozenset([*_WORDS["symbols"], *_WORDS["singular"], *_PLURAL, *_WORDS["links"], *_WORDS["irregular"]])

_DENIALS = "no not never wrong false or unlike neither nor except isn than as more less fewer without"
DENIALS = frozenset(_DENIALS.split())
"""Words that take an answer back, or add another one."""

NUMERALS = frozenset(_WORDS["numerals"])
"""Words that change the number before them, or are one."""

TEXT_COMMANDS = "text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mathbf|mathsf|mathit|mathtt|mbox|hbox|rm"
_SPACE = r"(?:\\[,;:! ]|\\quad(?![a-zA-Z])|[\s~])*"
_FIRST = re.compile(
    rf"(?:(?<=[\d)}}\]!])|(?<=\\pi)|(?<=°)|(?<=\\circ)|(?<=\d\.))(?P<gap>{_SPACE})"
    rf"(?P<set>\\(?:{TEXT_COMMANDS})\s*\{{[\s~]*)?(?P<word>[a-zA-Z]+)(?!\w*[(_])"
)
_TEXT_ONLY = re.compile(rf"\\(?:{TEXT_COMMANDS}|cdot|times|circ|quad|left|right|displaystyle)(?![a-zA-Z])|\\[,;:! ]")
_EXPONENT = re.compile(r"(?:(?<=[a-zA-Z}])\s*\^\s*\{?-?[1-4]\}?|(?<=[a-zA-Z])[1-4])(?!\d)")
_SQUARE = re.compile(r"(?:square|cubic|sq|cu)\b", re.IGNORECASE)  # of a unit: alone it is a power
_FORBIDDEN = re.compile(r"[\d=,;<>+|\\\[\]]|\^(?!\s*\{?\s*$)")
_NO_UNIT = frozenset({"a", "p", "squared", "cubed", "cube"})  # 7:30 p.m., powers
_WORD = re.compile(r"[a-zA-Z]+")
_DEGREES = re.compile(r"\s*\^?\s*\{?\s*(?:\\circ|°)\s*\}?\s*$")


def without_unit(text: str) -> str:
    """A quantity without its unit, or what is counted: cut at the first word behind the number.

    Only where nothing in the rest could be another answer: no second number, no numeral (24 thousand), no denial.
    """
    for found in _FIRST.finditer(text):
        word, upright = found["word"].lower(), found["set"] is not None
        if (word not in UNITS and not (upright and len(word) == 1)) or word in _NO_UNIT:
            return text
        if len(word) < 3 and not upright and not found["gap"]:
            return text  # 24in could be a product
        if len(word) == 1 and not upright:
            return text
        rest = _EXPONENT.sub("", _TEXT_ONLY.sub(" ", text[found.start("set") if upright else found.start("word") :]))
        words = [each.lower() for each in _WORD.findall(rest)]
        alone = _SQUARE.match(word) is not None and not UNITS & set(words[1:2])
        if alone or _FORBIDDEN.search(rest) or not (DENIALS | NUMERALS).isdisjoint(words):
            return text
        quantity = text[: found.start()].rstrip()
        return _DEGREES.sub("", quantity) if word in ("f", "c", "k", "fahrenheit", "celsius") else quantity
    return text
