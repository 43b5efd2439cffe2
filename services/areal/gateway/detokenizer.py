"""Incremental detokenizer: whole characters of growing ids, cut at the first stop string. Pure."""

import codecs
from collections.abc import Collection, Iterable, Sequence

from areal.workflow.tokenizer import Tokenizer


class Detokenizer:
    """Text of growing ids without special tokens, but for those that are `shown`."""

    def __init__(self, tokenizer: Tokenizer, shown: Collection[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids
        if shown:
            self._hidden = frozenset(token for token in self._hidden if tokenizer.text_of(token) not in shown)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._ids: list[int] = []
        self._told = ""
        self._begun = False

    def feed(self, ids: Iterable[int]) -> str:
        """What these ids add; half a character is held back."""
        if self._tokenizer.has_pieces:
            return self._utf8.decode(b"".join([self._piece(token) for token in ids if token not in self._hidden]))
        self._ids.extend(ids)
        text = self._tokenizer.decode(self._ids)
        if not text.startswith(self._told) or text.endswith("\ufffd"):
            return ""
        return self._tell(text)

    def end(self) -> str:
        """What was held back."""
        if self._tokenizer.has_pieces:
            return self._utf8.decode(b"", final=True)
        text = self._tokenizer.decode(self._ids)
        return self._tell(text) if text.startswith(self._told) else ""

    def _tell(self, text: str) -> str:
        fresh, self._told = text[len(self._told) :], text
        return fresh

    def _piece(self, token: int) -> bytes:
        piece = self._tokenizer.piece(token)
        if self._begun:
            return piece
        self._begun = True
        dropped = piece.startswith(b" ") and not self._tokenizer.decode([token]).startswith(" ")
        return piece[1:] if dropped else piece  # some decoders drop the space before a text


class StopCutter:
    """Cuts a growing text at the first stop string, which isn't told."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = ""  # the stop string that cut it

    def feed(self, text: str) -> str:
        """What can be told for certain."""
        if not self._stops or not text:
            return text
        if self.found:
            return ""
        self._held += text
        return self._cut(len(self._held) - max(begun(self._held, stop) for stop in self._stops))

    def end(self) -> str:
        """What was held back."""
        return self._cut(len(self._held))

    def _cut(self, certain: int) -> str:
        """The held text up to the first stop string, as far as none may have begun before `certain`."""
        places = [(place, stop) for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if places and min(places)[0] <= certain:
            certain, self.found = min(places)
            told, self._held = self._held[:certain], ""
        else:
            told, self._held = self._held[:certain], self._held[certain:]
        return told


def begun(text: str, marker: str) -> int:
    """Characters at the end of `text` that may be the beginning of `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((length for length in range(longest, 0, -1) if marker.startswith(text[-length:])), 0)
