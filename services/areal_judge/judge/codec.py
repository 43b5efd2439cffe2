"""Values across the wall of a cell: exact builtin types, bounded, and nothing else.

Owns the bytes in which arguments and results travel. Both sides use it; neither trusts the other. Encoding looks at
`type(value)` alone, so that a subclass, an object that claims another class or one that overrides equality is refused
wherever it hides. Decoding builds builtin values only, runs no code of anybody, and holds the same bounds.
It never pickles. Standard library only: it is loaded inside cells.

A value is one tag byte and its content, little-endian:
  N T F            None, True, False
  i                length u16, two's complement of that length (the shortest that holds it)
  f c              one or two IEEE doubles, every bit of them (NaN, infinities, -0.0)
  s b              length u32, UTF-8 (lone surrogates allowed) or bytes
  l t S Z          count u32, then items: list, tuple, set, frozenset
  d                count u32, then key, value, …: in the order of the dict
  1 2 4 8 D        count u32, then integers of so many bytes, or doubles: a list of nothing else, as most long ones are
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

MAX_BYTES = 1_000_000  # of one encoded value: below the frame of a session, with room for its header
MAX_NODES = 200_000  # leaves and containers; what a judge can walk in a moment
MAX_DEPTH = 60  # far below any recursion limit, far above any data set
MAX_INT_BITS = 16_384  # arithmetic on longer ones would cost the judge more than the program
MIN_PACKED = 8  # items of a list that is worth packing
MAX_SAME_HASH = 64  # honest keys rarely share one; thousands that do make a set quadratic

BAD_TYPE = "bad_type"
TOO_BIG = "too_big"
MALFORMED = "malformed"


class CodecError(ValueError):
    """A value that can't be carried (`reason` bad_type or too_big), or bytes that are no value (malformed)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# References of our own: a program that patches builtins in its own process harms nothing but its own result, and an
# honest one that shadows a name should not even do that.
_type, _len, _int, _map, _set, _tuple, _min, _max = type, len, int, map, set, tuple, min, max
_pack, _unpack = struct.pack, struct.unpack
_pack_int, _pack_count = struct.Struct("<H").pack, struct.Struct("<I").pack
_pack_double, _pack_complex = struct.Struct("<d").pack, struct.Struct("<dd").pack
_read_short, _read_count = struct.Struct("<H").unpack_from, struct.Struct("<I").unpack_from
_read_double, _read_complex = struct.Struct("<d").unpack_from, struct.Struct("<dd").unpack_from

_PACKED = {"b": b"1", "h": b"2", "i": b"4", "q": b"8", "d": b"D"}
_CONTAINERS: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"S", frozenset: b"Z"}


class _Encoder:
    """One value on its way out."""

    def __init__(self, max_bytes: int, max_nodes: int) -> None:
        self.parts: list[bytes] = []
        self.room = max_bytes
        self.nodes = max_nodes

    def put(self, value: Any, depth: int) -> None:
        kind = _type(value)
        self.nodes -= 1
        if self.nodes < 0:
            raise CodecError(TOO_BIG, "too many values")
        if kind is _int:
            bits = value.bit_length()
            if bits > MAX_INT_BITS:
                raise CodecError(TOO_BIG, "an integer is too long")
            length = bits // 8 + 1
            self._write(b"i" + _pack_int(length) + value.to_bytes(length, "little", signed=True))
        elif kind is str:
            text = value.encode("utf-8", "surrogatepass")
            self._write(b"s" + _pack_count(_len(text)) + text)
        elif kind is float:
            self._write(b"f" + _pack_double(value))
        elif value is None or kind is bool:
            self._write(b"N" if value is None else b"T" if value else b"F")
        elif kind is bytes:
            self._write(b"b" + _pack_count(_len(value)) + value)
        elif kind is complex:
            self._write(b"c" + _pack_complex(value.real, value.imag))
        elif kind in _CONTAINERS or kind is dict:
            self._put_container(kind, value, depth)
        else:
            raise CodecError(BAD_TYPE, "only plain builtin values can be carried")

    def _put_container(self, kind: type, value: Any, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise CodecError(TOO_BIG, "nested too deeply")
        count = _len(value)
        if kind is list and count >= MIN_PACKED and self._put_packed(value, count):
            return
        if kind is dict:
            self._write(b"d" + _pack_count(count))
            items: Any = [part for pair in dict.items(value) for part in pair]
            count *= 2
        else:
            self._write(_CONTAINERS[kind] + _pack_count(count))
            items = _tuple(value)
        if _len(items) != count:
            raise CodecError(MALFORMED, "a container changed while it was encoded")
        for item in items:
            self.put(item, depth + 1)

    def _put_packed(self, value: list[Any], count: int) -> bool:
        """Writes a list of floats, or of integers of 64 bits, in one piece. False when it is another one."""
        kinds = _tuple(_set(_map(_type, value)))
        if _len(kinds) != 1 or (kinds[0] is not _int and kinds[0] is not float):
            return False
        code = "d" if kinds[0] is float else _width(_min(value), _max(value))
        if not code:
            return False
        self.nodes -= count
        if self.nodes < 0:
            raise CodecError(TOO_BIG, "too many values")
        self._write(_PACKED[code] + _pack_count(count) + _pack(f"<{count}{code}", *value))
        return True

    def _write(self, part: bytes) -> None:
        self.room -= _len(part)
        if self.room < 0:
            raise CodecError(TOO_BIG, "too many bytes")
        self.parts.append(part)


def encode(value: Any, *, max_bytes: int = MAX_BYTES, max_nodes: int = MAX_NODES) -> bytes:
    """The bytes of a value. Raises CodecError for any type that is not a plain builtin, and above the bounds."""
    encoder = _Encoder(max_bytes, max_nodes)
    encoder.put(value, 0)
    return b"".join(encoder.parts)


class _Decoder:
    """One value on its way in. Every length is compared with what is left before anything is made of it."""

    def __init__(self, data: bytes, max_nodes: int) -> None:
        self.data = data
        self.at = 0
        self.nodes = max_nodes

    def take(self, depth: int) -> Any:
        self.nodes -= 1
        if self.nodes < 0:
            raise CodecError(TOO_BIG, "too many values")
        tag = self._bytes(1)
        reader = _READERS.get(tag)
        if reader is None:
            raise CodecError(MALFORMED, "an unknown tag")
        return reader(self, depth=depth)

    def _bytes(self, length: int) -> bytes:
        start, self.at = self.at, self.at + length
        if self.at > _len(self.data):
            raise CodecError(MALFORMED, "bytes are missing")
        return self.data[start : self.at]

    def _count(self) -> int:
        count: int = _read_count(self._bytes(4))[0]
        if count > _len(self.data) - self.at:  # an item is a byte at least
            raise CodecError(MALFORMED, "a length beyond the end")
        return count

    def integer(self, depth: int) -> int:
        length: int = _read_short(self._bytes(2))[0]
        if not 0 < length <= MAX_INT_BITS // 8 + 1:
            raise CodecError(TOO_BIG, "an integer is too long")
        value = int.from_bytes(self._bytes(length), "little", signed=True)
        bits = value.bit_length()
        if bits > MAX_INT_BITS:
            raise CodecError(TOO_BIG, "an integer is too long")
        if bits // 8 + 1 != length:
            raise CodecError(MALFORMED, "an integer longer than it needs to be")
        return value

    def double(self, depth: int) -> float:
        value: float = _read_double(self._bytes(8))[0]
        return value

    def text(self, depth: int) -> str:
        raw = self._bytes(self._count())
        try:
            return raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise CodecError(MALFORMED, "a text that is not UTF-8") from None

    def raw(self, depth: int) -> bytes:
        return self._bytes(self._count())

    def items(self, depth: int) -> list[Any]:
        if depth >= MAX_DEPTH:
            raise CodecError(TOO_BIG, "nested too deeply")
        return [self.take(depth + 1) for _ in range(self._count())]

    def packed(self, code: str, depth: int) -> list[Any]:
        if depth >= MAX_DEPTH:
            raise CodecError(TOO_BIG, "nested too deeply")
        count = self._count()
        self.nodes -= count
        if self.nodes < 0:
            raise CodecError(TOO_BIG, "too many values")
        size: int = count * struct.calcsize(f"<{code}")
        return list(_unpack(f"<{count}{code}", self._bytes(size)))

    def set_(self, depth: int) -> set[Any]:
        items = self.items(depth)
        _bounded_hashes(items)
        value = set(items)
        if _len(value) != _len(items):
            raise CodecError(MALFORMED, "a set holds a value twice")
        return value

    def dict_(self, depth: int) -> dict[Any, Any]:
        if depth >= MAX_DEPTH:
            raise CodecError(TOO_BIG, "nested too deeply")
        keys, values = [], []
        for _ in range(self._count()):
            keys.append(self.take(depth + 1))
            values.append(self.take(depth + 1))
        _bounded_hashes(keys)
        value = dict(zip(keys, values, strict=True))
        if _len(value) != _len(keys):
            raise CodecError(MALFORMED, "a dict holds a key twice")
        return value


_READERS: dict[bytes, Callable[..., Any]] = {
    b"N": lambda _, depth: None, b"T": lambda _, depth: True, b"F": lambda _, depth: False,
    b"i": _Decoder.integer, b"f": _Decoder.double,
    b"c": lambda reader, depth: complex(*_read_complex(reader._bytes(16))),
    b"s": _Decoder.text, b"b": _Decoder.raw, b"l": _Decoder.items,
    b"t": lambda reader, depth: tuple(reader.items(depth)),
    b"S": _Decoder.set_, b"Z": lambda reader, depth: frozenset(reader.set_(depth)), b"d": _Decoder.dict_,
    **{tag: partial(_Decoder.packed, code=code) for code, tag in _PACKED.items()},
}  # fmt: skip


def _width(low: int, high: int) -> str:
    """The shortest code that holds these integers; none for integers of more than 64 bits."""
    bits = _max(low.bit_length(), high.bit_length()) + 1
    return "b" if bits <= 8 else "h" if bits <= 16 else "i" if bits <= 32 else "q" if bits <= 64 else ""


def _bounded_hashes(keys: list[Any]) -> None:
    """Refuses keys that were chosen to share a hash: a set of them costs the square of its length."""
    seen: dict[int, int] = {}
    for key in keys:
        try:
            code = hash(key)
        except TypeError:
            raise CodecError(MALFORMED, "a key that can't be hashed") from None
        count = seen[code] = seen.get(code, 0) + 1
        if count > MAX_SAME_HASH:
            raise CodecError(TOO_BIG, "too many keys share a hash")


def decode(data: bytes, *, max_bytes: int = MAX_BYTES, max_nodes: int = MAX_NODES) -> Any:
    """The value of bytes that anybody may have written. Raises CodecError, and nothing else, when there is none."""
    if _len(data) > max_bytes:
        raise CodecError(TOO_BIG, "too many bytes")
    decoder = _Decoder(data, max_nodes)
    value = decoder.take(0)
    if decoder.at != _len(data):
        raise CodecError(MALFORMED, "bytes after the value")
    return value
