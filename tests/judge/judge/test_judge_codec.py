"""The codec: what goes in comes out with its type and every bit; what is no plain value never goes in."""

import math
import struct
import time
from collections import Counter, namedtuple
from typing import Any

import pytest
from areal_judge.judge import codec
from areal_judge.judge.codec import MALFORMED, TOO_BIG, CodecError, decode, encode
from hypothesis import given, settings
from hypothesis import strategies as st

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters())
    | st.binary()
)
KEYS = st.recursive(LEAVES, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=4), max_leaves=6)
VALUES = st.recursive(
    LEAVES | st.sets(KEYS, max_size=4) | st.frozensets(KEYS, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=5) | st.lists(inner, max_size=5).map(tuple) | st.dictionaries(KEYS, inner, max_size=5)
    ),
    max_leaves=30,
)


def shape(value: Any) -> Any:
    """A value with its types and the bits of its floats, comparable."""
    kind = type(value)
    if kind is float:
        return ("float", struct.pack("<d", value))
    if kind is complex:
        return ("complex", struct.pack("<dd", value.real, value.imag))
    if kind in (list, tuple):
        return (kind.__name__, [shape(item) for item in value])
    if kind in (set, frozenset):
        return (kind.__name__, sorted(map(repr, map(shape, value))))
    if kind is dict:
        return ("dict", [(shape(key), shape(item)) for key, item in value.items()])
    return (kind.__name__, value)


@settings(deadline=None)
@given(VALUES)
def test_what_goes_in_comes_out_with_types_and_bits(value: Any) -> None:
    assert shape(decode(encode(value))) == shape(value)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_value_or_a_codec_error(data: bytes) -> None:
    try:
        value = decode(data)
    except CodecError:
        return
    assert shape(decode(encode(value))) == shape(value)


@settings(deadline=None)
@given(VALUES, st.data())
def test_a_flipped_byte_makes_a_plain_value_or_a_malformed_one(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode(value))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    try:
        other = decode(bytes(encoded))
    except CodecError as error:
        reason = error.reason
    else:
        assert shape(decode(encode(other))) == shape(other)
        return
    assert reason in (TOO_BIG, MALFORMED)


@settings(deadline=None)
@given(VALUES)
def test_a_value_cut_short_or_with_more_behind_it_is_malformed(value: Any) -> None:
    encoded = encode(value)
    with pytest.raises(CodecError):
        decode(encoded + b"N")
    with pytest.raises(CodecError):
        decode(encoded[:-1])


class AlwaysEqual:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


class Posing:
    __class__ = int  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return (print, ("ran",))


class IntLike(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class StrLike(str):
    __slots__ = ()


class ListLike(list):  # type: ignore[type-arg]
    pass


class FloatLike(float):
    pass


class DictLike(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        return [("a", 1)]


FOREIGN = [
    AlwaysEqual(), Posing(), IntLike(3), StrLike("x"), ListLike([1]), FloatLike(1.0), DictLike(a=2), Counter("ab"),
    namedtuple("Point", "x y")(1, 2), object(), print, range(3), iter([1]), bytearray(b"x"), memoryview(b"x"), int,
    Exception("x"), (value for value in [1]),
]  # fmt: skip


@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "wrap",
    [lambda v: v, lambda v: [1, [v]], lambda v: {"a": (v,)}, lambda v: ((v,), 2)],
    ids=["bare", "list", "dict", "tuple"],
)
def test_what_only_looks_like_a_builtin_is_refused_wherever_it_hides(value: Any, wrap: Any) -> None:
    with pytest.raises(CodecError) as refusal:
        encode(wrap(value))
    assert refusal.value.reason == codec.BAD_TYPE


@pytest.mark.parametrize("key", [IntLike(3), StrLike("x"), AlwaysEqual()], ids=lambda key: type(key).__name__)
def test_foreign_keys_and_elements_are_refused(key: Any) -> None:
    for container in ({key: 1}, {key}, frozenset({key})):
        with pytest.raises(CodecError):
            encode(container)


@settings(deadline=None)
@given(
    st.integers(1, 70).flatmap(lambda bits: st.lists(st.integers(-(2**bits), 2**bits), min_size=8))
    | st.lists(st.floats(), min_size=8)
)
def test_long_lists_of_numbers_keep_every_bit(values: list[Any]) -> None:
    assert shape(decode(encode([values]))) == shape([values])
    assert shape(decode(encode(tuple(values)))) == shape(tuple(values))


@pytest.mark.parametrize(
    "odd", [True, IntLike(3), FloatLike(1.0), None, AlwaysEqual()], ids=lambda odd: type(odd).__name__
)
def test_one_odd_item_among_numbers_keeps_its_type_or_is_refused(odd: Any) -> None:
    for numbers in ([1] * 20, [1.5] * 20):
        values = [*numbers, odd]
        if odd is None or odd is True:
            assert shape(decode(encode(values))) == shape(values)
        else:
            with pytest.raises(CodecError):
                encode(values)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_bounds_are_the_same_on_both_sides() -> None:
    assert decode(encode(nested(60))) == nested(60)
    too_deep = b"l\x01\x00\x00\x00" * 60 + b"l\x00\x00\x00\x00"
    for refused in (lambda: encode(nested(61)), lambda: decode(too_deep), lambda: encode(2**16_384)):
        with pytest.raises(CodecError) as refusal:
            refused()
        assert refusal.value.reason == codec.TOO_BIG
    assert decode(encode(2**16_384 - 1)) == 2**16_384 - 1
    assert decode(encode(-(2**16_383))) == -(2**16_383)
    with pytest.raises(CodecError):
        encode([0] * 200_000)
    with pytest.raises(CodecError):
        decode(b"l" + struct.pack("<I", 200_000) + b"N" * 200_000)
    with pytest.raises(CodecError):
        encode("x" * codec.MAX_BYTES)
    with pytest.raises(CodecError):
        decode(b"b" + struct.pack("<I", codec.MAX_BYTES) + bytes(codec.MAX_BYTES))


def test_a_list_that_holds_itself_is_too_deep() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CodecError):
        encode(loop)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"x", b"i\x00\x00", b"i\x02\x00\x01\x00",
        b"s\xff\xff\xff\xff", b"l\xff\xff\xff\x7f", b"s\x01\x00\x00\x00\xff",
        b"S\x02\x00\x00\x00NN", b"d\x02\x00\x00\x00NNNN", b"S\x01\x00\x00\x00l\x00\x00\x00\x00",
        b"d\x01\x00\x00\x00l\x00\x00\x00\x00N", b"S\x02\x00\x00\x00Ti\x01\x00\x01", b"\x80\x04\x95", b"cos\nsystem\n",
        b"8\x02\x00\x00\x00" + bytes(15), b"D\xff\xff\xff\x7f",
        b"4\x01\x00\x00\x00" + bytes(5),
    ],
)  # fmt: skip
def test_what_is_no_value_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(data)


def test_keys_chosen_to_share_a_hash_cost_no_square() -> None:
    modulus = 2**61 - 1
    colliding = [index * modulus for index in range(60_000)]
    data = b"S" + struct.pack("<I", len(colliding)) + b"".join(encode(value) for value in colliding)
    start = time.process_time()
    with pytest.raises(CodecError):
        decode(data)
    assert time.process_time() - start < 10  # the square would take minutes


def test_nan_and_infinities_keep_their_bits() -> None:
    back = decode(encode([math.nan, math.inf, -math.inf, -0.0, {math.nan, math.nan}]))
    assert math.isnan(back[0])
    assert back[1:3] == [math.inf, -math.inf]
    assert math.copysign(1, back[3]) == -1
