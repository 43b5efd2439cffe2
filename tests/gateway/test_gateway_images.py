"""Images that agents send: in each dialect, behind answers, and into the sequences of the episode."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from areal.gateway.admission import AdmissionRules
from areal.gateway.dialects import chat, messages, responses
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import Message
from areal.gateway.session import EpisodeCalls, SessionLimits
from areal.gateway.templates.template import Template
from areal.values.generation import GenerationResult, TokenSpan, as_ids
from areal.values.images import MARK
from areal.workflow.tokenizer import Tokenizer
from support.chat_tokenizer import write_chat_tokenizer
from support.tiny_vision import drawing, processor
from transformers import AutoTokenizer

SEEN, OTHER = drawing(1), drawing(2, 56, 28)
SEES = AdmissionRules(images=True)
TEMPLATE = (
    "{%- for message in messages -%}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string -%}{{ message.content }}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else -%}{{ part.text }}"
    "{%- endif -%}{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
CONTROL = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = write_chat_tokenizer(tmp_path_factory.mktemp("vision"), TEMPLATE, CONTROL)
    pad = AutoTokenizer.from_pretrained(path).convert_tokens_to_ids("<|image_pad|>")
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl", "image_token_id": pad, "vocab_size": 400}))
    processor(path)
    return Tokenizer.from_dir(path)


def of_chat(image: str) -> bytes:
    parts = [{"type": "text", "text": "look: "}, {"type": "image_url", "image_url": {"url": image}}]
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]})


def of_messages(image: str) -> bytes:
    data = image.partition(",")[2]
    parts = [
        {"type": "text", "text": "look: "},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
    ]
    return orjson.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": parts}]})


def of_responses(image: str) -> bytes:
    parts = [{"type": "input_text", "text": "look: "}, {"type": "input_image", "image_url": image}]
    return orjson.dumps({"model": "m", "input": [{"role": "user", "content": parts}]})


DIALECTS = [(chat, of_chat), (messages, of_messages), (responses, of_responses)]


@pytest.mark.parametrize(("dialect", "body"), DIALECTS, ids=["chat", "messages", "responses"])
def test_each_dialect_takes_data_uris_alone(dialect, body):
    question = dialect.parse(body(SEEN.uri), SEES).question
    assert question.messages == (Message("user", f"look: {MARK}", images=(SEEN,)),)
    assert question.images == (SEEN,)
    with pytest.raises(CallRefusal, match="reads text only"):
        dialect.parse(body(SEEN.uri), AdmissionRules())
    for wrong in ("https://example.com/a.png", "data:image/png;base64,?"):
        if dialect is not messages or "base64" in wrong:
            with pytest.raises(CallRefusal):
                dialect.parse(body(wrong), SEES)


def test_a_tool_s_result_may_be_an_image():
    data = base64.b64encode(SEEN.data).decode()
    result = {"type": "tool_result", "tool_use_id": "a", "content": [
        {"type": "text", "text": "screen: "},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
    ]}  # fmt: skip
    asked = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        {"role": "user", "content": [result]},
    ]
    told = messages.parse(orjson.dumps({"model": "m", "max_tokens": 9, "messages": asked}), SEES).question.messages
    assert told[-1] == Message("tool", f"screen: {MARK}", tool_call_id="a", images=(SEEN,))


def test_a_conversation_goes_on_with_its_images(tokenizer):
    template, shape = Template(tokenizer), tokenizer.image_shape
    session = EpisodeCalls("s", template, SessionLimits(50, 4000, max_calls=9))
    first = chat.parse(of_chat(SEEN.uri), SEES).question
    call, begins = session.ask(first, retry=False)
    assert begins
    assert shape.begins(call.prompt_ids, call.question.images) == [
        int(np.flatnonzero(call.prompt_ids == shape.token)[0])
    ]
    said = tokenizer.encode("seven<|im_end|>", special=False)
    spans = (TokenSpan(0, len(said), "0.f1", "s"),)
    session.answered(call, GenerationResult(said, np.zeros(len(said), "<f4"), spans), Message("assistant", "seven"))
    later = (*first.messages, Message("assistant", "seven"), Message("user", f"and {MARK}?", images=(OTHER,)))
    second, _ = session.ask(chat_question(first, later, 2), retry=False)
    before = [*call.prompt_ids.tolist(), *said.tolist()]
    assert second.prompt_ids.tolist()[: len(before)] == before, "it goes on behind the answer"
    assert second.question.images == (SEEN, OTHER)
    assert (second.prompt_ids == shape.token).sum() == shape.tokens(SEEN) + shape.tokens(OTHER)
    swapped = (Message("user", f"look: {MARK}", images=(OTHER,)), *later[1:])
    third, _ = session.ask(chat_question(first, swapped, 3), retry=False)
    assert third.parent is None, "another image is another history"
    assert as_ids(third.prompt_ids).tolist()[: len(before)] != before


def chat_question(first, said, digest):

    return replace(first, messages=said, digest=digest)
