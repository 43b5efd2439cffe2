"""Strict JSON: what is read can be written again, sent, and means the same to every reader."""

from __future__ import annotations

import json

import orjson
import pytest
from areal.values.strict_json import MOST_DEPTH, as_utf8, first_json, members, read_json
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
REFUSED = {
    "NaN": '{"a": NaN}',
    "NaN behind its key's second value": '{"a": NaN, "a": 1}',
    "infinity": "[-Infinity]",
    "beyond a float": "[1e999]",
    "half an emoji": r'{"a": "\ud83d"}',
    "half an emoji in a value that is lost": r'{"a": "\ud83d", "a": 1}',
    "the other half": r'["\uDE00"]',
    "half an emoji as it is": '["\ud83d"]',
    "300 levels": "[" * 300 + "]" * 300,
    "300 levels of objects": '{"a":' * 300 + "1" + "}" * 300,
    "a million brackets": "[" * 10**6,
    "5,000 digits": "[" + "1" * 5000 + "]",
    "nothing": "",
    "two values": "{} {}",
    "an open text": '{"a": "\\',
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_what_breaks_a_reader_or_a_writer_is_no_json(text):
    try:
        value = read_json(text)
    except ValueError:
        value = "refused"
    assert value == "refused"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'["\ud83d\ude00"]', ["\U0001f600"]),
        (r'["\\ud83d"]', [r"\ud83d"]),
        ('{"n": 18446744073709551616}', {"n": 2**64}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('["[[[[{{{{"]', ["[[[[{{{{"]),
        ('["' + "[" * 300 + '"]', ["[" * 300]),
        ("[" * MOST_DEPTH + "]" * MOST_DEPTH, None),
    ],
)
def test_what_only_looks_like_it_is_read_exactly(text, value):
    assert value is None or read_json(text) == value
    assert orjson.loads(orjson.dumps(orjson.Fragment(text))) is not None


@given(VALUES, st.sampled_from(["", " ", "\n\t"]), st.text("]} x", max_size=5))
def test_values_are_those_of_pythons_reader_wherever_they_stand(value, space, rest):
    text = json.dumps(value, ensure_ascii=False)
    assert read_json(space + text + space) == value
    if isinstance(value, list | dict | str):
        assert first_json(space + text + rest) == (value, len(space) + len(text))


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.sampled_from([None, 1]))
def test_members_keep_the_texts_of_their_values(value, indent):
    found = members(json.dumps(value, indent=indent))
    assert {key: inner for key, (inner, _) in found.items()} == value
    assert {key: json.loads(own) for key, (_, own) in found.items()} == value
    assert all(own in json.dumps(value, indent=indent) for _, own in found.values())


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_can_be_sent(text):
    assert as_utf8(text).encode().decode() == as_utf8(text)
