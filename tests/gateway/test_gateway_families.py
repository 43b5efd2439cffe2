"""T3, T4, T7, T13 for families of models: turns continue, calls are read back, results are given, text stays text.

`AREAL_CHAT_TEMPLATES` names a folder of released templates (*.jinja) to be tried beside those made here, and
`AREAL_CONVERSATIONS` how many random conversations each of them has.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import Message, ToolCall, names_of
from areal.gateway.reading import AnswerReader, Manner, read
from areal.gateway.templates.forms import FORMS, Grammar
from areal.gateway.templates.template import Template
from areal.workflow.tokenizer import Tokenizer
from support.chat_tokenizer import control_strings, write_chat_tokenizer
from support.family_templates import FAMILIES

CONVERSATIONS = int(os.environ.get("AREAL_CONVERSATIONS", "12"))
END = "</s>"
ALONE = (FORMS["LLAMA"], FORMS["GPT_OSS"])  # forms in which an answer holds one call
TYPES = {"n": "integer", "s": "string", "t": "string", "l": "array", "b": "boolean", "o": "object"}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Does.", "parameters": {
        "type": "object", "properties": {key: {"type": kind, "description": "It."} for key, kind in TYPES.items()}}}}
    for name in ("look", "add_all")
]  # fmt: skip
WORDS = ["a", "é", "0", " ", "\n", "it's", '"', "{", "}", "[", "\\", "&", "the", "🙂", ":", ","]


def released() -> dict[str, str]:
    folder = os.environ.get("AREAL_CHAT_TEMPLATES")
    return {path.stem: path.read_text() for path in sorted(Path(folder).glob("*.jinja"))} if folder else {}


def tokenizer_for(directory: Path, template: str) -> Tokenizer:
    return Tokenizer.from_dir(write_chat_tokenizer(directory, template, control_strings(template), END))


@pytest.fixture(scope="module")
def family(request, tmp_path_factory) -> tuple[Template, Tokenizer]:
    name, text = request.param
    tokenizer = tokenizer_for(tmp_path_factory.mktemp(name.lower()), text)
    return Template(tokenizer), tokenizer


made = pytest.mark.parametrize("family", FAMILIES.items(), ids=[*FAMILIES], indirect=True)
every = pytest.mark.parametrize(
    "family", (FAMILIES | released()).items(), ids=[*FAMILIES, *released()], indirect=True
)  # fmt: skip


@made
def test_a_familys_form_is_found_and_its_turns_are_proved(family, request):
    template, tokenizer = family
    name = request.node.callspec.id
    assert template.form is FORMS[name]
    assert template.unproved == ""
    assert tokenizer.turns.unproved(("tool",), calls=1) == ""
    assert tokenizer.turns.end in tokenizer.eos_ids


def value(kind: str, rng: random.Random, depth: int = 2) -> Any:
    match kind:
        case "integer":
            return rng.choice([0, -7, 2**64, 12])
        case "boolean":
            return rng.random() < 0.5
        case "string":
            return "".join(rng.choice(WORDS) for _ in range(rng.randrange(5))).strip()
        case "array":
            return [value(rng.choice(["integer", "string", "object"]), rng, depth - 1) for _ in range(2 * (depth > 0))]
        case _:
            return {f"k{n}": value(rng.choice([*TYPES.values()]), rng, depth - 1) for n in range(2 * (depth > 0))}


def calls_of(rng: random.Random, most: int, form: Grammar) -> list[ToolCall]:
    found = []
    for number in range(rng.randint(1, most)):
        arguments = {key: value(TYPES[key], rng) for key in rng.sample([*TYPES], rng.randrange(4))}
        if form.arguments.name == "PYTHON":  # these templates write texts without escapes
            arguments = json.loads(json.dumps(arguments, ensure_ascii=False).replace("'", "").replace("\\\\", ""))
        name = TOOLS[rng.randrange(2)]["function"]["name"]
        named = f"functions.{name}:{number}" if form is FORMS["KIMI"] else f"call0000{number}"
        found.append(ToolCall(named, name, json.dumps(arguments)))
    return found


def written(tokenizer: Tokenizer, calls: list[ToolCall]) -> list[int]:
    """What a model would have sampled for these calls."""
    mark = Message("assistant", "", tuple(calls)).as_template()
    asked = [{"role": "user", "content": "q"}]
    whole = tokenizer.render_chat([*asked, mark], tools=TOOLS, generation_prompt=False)
    prompt = tokenizer.render_chat(asked, tools=TOOLS)
    begin = next(
        (place for place, pair in enumerate(zip(whole, prompt, strict=False)) if pair[0] != pair[1]), len(prompt)
    )
    for text in tokenizer.added:  # not within a control token
        cut = whole.rfind(text, 0, begin + len(text) - 1)
        begin = cut if 0 <= cut < begin < cut + len(text) else begin
    return tokenizer.encode(whole[begin:], special=False).tolist()


@made
def test_t7_t10_calls_are_read_back_whatever_pieces_tokens_come_in(family):
    template, tokenizer = family
    rng = random.Random(7)
    for _ in range(CONVERSATIONS):
        calls = calls_of(rng, 1 if template.form in ALONE else 2, template.form)
        ids = written(tokenizer, calls)
        manner = Manner(form=template.form, names=names_of(TOOLS), thinks=template.thinks, tags=template.tags)
        whole = read(AnswerReader(tokenizer, manner), ids)
        assert [call.canonical for call in whole.tool_calls] == [call.canonical for call in calls]
        assert not whole.text.strip()
        reader, at = AnswerReader(tokenizer, manner), 0
        while at < len(ids):
            size = rng.randint(1, 9)
            reader.feed(ids[at : at + size])
            at += size
        reader.end()
        assert reader.message == whole


@every
def test_random_conversations_have_no_false_token(family):
    """The bridge says what the template writes behind the answer, and of control tokens only the template's own."""
    template, tokenizer = family
    if template.unproved:
        with pytest.raises(CallRefusal):
            template.bridge([Message("user", "and")], last_id=None)
        return
    rng = random.Random(25)
    control = sorted(set(tokenizer.added) - {END})
    results = template.form is not None and not tokenizer.turns.unproved(("tool",), calls=1)
    for _ in range(CONVERSATIONS):
        said = "".join(rng.choice([*WORDS, *control, control[0][:-1]]) for _ in range(rng.randint(1, 6))).strip() or "x"
        if results and rng.random() < 0.5:
            calls = calls_of(rng, 1, template.form)
            answer = Message("assistant", "", tuple(calls))
            new, plain = (Message("tool", text, tool_call_id=calls[0].id) for text in (said, "x"))
        else:
            answer, new, plain = Message("assistant", "yes"), Message("user", said), Message("user", "x")
        refused = False
        try:
            ids = template.bridge([new], last_id=None, answer=answer, tools=TOOLS)
        except CallRefusal as error:
            refused = error.code == "template_refused"  # it does something else with such a text: said in words
            if not refused:
                raise
        if refused:
            continue
        harmless = template.bridge([plain], last_id=None, answer=answer, tools=TOOLS)
        assert Counter(map(tokenizer.text_of, only(ids, tokenizer))) == Counter(
            map(tokenizer.text_of, only(harmless, tokenizer))
        )
        text = tokenizer.decode(ids, skip_special=False)
        spelled = json.dumps(said, ensure_ascii=False)[1:-1], json.dumps(said)[1:-1], said
        assert any(spelling in text for spelling in spelled)
        shown = [message.as_template() for message in (Message("user", "q"), answer, new)]
        if new.role == "tool":
            shown[-1]["name"] = answer.tool_calls[0].name
        whole = tokenizer.render_chat(shown, tools=TOOLS if new.role == "tool" else ())
        assert whole.endswith(text)


def only(ids: Any, tokenizer: Tokenizer) -> list[int]:
    return [token for token in ids.tolist() if token in set(tokenizer.added.values())]


@every
def test_t4_what_an_answer_has_said_of_its_close_is_not_said_again(family):
    template, tokenizer = family
    if template.unproved:
        return
    cut = template.bridge([Message("user", "and")], last_id=None).tolist()
    whole = template.bridge([Message("user", "and")], last_id=tokenizer.turns.end).tolist()
    assert cut[len(cut) - len(whole) :] == whole
    assert set(cut[: len(cut) - len(whole)]) <= set(tokenizer.added.values())


@made
def test_a_result_stands_behind_the_real_call(family, request):
    template, tokenizer = family
    if request.node.callspec.id not in ("GEMMA", "GPT_OSS", "KIMI"):
        return
    for name in ("look", "add_all"):
        call = ToolCall(f"functions.{name}:0", name, "{}")
        result = Message("tool", "8", tool_call_id=call.id)
        ids = template.bridge([result], last_id=None, answer=Message("assistant", "", (call,)), tools=TOOLS)
        assert name in tokenizer.decode(ids, skip_special=False)


def test_brackets_within_more_than_64_others_are_text(tmp_path):
    tokenizer = tokenizer_for(tmp_path, FAMILIES["HERMES"])
    manner = Manner(form=FORMS["HERMES"], names=names_of(TOOLS))
    for depth, calls in ((60, 1), (70, 0), (5000, 0)):
        value = '{"a":' * depth + "1" + "}" * depth
        said = f'<tool_call>{{"name": "look", "arguments": {value}}}</tool_call>'
        reader = AnswerReader(tokenizer, manner)
        answer = read(reader, tokenizer.encode(said, special=False).tolist())
        assert len(answer.tool_calls) == calls
        assert answer.text == ("" if calls else said)


@pytest.mark.parametrize(
    "arguments", ['{"n": NaN}', '{"s": "\\ud83d"}', '{"n": ' + "9" * 5000 + "}", "[1]", '"x"', '{"n": 1', "null"]
)
def test_what_no_client_could_read_is_text(tmp_path, arguments):
    tokenizer = tokenizer_for(tmp_path, FAMILIES["HERMES"])
    said = f'<tool_call>{{"name": "look", "arguments": {arguments}}}</tool_call>'
    reader = AnswerReader(tokenizer, Manner(form=FORMS["HERMES"], names=names_of(TOOLS)))
    answer = read(reader, tokenizer.encode(said, special=False).tolist())
    assert (answer.tool_calls, answer.text, reader.unparsed) == ((), said, True)


def test_a_close_within_a_text_of_the_arguments_is_no_close(tmp_path):
    tokenizer = tokenizer_for(tmp_path, FAMILIES["HERMES"])
    said = '<tool_call>{"name": "look", "arguments": {"s": "</tool_call>\\""}}</tool_call>'
    answer = read(
        AnswerReader(tokenizer, Manner(form=FORMS["HERMES"], names={"look"})),
        tokenizer.encode(said, special=False).tolist(),
    )
    assert [json.loads(call.arguments) for call in answer.tool_calls] == [{"s": '</tool_call>"'}]


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ({"type": "string"}, "007", "007"),
        ({"type": "integer"}, "7", 7),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": "array"}, "['a', True]", ["a", True]),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({}, "1e3", 1000.0),
        ({}, "say", "say"),
    ],
)
def test_values_between_tags_have_the_type_of_the_tools_schema(tmp_path, kind, text, found):
    tokenizer = tokenizer_for(tmp_path, FAMILIES["QWEN_CODER"])
    said = f"<tool_call>\n<function=f>\n<parameter=v>\n{text}\n</parameter>\n</function>\n</tool_call>"
    manner = Manner(form=FORMS["QWEN_CODER"], names={"f": {"properties": {"v": kind}}})
    answer = read(AnswerReader(tokenizer, manner), tokenizer.encode(said, special=False).tolist())
    assert json.loads(answer.tool_calls[0].arguments) == {"v": found}


DROPS_THOUGHTS = FAMILIES["HERMES"].replace(
    "+ m.content",
    "+ ('<think>' + m.reasoning_content + '</think>' if loop.last and m.reasoning_content else '') + m.content",
)


def test_a_template_that_drops_old_thoughts_is_continued(tmp_path):
    template = Template(tokenizer_for(tmp_path, DROPS_THOUGHTS))
    assert template.unproved == ""


def test_what_changes_with_the_history_is_refused_in_words(tmp_path):
    counted = FAMILIES["HERMES"].replace("'<|im_start|>' + m.role", "'<|im_start|>' + loop.index | string + m.role")
    assert "depends on what stands before" in Template(tokenizer_for(tmp_path, counted)).unproved


def test_channels_of_gpt_oss_are_reasoning_text_and_calls(tmp_path):
    tokenizer = tokenizer_for(tmp_path, FAMILIES["GPT_OSS"] + "{#<|constrain|>#}")
    template = Template(tokenizer)
    said = (
        "<|channel|>analysis<|message|>Look first.<|end|><|start|>assistant<|channel|>commentary to=functions.look "
        '<|constrain|>json<|message|>{"n": 7}<|call|>'
    )
    manner = Manner(form=FORMS["GPT_OSS"], names=names_of(TOOLS), thinks=True, tags=template.tags)
    answer = read(AnswerReader(tokenizer, manner), tokenizer.encode(said, special=False).tolist())
    assert (answer.text, answer.reasoning) == ("", "Look first.")
    assert [call.canonical for call in answer.tool_calls] == [("look", '{"n": 7}')]
    said = "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Eight.<|return|>"
    answer = read(AnswerReader(tokenizer, manner), tokenizer.encode(said, special=False).tolist())
    assert (answer.text, answer.reasoning, answer.tool_calls) == ("Eight.", "So.", ())


@pytest.mark.skipif(not released(), reason="AREAL_CHAT_TEMPLATES names no folder")
def test_most_released_templates_continue_and_call_tools(tmp_path):
    continue_, results, forms = [], [], []
    for name, text in released().items():
        tokenizer = tokenizer_for(tmp_path / name, text)
        continue_ += [name] if not tokenizer.turns.unproved() else []
        if not tokenizer.turns.unproved(("tool",), calls=1):
            results.append(name)
            forms += [name] if Template(tokenizer).form is not None else []
    print(f"of {len(released())}: {len(continue_)} continue, {len(results)} take a result, {len(forms)} have a form")
    assert len(continue_) >= 0.93 * len(released())
    assert forms == results


SGLANG = {
    "HERMES": "hermes", "QWEN_CODER": "qwen3_coder", "MINIMAX": "minimax-m2", "DEEPSEEK_V3": "deepseekv3",
    "DEEPSEEK_V31": "deepseekv31", "DEEPSEEK_V32": "deepseekv32", "KIMI": "kimi_k2", "LLAMA": "llama3", "LFM2": "lfm2",
    "GLM": "glm45", "PYTHONIC": "pythonic",
}  # fmt: skip


@pytest.mark.component
@pytest.mark.nightly
@pytest.mark.parametrize("family", [(name, FAMILIES[name]) for name in SGLANG], ids=[*SGLANG], indirect=True)
def test_the_engines_own_parser_reads_the_same_calls(family, request):
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    template, tokenizer = family
    parser = FunctionCallParser([Tool.model_validate(tool) for tool in TOOLS], SGLANG[request.node.callspec.id])
    for arguments in ({"n": 7}, {"s": "one two", "n": 3}):
        calls = [ToolCall("functions.look:0", "look", json.dumps(arguments))]
        ids = written(tokenizer, calls)
        manner = Manner(form=template.form, names=names_of(TOOLS))
        ours = read(AnswerReader(tokenizer, manner), ids).tool_calls
        text = tokenizer.decode(ids, skip_special=False)
        end = min(place for stop in tokenizer.end_texts if (place := f"{text}{stop}".find(stop)) >= 0)
        _, theirs = parser.parse_non_stream(text[:end])
        assert [(call.name, json.loads(call.parameters)) for call in theirs] == [
            (call.name, json.loads(call.arguments)) for call in ours
        ]
