"""Nothing that a policy says breaks its gateway: any answer, in any pieces, is told as it is told at once.

An exception behind a call is one typed answer.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import orjson
import pytest
from areal.gateway.admission import AdmissionRules, header_of
from areal.gateway.dialects import chat, completions, inference, messages, responses
from areal.gateway.dialects.dialect import Delta, Dialect, DialectReply
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import names_of
from areal.gateway.reading import AnswerReader, Manner, read
from areal.gateway.session import EpisodeCalls, SessionLimits
from areal.gateway.streams import StreamedAnswering
from areal.gateway.templates.template import Template
from areal.values.generation import GenerationResult, as_ids
from areal.workflow.tokenizer import Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_tokenizer import HERMES, write_chat_tokenizer
from support.examples import examples
from support.gateway_scene import ASK, Scene

ADD = {"name": "add", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": ADD}
BODIES: dict[Dialect, dict[str, Any]] = {
    chat: {**ASK, "tools": [TOOL], "stop": ["STOP", "OP!"]},
    messages: {**ASK, "max_tokens": 64, "tools": [{"name": "add", "input_schema": {}}], "stop_sequences": ["STOP"]},
    responses: {"input": "q", "tools": [{"type": "function", **ADD}]},
    completions: {"prompt": "q", "stop": "STOP"},
}
PIECES = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "add", "arguments": ', "{", "}", "[", "]", ":", ",",
    '"', "\\", r"\ud83d", r"\ude00", "NaN", "Infinity", "1e999", "18446744073709551616", "9" * 4400, '{"a":' * 300,
    "}" * 300, "[" * 1200, "\n", " ", "STOP", "STO", "OP!", '"add"', "\u00e4", "\U0001f600", "true", "null", "{}", "}}",
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "\x00", "\ufffd", "\u2028", "data: x\n\n",
)  # fmt: skip
SHORT = [piece for piece in PIECES if len(piece) < 100]


@pytest.fixture
def through() -> str:
    """By the gateway role, and so by the worker behind it."""
    return "gateway"


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_dir(write_chat_tokenizer(tmp_path_factory.mktemp("hermes"), HERMES))


@pytest.fixture(scope="module")
def template(hermes: Tokenizer) -> Template:
    return Template(hermes)


class Asked:
    """One call of a dialect, not answered yet."""

    def __init__(self, dialect: Dialect, template: Template, tokenizer: Tokenizer, answer: Sequence[int]) -> None:
        asked = dialect.parse(json.dumps(BODIES[dialect]).encode(), AdmissionRules())
        self.session = EpisodeCalls("s", template, SessionLimits(1 << 20, 1 << 24, 4))
        self.call, _ = self.session.ask(asked.question, retry=False)
        self.reply = DialectReply("s", (self.call,), asked.fields, tokenizer.piece, tokenizer.decode, asked.named)
        question = asked.question
        form = template.form if question.tools else None
        thinks = template.thinks and bool(question.messages)
        manner = Manner(question.stop, form, names_of(question.tools), thinks)
        self.reader = partial(AnswerReader, tokenizer, manner)
        self.result = GenerationResult(as_ids(answer), np.full(len(answer), -0.5, "<f4"))

    def answered(self) -> None:
        reader = self.reader()
        answer = read(reader, self.result.output_ids.tolist())
        self.call.unparsed, self.call.stopped = reader.unparsed, reader.stopped
        self.session.answered(self.call, self.result, answer)


def streamed(asked: Asked, dialect: Dialect, sizes: Sequence[int]) -> Iterator[bytes]:
    """The events of an answer that comes in pieces of these sizes."""
    ids, events, reader, at = asked.result.output_ids.tolist(), dialect.events(asked.reply), asked.reader(), 0
    yield from events.begin()
    for size in [*sizes, len(ids)]:
        part = ids[at : at + size]
        at += size
        told = reader.feed(part) + (reader.end() if at >= len(ids) else [])
        yield from events.delta(0, Delta(told, part, [-0.5] * len(part)))
        if at >= len(ids):
            break
    yield from events.finish(0)
    yield from events.end()


def gathered(dialect: Dialect, told: bytes) -> tuple[str, str, list[tuple[str, str]], str]:
    """Text, reasoning, calls and the end that a stream told."""
    events = [orjson.loads(line[6:]) for line in told.splitlines() if line.startswith(b"data: {")]
    text, thought, end = "", "", ""
    calls: list[tuple[str, str]] = []
    for event in events:
        if dialect is messages:
            start, delta = event.get("content_block") or {}, event.get("delta") or {}
            calls += [(start["name"], "")] if start.get("type") == "tool_use" else []
            text, thought = text + delta.get("text", ""), thought + delta.get("thinking", "")
            if "partial_json" in delta:
                calls[-1] = (calls[-1][0], delta["partial_json"])
            end = delta.get("stop_reason", end)
        elif dialect is responses:
            text += event["delta"] if event["type"] == "response.output_text.delta" else ""
            thought += event["delta"] if event["type"] == "response.reasoning_text.delta" else ""
            if event["type"] == "response.function_call_arguments.done":
                calls.append((event["name"], event["arguments"]))
            end = event["type"].removeprefix("response.")
        else:
            for choice in event["choices"]:
                delta = choice.get("delta") or {"content": choice.get("text")}
                text, thought = text + (delta.get("content") or ""), thought + delta.get("reasoning_content", "")
                functions = [call["function"] for call in delta.get("tool_calls", [])]
                calls += [(function["name"], function["arguments"]) for function in functions]
                end = choice["finish_reason"] or end
    return text, thought, calls, end


def at_once(dialect: Dialect, told: bytes) -> tuple[str, str, list[tuple[str, Any]], str]:
    """The same of a whole answer; a call's arguments are what its JSON says."""
    body = orjson.loads(told)
    if dialect is messages:
        of = lambda kind: [block for block in body["content"] if block["type"] == kind]  # noqa: E731
        calls = [(block["name"], block["input"]) for block in of("tool_use")]
        return (
            "".join(b["text"] for b in of("text")),
            "".join(b["thinking"] for b in of("thinking")),
            calls,
            body["stop_reason"],
        )
    if dialect is responses:
        of = lambda kind: [item for item in body["output"] if item["type"] == kind]  # noqa: E731
        text = "".join(part["text"] for item in of("message") for part in item["content"])
        thought = "".join(part["text"] for item in of("reasoning") for part in item["content"])
        return (
            text,
            thought,
            [(it["name"], orjson.loads(it["arguments"])) for it in of("function_call")],
            body["status"],
        )
    (choice,) = body["choices"]
    said = choice.get("message") or {"content": choice["text"]}
    functions = [call["function"] for call in said.get("tool_calls", [])]
    calls = [(function["name"], orjson.loads(function["arguments"])) for function in functions]
    return said["content"] or "", said.get("reasoning_content") or "", calls, choice["finish_reason"]


def told_apart(template: Template, tokenizer: Tokenizer, answer: Sequence[int], sizes: Sequence[int]) -> list[Any]:
    """Dialects that tell the streamed answer otherwise than the whole one, with both."""
    apart = []
    for dialect in BODIES:
        asked = Asked(dialect, template, tokenizer, answer)
        asked.answered()
        whole = at_once(dialect, orjson.dumps(dialect.whole(asked.reply)))
        text, thought, calls, end = gathered(dialect, b"".join(streamed(asked, dialect, sizes)))
        streamed_one = (text, thought, [(name, orjson.loads(own)) for name, own in calls], end)
        alike = text == whole[0] or (whole[2] and not text.strip() and not whole[0])
        if not alike or streamed_one[1:] != whole[1:]:
            apart.append((dialect, streamed_one, whole))
    return apart


def encoded(tokenizer: Tokenizer, parts: Sequence[str | bytes]) -> list[int]:
    """Tokens of texts, and of bytes each its own."""
    ids: list[int] = []
    for part in parts:
        ids += list(part) if isinstance(part, bytes) else tokenizer.encode(part, special=False).tolist()
    return ids


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=6) | st.text(max_size=6), max_size=9), st.data())
def test_any_answer_streamed_in_any_pieces_is_the_whole_one(hermes, template, parts, data):
    ids = encoded(hermes, parts)
    assert told_apart(template, hermes, ids, data.draw(st.lists(st.integers(0, 9), max_size=12))) == []


@pytest.mark.component
@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("share", range(4))
def test_a_million_answers_are_told_alike_however_they_come(hermes, template, share):
    draw = random.Random(share)
    for _ in range(250_000):
        pieces = PIECES if draw.random() < 0.05 else SHORT
        parts = [draw.choice(pieces) if draw.random() < 0.8 else draw.randbytes(4) for _ in range(draw.randrange(7))]
        ids = encoded(hermes, parts)
        sizes = [draw.randrange(1, 2 + len(ids)) for _ in range(draw.randrange(9))]
        assert told_apart(template, hermes, ids, sizes) == []


KEYS = st.sampled_from((
    "model", "messages", "input", "prompt", "tools", "tool_choice", "response_format", "stop", "stop_sequences",
    "system", "content", "role", "type", "text", "name", "function", "arguments", "parameters", "input_schema",
    "tool_calls", "id", "tool_call_id", "call_id", "output", "reasoning", "thinking", "summary", "n", "seed",
    "stream", "stream_options", "max_tokens", "max_output_tokens", "logprobs", "echo", "suffix", "temperature",
    "instructions", "token_ids", "format", "sampling_params", "previous_response_id", "output_config",
    "context_management", "audio", "data", "namespace",
))  # fmt: skip
WORDS = st.sampled_from((
    "user", "assistant", "system", "tool", "developer", "text", "function", "tool_use", "tool_result",
    "namespace", "resp_s",
))  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | WORDS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(KEYS, JSON, max_size=6), st.booleans(), st.sampled_from([*BODIES, inference]))
def test_any_request_is_read_or_refused(template, body, ignores, dialect):
    session = EpisodeCalls("s", template, SessionLimits(64, 4096, 4))
    raw = json.dumps({**BODIES.get(dialect, {"token_ids": [1]}), **body}).encode()
    refused = None
    try:
        asked = dialect.parse(raw, AdmissionRules(ignores=ignores))
        calls = session.choices([asked.question, *asked.more], retry=False)
        assert calls[0][0].prompt_ids.dtype == np.dtype("<i4")
        assert len(header_of(asked.ignored)) <= 1024
    except CallRefusal as fault:
        refused = fault
    assert refused is None or (refused.status == 400 and orjson.loads(orjson.dumps(dialect.error(refused))))


HOSTILE = {
    "300 levels": '<tool_call>\n{"name": "add", "arguments": ' + '{"a":' * 300 + "1" + "}" * 300 + "}\n</tool_call>",
    "1,200 levels": '<tool_call>{"name": "add", "arguments": ' + "[" * 1200,
    "half an emoji": '<tool_call>\n{"name": "add", "arguments": {"a": "\\ud83d"}}\n</tool_call>',
    "NaN": '<tool_call>\n{"name": "add", "arguments": {"a": NaN}}\n</tool_call>',
    "5,000 digits": '<tool_call>\n{"name": "add", "arguments": {"a": ' + "1" * 5000 + "}}\n</tool_call>",
    "a name that is none": '<tool_call>\n{"name": {"a": 1}, "arguments": {}}\n</tool_call>',
}


@pytest.mark.component
@pytest.mark.parametrize("said", HOSTILE.values(), ids=HOSTILE)
async def test_hostile_json_is_text(tool_scene: Scene, said: str) -> None:
    tool_scene.engine.says(said)
    (choice,) = (await tool_scene.ask({**ASK, "tools": [TOOL]})).json()["choices"]
    assert choice["message"]["content"] == said
    assert choice["areal"] == {"unparsed_tool_call": True}


@pytest.mark.component
async def test_arguments_are_told_as_the_model_wrote_them_and_come_back_as_such(tool_scene: Scene) -> None:
    own = '{"n": 18446744073709551616,  "x": 1e2, "n" : 2}'
    tool_scene.engine.says(f'<tool_call>\n{{"name": "add", "arguments": {own}}}\n</tool_call>')
    (choice,) = (await tool_scene.ask({**ASK, "tools": [TOOL]})).json()["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == own
    body = {**ASK, "max_tokens": 64, "tools": [{"name": "add", "input_schema": {}}]}
    raw = await tool_scene.ask(body, url=f"{tool_scene.access.base_url}/messages")
    assert f'"input":{own}' in raw.text
    result = {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "2"}
    said = [{"role": "user", "content": "other"}, choice["message"], result]
    forked = await tool_scene.ask({**ASK, "messages": said, "tools": [TOOL]})
    assert forked.status_code == 200, "rendered anew"


@pytest.mark.component
@pytest.mark.parametrize("stream", [False, True])
async def test_an_exception_behind_a_call_is_one_typed_answer(scene: Scene, stream: bool) -> None:
    scene.engine.fault = RuntimeError("a bug")
    answered = await scene.ask({**ASK, "stream": stream})
    assert (answered.status_code, answered.headers["x-should-retry"]) == (500, "false")
    assert answered.json()["error"]["code"] == "generation_failed"
    assert "a bug" not in answered.text
    body = {**ASK, "max_tokens": 9, "stream": stream}
    told = (await scene.ask(body, url=f"{scene.access.base_url}/messages")).json()
    assert (told["type"], told["error"]["type"]) == ("error", "api_error")


@pytest.mark.component
async def test_an_exception_in_the_middle_of_a_stream_is_told_in_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat.ChatEvents, "finish", lambda self, index: 1 / 0)
    answered = await scene.ask({**ASK, "stream": True})
    *_, last = [json.loads(line[6:]) for line in answered.text.splitlines() if line.startswith("data: {")]
    assert (answered.status_code, last["error"]["code"]) == (200, "generation_failed")


@pytest.mark.component
async def test_an_exception_in_a_request_is_one_typed_answer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "digest", lambda fields: 1 / 0)
    answered = await scene.ask()
    assert (answered.status_code, answered.headers["x-should-retry"]) == (500, "false")


async def test_a_call_whose_task_is_cancelled_ends(hermes: Tokenizer, template: Template) -> None:
    from areal.gateway.core import GatewayCore
    from areal.gateway.http import GatewayServer
    from support.gateway_scene import Engine

    core = GatewayCore(template, secret=b"s", clock=asyncio.get_running_loop().time)
    server, engine = GatewayServer(core, hermes), Engine(hermes)
    access = server.open("1.0", engine, SessionLimits(16, 4096, 4), lives_s=60)
    opened = core.find(None, access.api_key)
    engine.let.clear()
    call, _ = opened.session.ask(chat.parse(json.dumps(ASK).encode(), AdmissionRules()).question, retry=False)
    server._begin(opened, call)
    await engine.until_asked(1)
    server._tasks[call].cancel()
    reply = DialectReply("1.0", (call,), ASK, hermes.piece, hermes.decode)
    response = StreamedAnswering(
        chat, opened.session, reply, stream=False, reader_of=lambda call: AnswerReader(hermes), headers={}
    )
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(20):
        await response({"type": "http", "method": "POST"}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 503
