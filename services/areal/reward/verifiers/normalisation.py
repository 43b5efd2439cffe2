"""Notation that computer algebra misreads, rewritten before it reads: one table, the same for either side.

A rewriting keeps the value. What depends on the other side (a logarithm without a base, an angle in degrees) is
rewritten only where the two sides would otherwise be read by different conventions. An answer that tells two values
keeps both: `tellings` has them apart, and each has to be right.
"""

import re
from collections.abc import Callable
from decimal import Decimal

from areal.reward.verifiers.units import DENIALS, TEXT_COMMANDS, UNITS, without_unit
from areal.yaml_file.table import read_table

LONGEST_CHARS = 8_000  # a longer answer is too complex anyway
_FUNCTIONS = "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|arccot|arcsec|arccsc|sinh|cosh|tanh|coth|exp|log|ln|max|min"
_REPEATING = re.compile(
    r"(?<![\d.])(\d{1,3}(?:,\d{3})+|\d{0,100})\.(\d{0,100})\\(?:overline|bar|dot|overset\{\\cdot\})\s?\{?(\d{1,100})\}?"
)
_PLAIN_LOG = re.compile(r"\\log(?![a-zA-Z])(?!\s*_)")
_LN = re.compile(r"\\ln(?![a-zA-Z])")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree|°)")
_RADIANS = re.compile(r"\\pi(?![a-zA-Z])|π")
_ROUNDED = re.compile(r"(.+?)(?:\\approx(?![a-zA-Z])|≈|\\doteq(?![a-zA-Z]))(.+)", re.DOTALL)
DECIMAL = re.compile(r"[+-]?(\d{1,100})(?:\.(\d{1,100}))?")


def _fraction(found: re.Match[str]) -> str:
    """0.1666…, written with a bar over the 6, as a fraction."""
    whole, once, repeated = found[1].replace(",", ""), found[2], found[3]
    below = (10 ** len(repeated) - 1) * 10 ** len(once)
    above = int(f"{whole}{once}{repeated}") - int(f"{whole}{once}" or "0")
    return rf"(\frac{{{above}}}{{{below}}})"


def _joined(found: re.Match[str]) -> str:
    return re.sub(r"\D", "", found[0])


def _letter(found: re.Match[str]) -> str:
    """A letter without its shape; an upright one, constants apart, only where no unit stands."""
    before, command, letter = found[1], found[2], found[3]
    upright = command in ("mathrm", "text", "textrm", "rm", "mbox", "hbox", "textnormal")
    if upright and letter not in ("e", "i", "j", r"\pi") and before[:1] not in ("", *"=+-*(,^_&"):
        return found[0]
    return f"{before}{letter}"


def _rewriting(pattern: str, to: str | dict[str, str]) -> tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]:
    pattern = pattern.replace("FUNCTIONS", _FUNCTIONS).replace("TEXT_COMMANDS", TEXT_COMMANDS)
    return re.compile(pattern), to if isinstance(to, str) else {"joined": _joined, "letter": _letter}[to["by"]]


_TABLE = [_rewriting(*row) for row in read_table("areal.reward.verifiers", "normalisation.yaml")]
_PLAIN = re.compile(r"[+-]?\d+(?:\.\d+)?|[a-zA-Z]")  # most answers of most tasks
_BETWEEN = re.compile(r"\\quad(?![a-zA-Z])|\\text\s*\{\s*and\s*\}|\band\b|\n+")
_PARAMETER = re.compile(r",\s*(?:where\s+)?[a-zA-Z](?:_\{?\w+\}?)?\s*\\in\s*\\mathbb\s*\{?[ZR]\}?\s*$")
_DOLLAR = re.compile(r"(?<!\\)\$")
_MARKED = re.compile(r"(?<!\\)\$[^$]*\$")
_SAID = re.compile(r"(?<!\\)\b(?!and\b|or\b)[a-zA-Z]{2,}")
SERIES = re.compile(r"[+-]\s*(?:\\[cl]?dots|\.\.\.|…)")
"""A sum that goes on: nothing can be compared with it."""
_ENVIRONMENT = re.compile(r"\\(?:begin|end|operatorname)\*?\s*\{[^{}]*\}(?:\{[lrc| ]*\})?")
TEXT = re.compile(rf"\\(?:{TEXT_COMMANDS})\*?\s*\{{((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}")
_PREFIX = re.compile(
    r"(?:=|\\approx(?![a-zA-Z])|≈|\\bullet(?![a-zA-Z])|\\therefore|(?:about|approximately|roughly)\b)\s*"
)
_LABEL = re.compile(r"([a-zA-Z][a-zA-Z ]{0,40}):\s*(?=\S)(?!\d)")
_NO_SOLUTION = re.compile(
    r"(?:\\text\s*\{\s*)?(?:there (?:is|are) )?no (?:real )?solutions?\.?\s*\}?(?:\s*:?\s*\\emptyset)?", re.I
)
_ALL_REALS = re.compile(
    r"(?:\\\{|\\text\s*\{)?\s*all real(?: numbers| values)?\.?\s*(?:\\\}|\})?(?:\s*:?\s*\\mathbb\s*\{R\})?", re.I
)
_RELATION = re.compile(r"[<>=≠≤≥]|\\(?:leq?|geq?|leqslant|geqslant|neq?|lt|gt)(?![a-zA-Z])")
_TWICE = re.compile(r"([^:]*):\s*((?:\\left\s*)?(?:[\[(]|\\\{).*|\\emptyset|\\mathbb\s*\{R\})", re.DOTALL)
_WRAPPINGS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("__", "__"), ("`", "`"))


def readable(text: str) -> str:
    """A text in the notation that computer algebra reads; the same for expected answers and given ones."""
    if len(text) > LONGEST_CHARS or _PLAIN.fullmatch(text):
        return text
    text = bare(text)
    if "$" in text and set(_SAID.findall(_MARKED.sub("", text))) <= UNITS:
        text = _DOLLAR.sub("", text)  # $24$ and $25$, $24$ miles, or $24
    for pattern, to in _TABLE:
        text = pattern.sub(to, text)
    text = bare(_REPEATING.sub(_fraction, text))
    plain = _DOLLAR.sub("", text)
    if _NO_SOLUTION.fullmatch(plain):
        return r"\emptyset"
    if _ALL_REALS.fullmatch(plain):
        return r"\mathbb{R}"
    if (label := _LABEL.match(text)) is not None and ":" not in (rest := text[label.end() :]):
        text = text if {word.lower() for word in label[1].split()} & DENIALS else bare(rest)
    return _named(_both_signs(without_unit(_PARAMETER.sub("", text))))


def bare(text: str) -> str:
    """A text without what marks it as mathematics or stresses it, words such as "about", and a full stop at its end."""
    while True:
        before, text = text, text.strip()
        text = text.strip("*").strip().removesuffix(".").removesuffix("\\").strip()
        text = text[found.end() :] if (found := _PREFIX.match(text)) is not None else text
        for opening, closing in _WRAPPINGS:
            inside = text[len(opening) : len(text) - len(closing)]
            wrapped = len(text) >= len(opening) + len(closing) and text.startswith(opening)
            if wrapped and text.endswith(closing) and opening not in inside:
                text = inside.strip()
        if text == before:
            return text


def prose(text: str) -> int:
    """How many words a text says outside its mathematics, units and "and" apart."""
    outside = _ENVIRONMENT.sub(" ", _MARKED.sub(" ", text) if "$" in text else text)
    said = _SAID.findall(TEXT.sub(r" \1 ", outside))
    return sum(word.lower() not in UNITS for word in said)


def tellings(text: str) -> list[str]:
    """Every way in which a text tells its answer, the last one last: x<3:(-\\infty,3), or a chain of matrices."""
    if (found := _TWICE.fullmatch(text)) is not None and _RELATION.search(found[1]):
        return [found[1].strip(), found[2].strip()]
    if r"\begin" in text and len(_split(text, ",;")) == 1:
        return [part.strip() for part in _split(text, "=")]
    return [text]


def _split(text: str, at: str) -> list[str]:
    """The parts of a text between characters that stand in no bracket and no environment."""
    depth, begin, parts = 0, 0, []
    for token in re.finditer(r"\\begin|\\end|\\[{}]|\\[a-zA-Z]+|[\[\](){}]|.", text, re.DOTALL):
        if token[0] in ("\\begin", "(", "[", "{", r"\{"):
            depth += 1
        elif token[0] in ("\\end", ")", "]", "}", r"\}"):
            depth -= 1
        elif depth <= 0 and token[0] in at:
            parts.append(text[begin : token.start()])
            begin = token.end()
    return [*parts, text[begin:]]


def _both_signs(text: str) -> str:
    """A list in which each element with one ± is two."""
    text = text.replace("±", r"\pm ")
    if r"\pm" not in text or r"\mp" in text or r"\begin" in text:
        return text
    elements = []
    for part in _split(text, ",;"):
        signs = (" +", " -") if part.count(r"\pm") == 1 else ("",)
        elements += [(part.replace(r"\pm", sign) if sign else part).strip() for sign in signs]
    return ",".join(elements)


def _named(text: str) -> str:
    """Several things of different names, d = 5 and M = (1, 2), as a tuple in the order of their names.

    Numbers of unknowns (x = 1, y = 2) stay: the library compares them.
    """
    if r"\begin" in text or "$" in text:
        return text
    parts = [part for part in _split(_BETWEEN.sub(",", text), ",;") if part.strip()]
    pairs = [tuple(each.strip() for each in _split(part, "=")) for part in parts]
    if len(parts) < 2 or any(len(pair) != 2 or not all(pair) for pair in pairs):
        return text
    names = [pair[0] for pair in pairs]
    plain = all(re.fullmatch(r"[a-zA-DF-HJ-Z](?:_\{?\w\}?)?", name) for name in names)
    if len(set(names)) < len(names) or (
        plain and not any(re.match(r"(?:\\left)?\s*[(\[]", value) for _, value in pairs)
    ):
        return text
    return f"({', '.join(value for _, value in sorted(pairs))})"


# Where one side is written as the first pattern says and the other as the second, not the other way round, too, the
# second is rewritten.
_CONVENTIONS = ((_LN, _PLAIN_LOG, r"\\ln "), (_RADIANS, _DEGREES, r"(\\frac{\1\\pi}{180})"))


def comparable(gold: str, answer: str) -> tuple[str, str]:
    """Both sides in readable notation, and by one convention."""
    gold, answer = readable(gold), readable(answer)
    for first, second, rewritten in _CONVENTIONS:
        if first.search(gold) and second.search(answer) and not second.search(gold):
            answer = second.sub(rewritten, answer)
        elif first.search(answer) and second.search(gold) and not second.search(answer):
            gold = second.sub(rewritten, gold)
    return gold, answer


def rounded(answer: str) -> tuple[str, Decimal, Decimal] | None:
    """An answer such as 22/7 \\approx 3.14: what stands before the sign, the decimal after it, one unit of its last
    place. None for any other."""
    found = _ROUNDED.fullmatch(answer)
    decimal = DECIMAL.fullmatch(found[2].strip()) if found is not None else None
    if found is None or decimal is None:
        return None
    return found[1].strip(), Decimal(decimal[0]), Decimal(1).scaleb(-len(decimal[2] or ""))
