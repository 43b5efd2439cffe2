"""`areal serve` in this process, over a random model: an answer has the form that is asked for, prompts are scored."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from areal.engine.embedded import EngineOptions, TorchEngine
from areal.engine.serve import ModelServer
from areal.workflow.tokenizer import Tokenizer
from jsonschema import validate
from support.chat_tokenizer import HERMES, write_chat_tokenizer
from support.engine_models import hf_logprobs, make_model

pytestmark = pytest.mark.component

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "q"}], "max_tokens": 300}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("add", "sub")]
OWN = [{"name": tool["function"]["name"], "input_schema": SCHEMA} for tool in TOOLS]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a byte-level tokenizer that knows tools."""
    path = tmp_path_factory.mktemp("model")
    words = write_chat_tokenizer(tmp_path_factory.mktemp("tokenizer"), HERMES)
    tokenizer = Tokenizer.from_dir(words)
    (end,) = tokenizer.eos_ids
    make_model(path, 3, vocab_size=tokenizer.vocab_size, eos_token_id=end, max_position_embeddings=2048)
    for file in words.glob("tokenizer*"):
        (path / file.name).write_bytes(file.read_bytes())
    return path


@pytest.fixture
async def client(model: Path) -> AsyncIterator[httpx.AsyncClient]:
    engine = TorchEngine(EngineOptions(model_path=model, weight_version="served"), lambda error: None)
    server = ModelServer(engine, Tokenizer.from_dir(model), name="m")
    engine.start()
    transport = httpx.ASGITransport(app=server.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://here/v1", timeout=60) as made:
        yield made
    engine.stop()


async def post(client: httpx.AsyncClient, path: str, body: Any) -> Any:
    answered = await client.post(path, json=body)
    assert answered.status_code == 200, answered.text
    assert "x-areal-ignored" not in answered.headers
    return answered.json()


FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/chat/completions", {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}),
    "chat, vllm's": ("/chat/completions", {"guided_json": SCHEMA}),
    "chat, vllm's newer": ("/chat/completions", {"structured_outputs": {"json": SCHEMA}}),
    "chat, sglang's": ("/chat/completions", {"json_schema": json.dumps(SCHEMA)}),
    "messages": ("/messages", {"output_config": {"format": FORMAT}}),
    "messages, older": ("/messages", {"output_format": FORMAT}),
    "responses": ("/responses", {"text": {"format": {**FORMAT, "name": "n"}}}),
}


def text_of(told: Any) -> str:
    if "choices" in told:
        return str(told["choices"][0]["message"]["content"])
    return str(told["content"][0]["text"] if "content" in told else told["output"][0]["content"][0]["text"])


@pytest.mark.parametrize("form", FORMS)
async def test_an_answer_has_the_form_that_is_asked_for(client: httpx.AsyncClient, form: str) -> None:
    path, fields = FORMS[form]
    asked = {"model": "m", "input": "q", "max_output_tokens": 300} if path == "/responses" else ASK
    answer = json.loads(text_of(await post(client, path, {**asked, **fields})))
    validate(answer, SCHEMA)
    assert answer.keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"guided_regex": "[ab]{3}x+y"}, "[ab]{3}x+y"),
        ({"regex": "0|1"}, "0|1"),
        ({"guided_choice": ["yes?", "no."]}, r"yes\?|no\."),
    ],
)
async def test_an_answer_matches_an_expression_among_free_ones(
    client: httpx.AsyncClient, fields: Any, form: str
) -> None:
    free = asyncio.gather(*(post(client, "/chat/completions", {**ASK, "max_tokens": 20}) for _ in range(3)))
    told = await asyncio.gather(*(post(client, "/chat/completions", {**ASK, **fields}) for _ in range(3)))
    assert all(re.fullmatch(form, text_of(one)) for one in told)
    assert not any(re.fullmatch(form, text_of(one)) for one in await free)


@pytest.mark.parametrize("name", [None, "sub"])
async def test_a_forced_tool_is_called(client: httpx.AsyncClient, name: str | None) -> None:
    by_chat = {"type": "function", "function": {"name": name}} if name else "required"
    body = {**ASK, "tools": TOOLS, "tool_choice": by_chat, "parallel_tool_calls": False}
    (choice,) = (await post(client, "/chat/completions", body))["choices"]
    (call,) = choice["message"]["tool_calls"]
    validate(json.loads(call["function"]["arguments"]), SCHEMA)
    assert call["function"]["name"] in ({name} if name else {"add", "sub"})
    by_messages = {"type": "tool", "name": name} if name else {"type": "any"}
    told = await post(client, "/messages", {**ASK, "tools": OWN, "tool_choice": by_messages})
    (use,) = told["content"]
    validate(use["input"], SCHEMA)
    assert (use["type"], told["stop_reason"]) == ("tool_use", "tool_use")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"guided_regex": "(a"}, "guided_regex"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}},
            "response_format",
        ),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "mul"}}}, "tool_choice"),
        ({"tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 1}, "presence_penalty"),
    ],
)
async def test_what_cannot_be_done_is_refused_without_a_word_of_losses(
    client: httpx.AsyncClient, fields: Any, named: str
) -> None:
    answered = await client.post("/chat/completions", json={**ASK, **fields})
    error = answered.json()["error"]
    assert (answered.status_code, error["param"]) == (400, named)
    assert not re.search("loss|train|rollout|policy", error["message"])


async def test_a_prompt_is_scored_as_hugging_face_scores_it(client: httpx.AsyncClient, model: Path) -> None:
    tokenizer = Tokenizer.from_dir(model)
    texts = ["what is said", "a2"]
    ids = [tokenizer.encode(text).tolist() for text in texts]
    body = {"model": "m", "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    for prompts in (texts, ids):
        told = await post(client, "/completions", {**body, "prompt": prompts})
        for choice, text, known in zip(told["choices"], texts, ids, strict=True):
            logprobs = choice["logprobs"]
            assert choice["text"].startswith(text)
            assert len(logprobs["token_logprobs"]) == len(known) + 1
            assert logprobs["token_logprobs"][0] is None
            expected = hf_logprobs(model, known[:1], known[1:])
            np.testing.assert_allclose(logprobs["token_logprobs"][1:-1], expected, atol=1e-4)
            for value, top in zip(logprobs["token_logprobs"][1:-1], logprobs["top_logprobs"][1:-1], strict=True):
                assert max(top.values()) >= value
    nothing = await post(client, "/completions", {**body, "prompt": texts[0], "max_tokens": 0})
    (choice,) = nothing["choices"]
    assert (choice["text"], len(choice["logprobs"]["tokens"])) == (texts[0], len(ids[0]))


async def test_a_stop_string_is_named_and_ids_never_come_again(client: httpx.AsyncClient) -> None:
    body = {**ASK, "stop_sequences": ["b"], "output_format": {"type": "json_schema", "schema": {"const": "abc"}}}
    told = [await post(client, "/messages", body) for _ in range(2)]
    assert (told[0]["stop_reason"], told[0]["stop_sequence"], told[0]["content"][0]["text"]) == (
        "stop_sequence",
        "b",
        '"a',
    )
    assert told[0]["id"] != told[1]["id"]
