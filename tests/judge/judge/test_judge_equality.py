"""Equality of function results: types that count, numbers that are the same, multisets that need no hash."""

import math
import time
from typing import Any

import pytest
from areal_judge.judge.calling import same
from areal_judge.judge.codec import CodecError
from areal_judge.judge.values import Checker
from hypothesis import given, settings
from hypothesis import strategies as st

PLAIN = Checker()
PYTHONS = Checker(bool_is_int=True)
STRICT = Checker(tuples_are_lists=False)
CLOSE = Checker(absolute=1e-6)
ANY_ORDER = Checker(unordered=True)

LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 1.0, -0.0]) | st.text("ab", max_size=2)
VALUES = st.recursive(
    LEAVES | st.frozensets(LEAVES, max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(LEAVES, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("result", "expected", "checker", "right"),
    [
        (1, 1, PLAIN, True), (True, 1, PLAIN, False), (1, True, PLAIN, False), (True, True, PLAIN, True),
        (1, 1.0, PLAIN, True), (2**53 + 1, float(2**53), PLAIN, False), (2**53 + 1, float(2**53), CLOSE, True),
        (0.1 + 0.2, 0.3, PLAIN, False), (0.1 + 0.2, 0.3, CLOSE, True), (1000001, 1000000, Checker(relative=0.1), False),
        (1e300, 10**300, PLAIN, False), (math.inf, math.inf, PLAIN, True),
        (math.inf, 1e308, Checker(relative=2.0), False),
        (10**400, 1.0, CLOSE, False), (math.nan, math.nan, PLAIN, False), (math.nan, 1.0, Checker(absolute=9), False),
        (math.nan, math.nan, Checker(nan_equal=True), True), (0.0, math.nan, Checker(nan_equal=True), False),
        ("1", 1, PLAIN, False), (b"a", "a", PLAIN, False), (None, 0, PLAIN, False), (None, None, PLAIN, True),
        ([1, 2], (1, 2), PLAIN, True), ([1, 2], (1, 2), STRICT, False), ((1, 2), (1, 2), STRICT, True),
        ([1, True], [1, 1], PLAIN, False), ([2, 1], [1, 2], PLAIN, False), ([2, 1], [1, 2], ANY_ORDER, True),
        ([1, 1, 2], [1, 2, 2], ANY_ORDER, False), ([True], [1], ANY_ORDER, False), ([1.0], [1], ANY_ORDER, True),
        ({1, 2}, [1, 2], ANY_ORDER, True), ({1, 2}, [1, 2], PLAIN, False), ("ab", "ba", ANY_ORDER, False),
        ({1, 2}, frozenset({1, 2}), PLAIN, True), ({1, 2}, {1, 3}, PLAIN, False), ({True}, {1}, PLAIN, False),
        ({1: "a"}, {1: "a"}, PLAIN, True), ({True: "a"}, {1: "a"}, PLAIN, False), ({1: "a"}, {"1": "a"}, PLAIN, False),
        ({"a": [0.1 + 0.2]}, {"a": [0.3]}, CLOSE, True), ({"a": 1, "b": 2}, {"b": 2, "a": 1}, PLAIN, True),
        ({(1, 2): 3}, {(1, 2): 3}, STRICT, True), ({math.nan}, {math.nan}, PLAIN, False),
        (1 + 2j, 1 + 2j, PLAIN, True), (1 + 2j, 1 + 2.0000001j, CLOSE, True), (1 + 0j, 1, PLAIN, False),
        ([0.3, 0.1], [0.1, 0.1 + 0.2], Checker(unordered=True, absolute=1e-6), True),
        ([0.3, 0.1], [0.1, 0.4], Checker(unordered=True, absolute=1e-6), False),
        ([[0.3], ["x"]], [["x"], [0.1 + 0.2]], Checker(unordered=True, absolute=1e-6), True),
        ([math.nan], [1.0], Checker(unordered=True, absolute=9), False),
        ([[2, 1]], [[1, 2]], ANY_ORDER, False),
        ((2, 1), [1, 2], Checker(unordered=True, tuples_are_lists=False), False),
    ],
)  # fmt: skip
def test_what_counts_as_the_same(result: Any, expected: Any, checker: Checker, right: bool) -> None:
    assert same(result, expected, checker) is right


@settings(deadline=None)
@given(VALUES)
def test_every_value_is_the_same_as_itself(value: Any) -> None:
    for checker in (PLAIN, STRICT, CLOSE, ANY_ORDER, Checker(unordered=True, absolute=0.1)):
        assert same(value, value, checker)


@settings(deadline=None)
@given(VALUES, VALUES)
def test_what_is_the_same_is_equal_in_python_too(a: Any, b: Any) -> None:
    assert same(a, b, STRICT) == same(b, a, STRICT)
    if same(a, b, STRICT):
        assert a == b


@settings(deadline=None)
@given(st.lists(VALUES, max_size=6), st.randoms())
def test_order_counts_only_when_it_does(values: list[Any], random: Any) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    assert same(shuffled, values, ANY_ORDER)


def test_an_expected_value_that_is_none_of_ours_is_the_suite_s_fault() -> None:
    with pytest.raises(CodecError):
        same(1, object(), PLAIN)


def test_keys_chosen_to_share_a_hash_cost_no_square() -> None:
    modulus = 2**61 - 1
    start = time.process_time()
    assert not same([index * modulus for index in range(50_000)], list(range(50_000)), ANY_ORDER)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("result", "expected", "equal"),
    [(True, 1, True), ([True, 0], [1, False], True), (True, 2, False), ({True: 1}, {1: 1}, True)],
)
def test_a_set_that_compares_as_python_does_takes_true_for_one(result: object, expected: object, equal: bool) -> None:
    assert same(result, expected, PYTHONS) is equal
    assert same(result, expected, Checker()) is (equal and repr(result) == repr(expected))


def test_tolerances_add_up_as_numpy_adds_them() -> None:
    checker = Checker(absolute=0.1, relative=0.1)
    assert same(1.19, 1.0, checker)
    assert not same(1.21, 1.0, checker)
