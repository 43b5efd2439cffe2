"""Decoder of a pickle that holds one text and nothing else, by its opcodes; nothing is ever unpickled.

LiveCodeBench packs its private cases as the pickle of a JSON text. Of the pickle language only the opcodes that such a
pickle is made of are known here (protocol marker, frame, text, memo, stop): none of them can name or call anything.
"""

from __future__ import annotations

_PROTOCOL, _FRAME, _STOP = 0x80, 0x95, ord(".")
_SIZES = {0x8C: 1, ord("X"): 4, 0x8D: 8}  # opcode of a text → bytes of its length, little-endian
_MEMO = {0x94: 0, ord("q"): 1, ord("r"): 4}  # opcode that remembers what was made → bytes of its place
_HIGHEST_PROTOCOL = 5


def pickled_text(content: bytes) -> str | None:
    """The text of a pickle of one text, of protocol 2 or above; None for any other pickle."""
    if len(content) < 3 or content[0] != _PROTOCOL or not 2 <= content[1] <= _HIGHEST_PROTOCOL:
        return None
    found: str | None = None
    at = 2
    while at < len(content):
        opcode, at = content[at], at + 1
        if opcode == _STOP:
            return found if at == len(content) else None
        if opcode == _FRAME:
            at += 8
        elif opcode in _MEMO and found is not None:
            at += _MEMO[opcode]
        elif opcode in _SIZES and found is None:
            begin = at + _SIZES[opcode]
            at = begin + int.from_bytes(content[begin - _SIZES[opcode] : begin], "little")
            found = _decoded(content[begin:at]) if at <= len(content) else None
        else:
            return None
    return None


def _decoded(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None
