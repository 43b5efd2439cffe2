"""T5: messages are equal when they say the same, however a client spells them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import Message, parse_messages
from hypothesis import given
from hypothesis import strategies as st

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": [2, 3]}'}}
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)


def one(**fields: Any) -> Message:
    (message,) = parse_messages([{"role": "assistant", **fields}])
    return message


SENT = one(content=None, tool_calls=[CALL], reasoning_content="because")
REPLAYS = {  # what clients send back for the message above
    "object echoed": {"content": None, "tool_calls": [CALL], "reasoning_content": "because", "areal": "x"},
    "reasoning dropped": {"content": None, "tool_calls": [CALL]},
    "content removed": {"tool_calls": [CALL]},
    "content empty": {"content": "", "tool_calls": [CALL]},
    "content a line end": {"content": "\n", "tool_calls": [CALL]},
    "no id, keys in another order": {
        "tool_calls": [{"function": {"arguments": '{"b":[2,3],"a":1}', "name": "add"}, "type": "function"}]
    },
}


@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS)
def test_t5_what_clients_send_back_is_the_answer_that_was_sent(replay):
    assert one(**replay).same(SENT)


@pytest.mark.parametrize(
    "other",
    [
        {"content": "no", "tool_calls": [CALL]},
        {"content": None},
        {"content": None, "tool_calls": [{"id": "c2", "function": {"name": "add", "arguments": '{"a": 2}'}}]},
        {"content": None, "tool_calls": [CALL], "reasoning_content": "therefore"},
    ],
    ids=["other text", "no call", "other arguments", "other reasoning"],
)
def test_t5_another_answer_is_another(other):
    assert not one(**other).same(SENT)


@given(TEXTS, st.sampled_from(["", " ", "\n", "\t "]), st.sampled_from(["", " ", "\n"]), st.booleans())
def test_t5_white_space_around_a_text_and_its_parts_do_not_count(text, before, behind, parts):
    spaced = before + text + behind
    content = [{"type": "text", "text": character} for character in spaced] if parts and spaced else spaced
    assert one(content=content).same(one(content=text))


@given(TEXTS, TEXTS)
def test_t5_texts_that_differ_are_told_apart(left, right):
    assert one(content=left).same(one(content=right)) == (left.strip() == right.strip())


@given(st.dictionaries(TEXTS, st.integers(), max_size=4))
def test_t5_arguments_are_compared_as_json(arguments):
    def call(text: str) -> Message:
        return one(tool_calls=[{"function": {"name": "f", "arguments": text}}])

    assert call(json.dumps(arguments)).same(call(json.dumps(dict(reversed(arguments.items())), indent=1)))


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (["hello"], "messages[0]"),
        ([{"role": "narrator"}], "messages[0].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_by_its_place(messages, field):
    with pytest.raises(CallRefusal) as caught:
        parse_messages(messages)
    assert (caught.value.status, caught.value.field) == (400, field)
