"""Shapes of rows that people bring, each with the normal form that it means or the words that refuse it."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from areal.errors import DataError
from areal.workflow.rows.forms import ChatRow, PairRow, answer_row, form_name, pair_row, prompt_row
from areal.workflow.rows.messages import texts_of

with gzip.open(Path(__file__).parent / "row_shapes.jsonl.gz", "rt") as file:
    SHAPES = {shape["shape"]: shape for shape in map(json.loads, file)}

READ: dict[str, Callable[[dict[str, Any]], Any]] = {"rl": prompt_row, "sft": answer_row, "pair": pair_row}
COMPARED = ("messages", "tools", "continues", "prompt", "chosen", "rejected")
REFUSED_HERE = {"question-choices": "column choices holds choices that the prompt does not show"}
JUNK: list[Any] = [
    None, "", 0, 1.5, True, [], {}, "x", [None], [""], [{}], {"a": None}, [[]], "[", "[]", '[{"role": "user"}]', [1],
    {"role": "user"}, [{"role": None}], [{"role": "user", "content": []}], {"text": 1}, [["a", "b"]],
    [{"type": "text"}],
    [{"type": "tool_use"}], {"type": "tool_result", "content": [1]}, [{"functionCall": None}],
    [{"functionResponse": 1}],
    {"name": 1}, {"properties": []}, {"properties": {"a": 1}}, {"type": [1]}, {"anyOf": True}, {"role": ["user"]},
    [{"function": {"name": "a", "parameters": {"properties": {"b": 3}}}}],
]  # fmt: skip


def told(found: ChatRow | PairRow) -> dict[str, Any]:
    if isinstance(found, PairRow):
        normal = {"prompt": found.prompt, "chosen": found.chosen, "rejected": found.rejected, "tools": found.tools}
    else:
        normal = {"messages": found.messages, "tools": found.tools, "continues": found.continues or None}
        normal["trained_turns"] = found.trained
    return {name: list(value) if isinstance(value, tuple) else value for name, value in normal.items() if value}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_read_as_it_means_or_refused_in_words(name: str) -> None:
    shape = SHAPES[name]
    want, read = shape["want"], READ[shape["use"]]
    if "refused" in want or name in REFUSED_HERE:
        with pytest.raises(DataError) as raised:
            read(shape["row"])
        assert raised.value.fix
        assert REFUSED_HERE.get(name, want.get("refused", "")).split(":")[0].split(" (")[0] in raised.value.message
        return
    found = told(read(shape["row"]))
    for field in (*COMPARED, "trained_turns"):
        if field in want or field in ("messages", "tools", "continues"):
            assert found.get(field) == want.get(field), field


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield above
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from places(below, (*above, key))


def with_junk(value: Any, place: tuple[Any, ...], junk: Any) -> Any:
    if not place:
        return junk
    changed = copy.copy(value)
    changed[place[0]] = with_junk(value[place[0]], place[1:], junk)
    return changed


def test_whatever_stands_in_a_row_it_is_a_chat_or_an_error_in_words() -> None:
    draw = random.Random(5)
    rows = [shape["row"] for shape in SHAPES.values()]
    for _ in range(6_000):
        row = draw.choice(rows)
        for _ in range(draw.choice((1, 1, 2))):
            if spots := [place for place in places(row) if place]:
                row = with_junk(row, draw.choice(spots), draw.choice(JUNK))
        form_name(row)
        for read in READ.values():
            try:
                found = read(row)
            except DataError:
                continue
            sides = (found.prompt, found.chosen, found.rejected) if isinstance(found, PairRow) else (found.messages,)
            for message in (message for side in sides for message in side):
                assert message["role"] in ("system", "user", "assistant", "tool")
                assert isinstance(message["content"], str)
                assert all(isinstance(text, str) for text in texts_of(message))
            assert all(isinstance(tool["function"]["name"], str) for tool in found.tools)


ASKED = {"role": "user", "content": "7 + 8?"}
SCHEMA = {"type": "object", "properties": {
    "a": {"type": "object", "properties": {"b": {"type": "integer"}, "c": {"type": ["integer", "null"]}}},
    "l": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}}  # fmt: skip
LOUD: dict[str, tuple[dict[str, Any], str]] = {
    "a weight between": ({"messages": [ASKED, {"role": "assistant", "content": "15", "weight": 0.5}]}, "weight is 0.5"),
    "a text as train": ({"messages": [ASKED, {"role": "assistant", "content": "15", "train": "no"}]}, "train is 'no'"),
    "reasoning twice": (
        {"messages": [ASKED, {"role": "assistant", "content": "15", "reasoning": "a", "thinking": "b"}]},
        "tells its reasoning twice",
    ),
    "a user's reasoning": ({"messages": [{**ASKED, "reasoning": "a"}], "answer": "15"}, "has reasoning, but is user's"),
    "reasoning of objects": (
        {"messages": [ASKED, {"role": "assistant", "content": "15", "reasoning": [{"text": "a"}]}]},
        "reasoning is a list",
    ),
    "images beside the text": ({"messages": [ASKED], "images": ["a.png"], "answer": "15"}, "column images is not"),
    "an input of another kind": ({"instruction": "Add", "input": {"a": 1}, "output": "15"}, "column input is a dict"),
    "a system of another kind": ({"prompt": "1", "system": ["a"], "answer": "1"}, "column system is a list"),
    "two systems": (
        {"messages": [{"role": "system", "content": "a"}, ASKED], "system": "b", "answer": "15"}, "two system messages"
    ),
    "a refusal": ({"messages": [ASKED, {"role": "assistant", "content": "15", "refusal": "no"}]}, "refusal isn't"),
    "a picture of a message": ({"messages": [{**ASKED, "images": ["a.png"]}], "answer": "15"}, "images isn't empty"),
    "a chat as Python prints it": ({"prompt": str([ASKED]), "answer": "15"}, "as Python prints it"),
    "a preference in numbers": ({"prompt": "7 + 8?", "completion": "15", "label": 0}, "unpaired preference"),
    "a preference in words": ({"prompt": "7 + 8?", "completion": "15", "label": "False"}, "unpaired preference"),
    "an empty prompt": ({"prompt": "", "answer": "15"}, "the prompt is empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOUD)
def test_nothing_of_a_row_is_dropped_without_a_word(name: str) -> None:
    row, words = LOUD[name]
    with pytest.raises(DataError, match=words):
        answer_row(row)


def test_a_prompt_that_ends_with_a_call_has_to_give_its_result() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}
    with pytest.raises(DataError, match="ends with a call that has no result"):
        prompt_row({"messages": [ASKED, call]})


def test_nulls_that_a_schema_does_not_allow_are_dropped_at_every_depth() -> None:
    arguments = {"a": {"b": None, "c": None}, "l": [{"x": None}, {"x": 1}], "z": None}
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]}
    tools = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
    chat = prompt_row({"messages": [ASKED, call, {"role": "tool", "content": "15"}], "tools": tools})
    assert chat.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": {"c": None}, "l": [{}, {"x": 1}]}


def test_all_thinking_parts_of_an_answer_are_its_reasoning() -> None:
    parts = [
        {"type": "thinking", "thinking": "one "},
        {"type": "thinking", "thinking": "two"},
        {"type": "text", "text": "3"},
    ]
    chat = answer_row({"messages": [ASKED, {"role": "assistant", "content": parts}]})
    assert chat.messages[1] == {"role": "assistant", "content": "3", "reasoning_content": "one two"}


def test_a_mapping_of_lists_is_a_list_of_messages() -> None:
    given = {"from": ["human", "gpt"], "value": ["7 + 8?", "15"]}
    assert answer_row({"conversations": given}).messages == (ASKED, {"role": "assistant", "content": "15"})


def test_a_call_of_2023_may_be_a_text() -> None:
    call = {"role": "assistant", "content": None, "function_call": '{"name": "add", "arguments": "{\\"a\\": 7}"}'}
    chat = prompt_row({"messages": [ASKED, call, {"role": "function", "name": "add", "content": "15"}]})
    assert chat.messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 7}}


@pytest.mark.parametrize("answers", [{}, {"chosen": " 15", "rejected": " 16"}])
def test_a_text_prompt_with_hh_rlhfs_marks_is_the_dialogue_that_it_tells(answers: dict[str, str]) -> None:
    row = {"prompt": "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: 7 + 8?\n\nAssistant:", **answers}
    wanted = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, ASKED)
    assert (pair_row(row).prompt if answers else prompt_row(row).messages) == wanted


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"conversations": [{"from": "human", "value": "1"}]}, "ShareGPT"),
        ({"messages": [ASKED]}, "OpenAI's messages"),
        ({"contents": [{"role": "user", "parts": [{"text": "1"}]}]}, "Gemini's contents"),
        ({"instruction": "1", "output": "2"}, "Alpaca's instruction"),
        ({"prompt": "1", "completion": "2"}, "TRL's prompt and completion"),
        ({"prompt": "1", "chosen": "2", "rejected": "3"}, "chosen and rejected"),
        ({"problem": "1"}, "a text prompt"),
        ({"text": "1"}, None),
    ],
)  # fmt: skip
def test_a_form_has_a_name_that_people_know(row: dict[str, Any], name: str | None) -> None:
    assert form_name(row) == name
