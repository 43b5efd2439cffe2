"""Suites as documents: nothing lost, one digest everywhere, mistakes named by their place."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest
from areal.errors import DataError
from areal_judge.judge.suites import digest, document, from_document, from_json, to_json, validate
from areal_judge.judge.tagged import TaggedError, from_tagged, to_tagged
from areal_judge.judge.values import AssertSuite, CallCase, CallSuite, Checker, Integrity, StdioCase, StdioSuite
from areal_judge.sandbox.values import Limits
from hypothesis import given
from hypothesis import strategies as st

ADD = CallSuite("add", (CallCase((1, 2), 3),))
SUM = StdioSuite((StdioCase("1 2\n", "3\n"),))
CHECK = AssertSuite("def check(candidate):\n    assert candidate(1) == 2\n", "up")

_keys = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
_values = st.recursive(
    _keys | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(_keys, inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.sets(_keys, max_size=4)
    ),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    """Equality that knows 1 from True, 0.0 from -0.0, and a list from a tuple."""
    return repr(to_tagged(left)) == repr(to_tagged(right)) and type(left) is type(right)


@given(_values)
def test_every_value_survives_json(value: Any) -> None:
    assert same(from_tagged(json.loads(json.dumps(to_tagged(value), allow_nan=False))), value)


@given(st.lists(st.tuples(st.lists(_values, max_size=3), _values), min_size=1, max_size=4))
def test_every_suite_survives_json(cases: list[tuple[list[Any], Any]]) -> None:
    suite = CallSuite("f", tuple(CallCase(tuple(arguments), expected) for arguments, expected in cases))
    back = from_json(to_json(suite))
    assert to_json(back) == to_json(suite)
    assert back == suite
    assert digest(back) == digest(suite)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, -0.0, 1 << 200, -(1 << 54), (1 << 53) + 1, "\ud800", {"$tuple": 1}, {1: 2}]
)
def test_what_json_lacks_is_kept(value: Any) -> None:
    assert same(from_tagged(json.loads(json.dumps(to_tagged(value), allow_nan=False))), value)


class Text(str):
    pass


@pytest.mark.parametrize(
    "value", [Text("x"), OrderedDict(a=1), object(), len, bytearray(b"x"), [[Text("x")]], {"a": {1: object()}}]
)
def test_only_plain_values_have_a_form(value: Any) -> None:
    with pytest.raises(TaggedError):
        to_tagged(value)


def test_integers_are_bounded_both_ways() -> None:
    with pytest.raises(TaggedError, match="bits"):
        to_tagged(1 << 20_000)
    with pytest.raises(TaggedError, match="bits"):
        from_tagged(1 << 20_000)
    assert from_tagged(to_tagged(1 << 16_000)) == 1 << 16_000


def test_depth_is_bounded_both_ways() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    for convert in (to_tagged, from_tagged):
        with pytest.raises(TaggedError, match="deep"):
            convert(deep)


@pytest.mark.parametrize(
    "form",
    [
        {"$tuple": 1}, {"$what": 1}, {"$tuple": [], "x": 1}, {"$set": [[]]}, {"$bytes": "xyz"}, {"$float": "1"},
        {"$complex": [1]}, {"$complex": ["a", 1]}, {"$int": "zz"}, {"$int": "0x" + "f" * 9000}, {"$dict": [[1]]},
        {"$dict": [[1, 2], [1, 3]]}, {"$dict": [[[], 2]]}, math.nan, {"$complex": [{"$int": "0x" + "f" * 400}, 0]},
    ],
)  # fmt: skip
def test_a_form_that_means_nothing_is_refused(form: Any) -> None:
    with pytest.raises(TaggedError):
        from_tagged(form)


def test_a_mistake_in_a_value_is_named_by_its_path() -> None:
    text = '{"kind":"call","entry_point":"f","cases":[{"arguments":[1],"expected":[0,{"a":{"$float":"x"}}]}]}'
    with pytest.raises(DataError, match=r"suite\.cases\[0\]\.expected\[1\]\['a'\]: "):
        from_json(text)
    with pytest.raises(DataError, match=r"suite\.cases\[0\]\.arguments\[1\]: "):
        to_json(CallSuite("f", (CallCase((1, object()), 2),)))


@pytest.mark.parametrize("suite", [ADD, SUM, CHECK])
def test_the_digest_is_the_same_in_another_process(suite: Any) -> None:
    code = "import sys; from areal_judge.judge.suites import *; print(digest(from_json(sys.stdin.read())))"
    done = subprocess.run(
        [sys.executable, "-c", code], input=to_json(suite), capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == digest(suite)
    assert len(digest(suite)) == 64


def test_sets_have_one_form_whatever_their_order() -> None:
    assert to_tagged({8, 16, 24, 0}) == to_tagged({0, 24, 16, 8})  # colliding: a set keeps the order of their coming
    assert to_tagged({"b", 1, None, (2,)}) == to_tagged({(2,), None, "b", 1})


def test_everything_that_judges_differently_has_another_digest() -> None:
    suites = [
        ADD, SUM, CHECK, replace(ADD, entry_point="sub"), replace(ADD, checker=Checker(absolute=1e-6)),
        replace(ADD, limits=Limits(wall_s=5)), replace(ADD, isolate_cases=True), replace(ADD, unwrap_single=True),
        replace(ADD, cases=(CallCase((1, 2), 3.0),)), replace(ADD, cases=(CallCase((1, 2), True),)),
        replace(ADD, cases=(CallCase(([1, 2],), 3),)), replace(ADD, cases=(CallCase(((1, 2),), 3),)),
        replace(SUM, ignore_exit_code=True), replace(CHECK, integrity=Integrity.IN_PROCESS),
        replace(ADD, prelude="import os"),
    ]  # fmt: skip
    assert len({digest(suite) for suite in suites}) == len(suites)


def test_a_document_may_leave_out_what_has_a_default() -> None:
    short = {"kind": "call", "entry_point": "add", "cases": [{"arguments": [1, 2], "expected": 3}], "checker": "exact"}
    assert from_document(short) == replace(ADD, checker=Checker("exact"))
    assert from_document(
        {"kind": "stdio", "cases": [{"stdin": "1 2\n", "expected": "3\n"}], "limits": {"wall_s": 2}}
    ) == (replace(SUM, limits=Limits(wall_s=2.0)))
    assert document(CHECK)["integrity"] == "SPLIT"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "quiz"}, r"suite\.kind"),
        ({"kind": None}, r"suite\.kind"),
        ({"entrypoint": "f"}, r"suite\.entrypoint: no such field; entry_point"),
        ({"cases": []}, r"suite\.cases: no cases"),
        ({"cases": {}}, r"suite\.cases: a list is due, not an object"),
        ({"cases": [{"arguments": [1]}]}, r"suite\.cases\[0\]\.expected: missing"),
        ({"cases": [{"expected": 1}]}, r"suite\.cases\[0\]\.arguments: missing"),
        ({"cases": [{"arguments": 1, "expected": 1}]}, r"suite\.cases\[0\]\.arguments: a list"),
        ({"cases": [7]}, r"suite\.cases\[0\]: an object is due"),
        ({"cases": [{"arguments": [], "expected": 1, "keywords": {"a b": 1}}]}, r"cases\[0\]\.keywords"),
        ({"entry_point": ""}, r"suite\.entry_point"),
        ({"entry_point": "os.path.join"}, r"suite\.entry_point"),
        ({"entry_point": "class"}, r"suite\.entry_point"),
        ({"entry_point": 3}, r"suite\.entry_point"),
        ({"checker": {"name": "fuzzy"}}, r"suite\.checker\.name: unknown checker 'fuzzy'"),
        ({"checker": "fuzzy"}, r"suite\.checker\.name"),
        ({"checker": {"absolute": -1}}, r"suite\.checker\.absolute"),
        ({"checker": {"name": "custom"}}, r"suite\.checker\.program"),
        ({"checker": {"name": "custom", "program": "def ("}}, r"suite\.checker\.program: line 1 is no Python"),
        ({"checker": {"program": "print()"}}, r"suite\.checker\.program"),
        ({"limits": {"wall_s": 0}}, r"suite\.limits\.wall_s"),
        ({"limits": {"wall_s": True}}, r"suite\.limits\.wall_s: a number is due"),
        ({"limits": {"memory_bytes": 1.5}}, r"suite\.limits\.memory_bytes: a whole number is due"),
        ({"limits": {"memory_bytes": 1_000_000}}, "1000000 is too little: no interpreter starts with less"),
        ({"limits": {"processes": 0}}, r"suite\.limits\.processes"),
        ({"limits": {"wall": 1}}, r"suite\.limits\.wall: no such field"),
        ({"prelude": "import"}, r"suite\.prelude: line 1 is no Python"),
        ({"isolate_cases": "yes"}, r"suite\.isolate_cases: true or false is due"),
    ],
)
def test_a_mistake_is_named_by_its_place(change: dict[str, Any], message: str) -> None:
    good = {"kind": "call", "entry_point": "f", "cases": [{"arguments": [], "expected": 1}]}
    from_document(good)
    with pytest.raises(DataError, match=message) as refused:
        from_document(good | change)
    assert refused.value.fix


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["$tuple", "$set", "$dict", "$int", "name", "a", "arguments"]), inner, max_size=2
        )
    ),
    max_leaves=8,
)
_fields = st.sampled_from([
    "kind", "entry_point", "cases", "checker", "limits", "prelude", "test", "integrity", "isolate_cases", "x",
])  # fmt: skip


@given(st.sampled_from([ADD, SUM, CHECK]), st.dictionaries(_fields, _json, max_size=2), _json)
def test_any_document_is_a_suite_or_a_data_error(suite: Any, damage: dict[str, Any], case: Any) -> None:
    good = document(suite)
    for read in (
        good | damage,
        good | {"cases": [case]},
        good | {"cases": [{"arguments": [case], "expected": case}]},
        case,
    ):
        with contextlib.suppress(DataError):
            found = from_document(read)
            assert digest(from_json(to_json(found))) == digest(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON"),
        ("[1]", "an object is due, not a list"),
        ("{", "no JSON"),
        (b"\xff\xfe\xfd", "no JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"kind":"stdio","kind":"call"}', "'kind' twice"),
        ('{"kind":"call","entry_point":"f","cases":[{"arguments":[NaN],"expected":1}]}', r"\$float"),
    ],
)
def test_text_that_is_no_suite_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_json(text)


@pytest.mark.parametrize(
    ("suite", "message"),
    [
        (replace(SUM, cases=()), "no cases"),
        (replace(SUM, cases=(StdioCase("1", None),)), r"cases\[0\]\.expected: no expected output"),  # type: ignore[arg-type]
        (replace(SUM, cases=(CallCase((), 1),)), r"cases\[0\]: a CallCase"),  # type: ignore[arg-type]
        (replace(ADD, cases=(StdioCase("", "x"),)), r"cases\[0\]: a StdioCase"),  # type: ignore[arg-type]
        (replace(ADD, cases=(CallCase([1], 1),)), r"arguments: a tuple"),  # type: ignore[arg-type]
        (replace(ADD, cases=(CallCase((), object()),)), r"cases\[0\]\.expected: a builtins.object"),
        (replace(CHECK, test="  "), "no test code"),
        (replace(CHECK, test="def check(candidate):\n    candidate(1)\n"), "asserts nothing"),
        (replace(CHECK, test="assert ("), "line 1 is no Python"),
        (replace(CHECK, test="assert '\0'"), "test"),
        (replace(CHECK, entry_point="a b"), "entry_point"),
        (replace(SUM, limits=Limits(wall_s=math.nan)), "wall_s"),
        (replace(SUM, limits=Limits(memory_bytes=10)), "memory_bytes"),
        ("not a suite", "is no suite"),
    ],
)
def test_a_suite_that_judges_nothing_is_refused(suite: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        validate(suite)


@pytest.mark.parametrize(
    "test", ["self.assertEqual(f(1), 2)", "numpy.testing.assert_allclose(f(1), 2)", "raise ValueError"]
)
def test_other_assertions_count(test: str) -> None:
    suite = replace(CHECK, test=test)
    validate(suite)
    with pytest.raises(DataError, match="asserts nothing"):
        validate(replace(suite, test="print(1)"))
