"""Text of recorded samples: question and answer, shortened for lists, tokenised and matched for the full-text search.

Pure. A search is of words and "quoted phrases", all of which a hit has, in its question and answer together; letters
count without case and diacritics. In scripts without spaces between words each letter is a word.
"""

import codecs
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from areal.v1 import record_pb2 as record
from numpy.typing import NDArray

TOKENIZER = "unicode61 remove_diacritics 2"
LONGEST = 1 << 20  # Letters of a question or an answer that can be searched

_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_LETTER = re.compile(f"([{_SPACELESS}])")
_TOKEN = re.compile(r"[^\W_]+")
_TERM = re.compile(r'"([^"]*)"|(\S+)')
_AROUND = 160  # letters before and after a fragment's first mark

Marked = Sequence[tuple[str, bool]]  # A text in parts, and whether each is marked


def texts_of(made: record.SampleRecord) -> tuple[bytes, bytes]:
    """Question and answer: the first sequence up to its first sampled token; what follows, of all sequences."""
    parts = [_cut(made, place) for place in range(min(len(made.texts), len(made.sample.sequences)))]
    return (parts[0][0] if parts else b""), b"\n".join(answer for _, answer in parts)


def _cut(made: record.SampleRecord, place: int) -> tuple[bytes, bytes]:
    told = made.texts[place]
    start = min((span.start for span in made.sample.sequences[place].spans), default=None)
    if start is None or 4 * start > len(told.token_ends):
        return told.text, b""
    cut = int(np.frombuffer(told.token_ends, "<u4", 1, 4 * (start - 1))[0]) if start else 0
    return told.text[:cut], told.text[cut:]


def array_of(raw: bytes, dtype: str) -> NDArray[Any]:
    """A column of a record; what is left over of a damaged one is left out."""
    size = np.dtype(dtype).itemsize
    return np.frombuffer(raw[: len(raw) // size * size], dtype)


def pieces_of(made: record.SampleRecord, place: int) -> list[bytes]:
    """The bytes of each token of a sequence; none when the recording doesn't fit together."""
    if place >= len(made.texts):
        return []
    text = made.texts[place]
    ends = array_of(text.token_ends, "<u4").tolist()
    return [text.text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def shortened(text: bytes | str, most: int = 400) -> str:
    """The text made safe to look at; of one longer than `most` letters two thirds of them from its beginning, the rest
    from its end, where a chat's question and an answer's result are."""
    whole = text[: 4 * most].decode("utf-8", "replace") if isinstance(text, bytes) else text
    if len(text) <= 4 * most and len(whole) <= most:
        return visible(text)
    tail = text[-2 * most :].decode("utf-8", "ignore") if isinstance(text, bytes) else text
    head, last = 2 * most // 3, most // 3
    return f"{visible(whole[:head])} […] {visible(tail[-last:])}"


def searchable(text: bytes | str) -> str:
    """The text as it is indexed."""
    whole = text[: 4 * LONGEST].decode("utf-8", "replace") if isinstance(text, bytes) else text
    return _LETTER.sub(r" \1 ", whole[:LONGEST].replace("\0", " "))


def terms_of(query: str) -> dict[str, list[str]]:
    """The terms of a query, words and phrases, with the words of each."""
    terms = [searchable(phrase or word) for phrase, word in _TERM.findall(query)]
    return {term: words for term in terms if (words := _TOKEN.findall(term))}


def match_of(query: str) -> str:
    """The query in FTS5's syntax; empty where it has no word."""
    return " ".join('"{}"'.format(term.replace('"', " ")) for term in terms_of(query))


def fragment(text: bytes | str, query: str) -> Marked:
    """The part of a text around a hit, of the terms the one that comes last, with every hit in it marked; none where
    nothing is hit."""
    whole = (text.decode("utf-8", "replace") if isinstance(text, bytes) else text)[:LONGEST]
    patterns, plain = [_pattern(words) for words in terms_of(query).values()], folded(whole)
    firsts = [hit for pattern in patterns if (hit := re.search(pattern, plain)) is not None]
    if not firsts:
        return ()
    found, pattern = max(firsts, key=re.Match.start), "|".join(patterns)
    begin, end = max(0, found.start() - _AROUND), found.end() + _AROUND
    part, at, parts = whole[begin:end], 0, list[tuple[str, bool]]()
    for hit in re.finditer(pattern, plain[begin:end]):
        parts += [(part[at : hit.start()], False), (part[hit.start() : hit.end()], True)]
        at = hit.end()
    parts.append((part[at:], False))
    edges = ("… " if begin else ""), (" …" if end < len(whole) else "")
    return [(edges[0], False), *((visible(words), marked) for words, marked in parts if words), (edges[1], False)]


def folded(text: str) -> str:
    """The text without case and diacritics, letter by letter, so that places in it stay the same."""
    if text.isascii():
        return text.lower()
    return text.translate({ord(one): unicodedata.normalize("NFD", one)[0].lower()[0] for one in set(text)})


def _pattern(words: Sequence[str]) -> str:
    text = r"[\W_]*".join(re.escape(folded(word)) for word in words)
    begin = "" if _LETTER.match(words[0]) else r"(?<![^\W_])"
    end = "" if _LETTER.match(words[-1]) else r"(?![^\W_])"
    return f"{begin}{text}{end}"


# ---- Text of models made safe to look at: control characters as symbols, broken UTF-8 as bytes
# Pure. HTML is escaped by the templates; this is about what an escaped text could still hide from a reader.


_KEPT = "\n\t"
_SYMBOLS = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in _KEPT} | {0x7F: "\u2421"}


def _as_hex(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    broken = error.object[error.start : error.end]
    return "".join(f"\u27e8{byte:02x}\u27e9" for byte in broken), error.end


codecs.register_error("areal.hex", _as_hex)


def visible(text: bytes | str) -> str:
    """The text with everything in it visible; line ends and tabs stay."""
    whole = text.decode("utf-8", "areal.hex") if isinstance(text, bytes) else text
    odd = {} if whole.isascii() else {ord(letter): _number(letter) for letter in set(whole) if _hides(letter)}
    return whole.translate(_SYMBOLS | odd)


def _hides(letter: str) -> bool:
    """Whether it is a format character, which turns or hides what is around it."""
    return not letter.isascii() and unicodedata.category(letter) in ("Cf", "Co", "Cn", "Cs")


def _number(letter: str) -> str:
    return f"\u27e8U+{ord(letter):04X}\u27e9"
