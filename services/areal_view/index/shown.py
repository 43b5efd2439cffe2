"""Text of models made safe to look at: control characters as symbols, broken UTF-8 as bytes, no hidden direction marks.

Pure. HTML is escaped by the templates; this is about what an escaped text could still hide from a reader.
"""

import codecs
import unicodedata

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
