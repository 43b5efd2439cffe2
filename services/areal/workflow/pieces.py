"""Token to bytes: what each token of a vocabulary stands for, so that a text can be cut at its tokens.

Knows byte-level vocabularies (GPT-2's alphabet) and metaspace with byte fallback (SentencePiece); others are decoded
token by token. A special token stands for its own name.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

_METASPACE = "\u2581"


class Pieces:
    """The bytes of a token id, remembered."""

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast
        self._known: dict[int, bytes] = {}
        self._special = {token: added.content for token, added in fast.get_added_tokens_decoder().items()}
        decoder = json.loads(fast.decoder.__getstate__()) if fast.decoder is not None else ""
        described = json.dumps(decoder, ensure_ascii=False)
        self.special = frozenset(token for token, added in fast.get_added_tokens_decoder().items() if added.special)
        self._byte_level = '"ByteLevel"' in described
        self._metaspace = _METASPACE in described or '"ByteFallback"' in described

    @property
    def exact(self) -> bool:
        """Whether a text is the bytes of its tokens, one after another."""
        return self._byte_level or self._metaspace

    def __call__(self, token: int) -> bytes:
        """The bytes that `token` stands for; none, as in `Tokenizer.decode`, where the vocabulary lacks it: a
        model's may be padded beyond its tokenizer's."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._look_up(token)
        return found

    def _look_up(self, token: int) -> bytes:
        if token in self._special:
            return self._special[token].encode()
        name = self._fast.id_to_token(token)
        if name is None:
            return b""
        if self._byte_level:
            alphabet = _alphabet()
            return b"".join(alphabet.get(letter, letter.encode()) for letter in name)
        if self._metaspace:
            if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
                return bytes([int(name[3:5], 16)])
            return name.replace(_METASPACE, " ").encode()
        return str(self._fast.decode([token], skip_special_tokens=False)).encode()


@cache
def _alphabet() -> dict[str, bytes]:
    """Letter → byte of byte-level vocabularies: printable bytes stand for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): bytes([byte]) for byte in printable} | {
        chr(256 + place): bytes([byte]) for place, byte in enumerate(others)
    }
