"""Rows as people write them become one normal form, or are refused at their place."""

from __future__ import annotations

import json

import pytest
from areal.errors import DataError
from areal.workflow.rows.forms import answer_row, answer_text, column_of, pair_row, prompt_row

SUM = "What is 7 + 8?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "day": {"type": ["integer", "null"]}}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}}
ASKED = {"role": "user", "content": SUM}
SAID = {"role": "assistant", "content": "15"}


def call(arguments, identity="w1"):
    return {"id": identity, "type": "function", "function": {"name": "weather", "arguments": arguments}}


def called(arguments, **more):
    return {"role": "assistant", "content": "", "tool_calls": [call(arguments)], **more}


PROMPTS = {
    "a text": ({"prompt": SUM}, [ASKED]),
    "a question": ({"question": SUM, "answer": "15"}, [ASKED]),
    "a problem": ({"problem": SUM, "solution": "15"}, [ASKED]),
    "messages": ({"messages": [ASKED]}, [ASKED]),
    "messages as JSON": ({"messages": json.dumps([ASKED])}, [ASKED]),
    "a chat as prompt": ({"prompt": [ASKED], "reward_model": {"ground_truth": "15"}}, [ASKED]),
    "text parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is "}, "7 + 8?"]}]},
        [ASKED],
    ),
    "parts of Responses": ({"prompt": [{"role": "user", "content": [{"type": "input_text", "text": SUM}]}]}, [ASKED]),
    "Gemini's parts": ({"contents": [{"role": "user", "parts": [{"text": SUM}]}]}, [ASKED]),
    "ShareGPT": ({"conversations": [{"from": "human", "value": SUM}]}, [ASKED]),
    "a system column": ({"system": "Be brief.", "question": SUM}, [{"role": "system", "content": "Be brief."}, ASKED]),
    "a developer": (
        {"messages": [{"role": "developer", "content": "Be brief."}, ASKED]},
        [{"role": "system", "content": "Be brief."}, ASKED],
    ),
    "nulls of a table": ({"messages": [{**ASKED, "name": None, "tool_calls": None}]}, [ASKED]),
    "Alpaca": (
        {"instruction": "Add.", "input": "7 and 8", "output": "15"},
        [{"role": "user", "content": "Add.\n7 and 8"}],
    ),
    "a pair's prompt": ({"prompt": SUM, "chosen": "15", "rejected": "14"}, [ASKED]),
    "parts of LLaMA-Factory": (
        {"messages": [{"role": "user", "content": [{"type": "text", "value": SUM}], "loss_weight": 0.0}]},
        [ASKED],
    ),
    "options that are none": ({"question": SUM, "options": None, "label": None}, [ASKED]),
    "choices that are shown": (
        {"question": "1 or 2?", "choices": ["1", "2"]},
        [{"role": "user", "content": "1 or 2?"}],
    ),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_of_many_shapes_are_one_chat(name: str) -> None:
    row, messages = PROMPTS[name]
    assert list(prompt_row(row).messages) == messages


def test_an_answer_that_a_row_begins_is_to_be_gone_on_with() -> None:
    chat = prompt_row({"messages": [ASKED, {"role": "assistant", "content": "It is "}]})
    assert chat.continues
    assert not prompt_row({"messages": [ASKED]}).continues


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ('{"city": "Oslo"}', {"city": "Oslo"}),
        ("", {}),
        (None, {}),
        (
            {"city": "Oslo", "day": None, "hour": None},
            {"city": "Oslo", "day": None},
        ),  # day may be null, hour is no word
    ],
)
def test_arguments_of_calls_are_objects(given, meant) -> None:
    row = {
        "messages": [ASKED, called(given), {"role": "tool", "content": "rain", "tool_call_id": "w1"}],
        "tools": [TOOL],
    }
    chat = prompt_row(row)
    assert chat.messages[1]["tool_calls"][0]["function"]["arguments"] == meant
    assert chat.messages[2] == {"role": "tool", "content": "rain", "tool_call_id": "w1"}


@pytest.mark.parametrize(
    "tools",
    [
        [TOOL],
        json.dumps([TOOL]),
        [TOOL["function"]],
        [{"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}],
        [{"type": "function", "function": {**TOOL["function"], "strict": None}}],
    ],
)
def test_tools_of_every_dialect_are_openais(tools) -> None:
    assert list(prompt_row({"messages": [ASKED], "tools": tools}).tools) == [TOOL]


def test_a_flat_map_of_parameters_becomes_a_schema_with_jsons_types() -> None:
    flat = [{"name": "weather", "parameters": {"city": {"type": "str"}, "days": {"type": "List[int], optional"}}}]
    (tool,) = prompt_row({"query": SUM, "tools": json.dumps(flat)}).tools
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "array"}},
    }


def test_calls_of_2023_and_of_anthropic_are_openais() -> None:
    old = [
        ASKED,
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
        {"role": "function", "name": "weather", "content": "rain"},
        SAID,
    ]
    chat = answer_row({"messages": old, "functions": [TOOL["function"]]})
    assert chat.messages[1] == {"role": "assistant", "content": "", "tool_calls": [call({"city": "Oslo"}, "call_0")]}
    assert chat.messages[2] == {"role": "tool", "content": "rain", "tool_call_id": "call_0", "name": "weather"}
    blocks = [
        ASKED,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I look."},
                {"type": "tool_use", "id": "w1", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "w1", "content": [{"type": "text", "text": "rain"}]}],
        },
        SAID,
    ]
    chat = answer_row({"messages": blocks})
    assert chat.messages[1] == called({"city": "Oslo"}, reasoning_content="I look.")
    assert chat.messages[2] == {"role": "tool", "content": "rain", "tool_call_id": "w1"}
    assert chat.trained == (1, 3)


def test_a_result_that_is_an_object_is_written_as_json() -> None:
    chat = prompt_row({"messages": [ASKED, called({}), {"role": "tool", "tool_call_id": "w1", "content": {"mm": 4.5}}]})
    assert chat.messages[2]["content"] == '{"mm": 4.5}'


ANSWERS = {
    "messages": ({"messages": [ASKED, SAID]}, [ASKED, SAID], (1,)),
    "a question and an answer": ({"question": SUM, "answer": "15"}, [ASKED, SAID], (1,)),
    "a number": ({"question": SUM, "answer": 15.0}, [ASKED, SAID], (1,)),
    "prompt and completion": ({"prompt": SUM, "completion": "15"}, [ASKED, SAID], (1,)),
    "chats of both": ({"prompt": [ASKED, SAID, ASKED], "completion": [SAID]}, [ASKED, SAID, ASKED, SAID], (3,)),
    "a weight of nothing": (
        {"messages": [ASKED, {**SAID, "weight": 0}, ASKED, SAID]},
        [ASKED, SAID, ASKED, SAID],
        (3,),
    ),
    "a turn that is not to be trained": (
        {"messages": [ASKED, {**SAID, "train": False}, ASKED, SAID]},
        [ASKED, SAID, ASKED, SAID],
        (3,),
    ),
    "a system column before muted turns": (
        {
            "system": "S",
            "conversations": [
                {"from": "human", "value": SUM},
                {"from": "gpt", "value": "15", "weight": 0},
                {"from": "human", "value": SUM},
                {"from": "gpt", "value": "15"},
            ],
        },
        [{"role": "system", "content": "S"}, ASKED, SAID, ASKED, SAID],
        (4,),
    ),
    "Alpaca with a history": (
        {"instruction": SUM, "history": [[SUM, "15"]], "output": "15"},
        [ASKED, SAID, ASKED, SAID],
        (1, 3),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_of_many_shapes_are_one_chat_and_the_turns_to_train(name: str) -> None:
    row, messages, trained = ANSWERS[name]
    chat = answer_row(row)
    assert list(chat.messages) == messages
    assert chat.trained == trained


def test_an_answer_is_found_at_a_dotted_path() -> None:
    assert answer_row({"prompt": [ASKED], "extra": {"gold": {"text": "15"}}}, "extra.gold.text").messages[1] == SAID
    assert column_of({"reward_model": {"ground_truth": 15}}, "reward_model.ground_truth") == 15
    assert column_of({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert column_of({"a": '{"b": 3}'}, "a.b") == 3
    assert column_of({"a": 1}, "a.b") is None


@pytest.mark.parametrize(("value", "text"), [(18, "18"), (18.0, "18"), (0.5, "0.5"), ("007", "007"), (None, None)])
def test_golds_are_texts(value, text) -> None:
    assert answer_text(value) == text


PAIRS = {
    "texts": {"prompt": SUM, "chosen": "15", "rejected": "14"},
    "chats behind a prompt": {"prompt": [ASKED], "chosen": [SAID], "rejected": [{**SAID, "content": "14"}]},
    "chats that tell the prompt": {"chosen": [ASKED, SAID], "rejected": [ASKED, {**SAID, "content": "14"}]},
    "chats beside a prompt and messages": {
        "prompt": SUM,
        "chosen": [ASKED, SAID],
        "rejected": [ASKED, {**SAID, "content": "14"}],
        "messages": [ASKED, SAID],
    },
    "one message each": {"prompt": [ASKED], "chosen": SAID, "rejected": {**SAID, "content": "14"}},
    "ShareGPT": {
        "conversations": [{"from": "human", "value": SUM}],
        "chosen": {"from": "gpt", "value": "15"},
        "rejected": {"from": "gpt", "value": "14"},
    },
    "dialogues with marks": {
        "chosen": f"\n\nHuman: {SUM}\n\nAssistant: 15",
        "rejected": f"\n\nHuman: {SUM}\n\nAssistant: 14",
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_many_shapes_are_a_prompt_and_two_answers(name: str) -> None:
    pair = pair_row(PAIRS[name])
    assert list(pair.prompt) == [ASKED]
    assert list(pair.chosen) == [SAID]
    assert list(pair.rejected) == [{**SAID, "content": "14"}]


REFUSED = {
    "an image": (
        prompt_row,
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "content[0] is an image",
    ),
    "a role of nobody": (prompt_row, {"messages": [{"role": "judge", "content": "x"}]}, "messages[0].role is 'judge'"),
    "no words": (prompt_row, {"messages": [{"role": "user", "content": None}]}, "messages[0] says nothing"),
    "no messages": (prompt_row, {"messages": []}, "messages is empty"),
    "a null": (prompt_row, {"prompt": None}, "column prompt is null"),
    "broken arguments": (
        prompt_row,
        {"messages": [ASKED, called('{"city": ')]},
        "messages[1].tool_calls[0].function.arguments is no JSON object",
    ),
    "a text alone": (answer_row, {"text": "Once."}, "no prompt and no answer"),
    "hidden choices": (
        prompt_row,
        {"question": "Which?", "choices": ["a", "b"]},
        "choices that the prompt does not show",
    ),
    "hidden options by letter": (
        prompt_row,
        {"question": "Which?", "options": {"A": "a", "B": "b"}, "label": "A"},
        "column options holds choices",
    ),
    "hidden options as a text": (
        prompt_row,
        {"question": "Which?", "options": "A) a B) b", "Answer": "A"},
        "column options holds choices",
    ),
    "an input without an instruction": (
        answer_row,
        {"input": SUM, "target": 15.0},
        "column input goes with an instruction",
    ),
    "an unpaired preference in messages": (answer_row, {"messages": [ASKED, SAID], "label": False}, "KTO"),
    "a turn that a loss weight mutes": (
        answer_row,
        {"messages": [ASKED, {**SAID, "loss_weight": 0.0}]},
        "no turn of the row is trained",
    ),
    "an empty answer": (answer_row, {"messages": [ASKED, {**SAID, "content": " "}]}, "nothing but an end token"),
    "no answer": (answer_row, {"prompt": SUM}, "nor an answer in answer"),
    "only muted turns": (answer_row, {"messages": [ASKED, {**SAID, "weight": 0}]}, "no turn of the row is trained"),
    "an unpaired preference": (answer_row, {"prompt": SUM, "completion": "15", "label": True}, "KTO"),
    "steps": (answer_row, {"prompt": SUM, "completions": ["a"], "labels": [True]}, "process supervision"),
    "scored completions": (pair_row, {"prompt": SUM, "completions": [{"score": 1}]}, "several scored completions"),
    "equal sides": (pair_row, {"prompt": SUM, "chosen": "15", "rejected": "15"}, "are the same"),
    "one side": (pair_row, {"prompt": SUM, "chosen": "15"}, "column 'rejected' is missing"),
    "another chat's side": (
        pair_row,
        {"prompt": SUM, "chosen": [{**ASKED, "content": "Else?"}, SAID], "rejected": [ASKED, SAID]},
        "column chosen begins with another chat",
    ),
    "no prompt before a pair": (pair_row, {"chosen": "15", "rejected": "14"}, "a pair has no prompt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_place_here_is_refused_where_it_stands(name: str) -> None:
    read, row, words = REFUSED[name]
    with pytest.raises(DataError) as refused:
        read(row)
    assert words in str(refused.value)
    assert refused.value.fix
