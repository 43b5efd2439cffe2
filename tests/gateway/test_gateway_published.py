"""Answers and requests against the published descriptions of OpenAI's and Anthropic's APIs (published/make.py)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from areal.errors import InfraError
from areal.gateway.admission import AdmissionRules, Treatment, fields_of
from areal.gateway.dialects import chat, completions, messages, responses
from areal.gateway.dialects.dialect import Dialect
from areal.gateway.faults import MAX_BODY, CallRefusal
from areal.gateway.session import SessionLimits
from areal.workflow.tokenizer import Tokenizer
from jsonschema import Draft202012Validator
from support.chat_tokenizer import HERMES, write_chat_tokenizer
from support.gateway_scene import Body, Scene, scene_of

Schema = dict[str, Any]
DIALECTS: Mapping[str, tuple[str, Dialect]] = {
    "chat": ("/chat/completions", chat),
    "completions": ("/completions", completions),
    "responses": ("/responses", responses),
    "messages": ("/messages", messages),
}
USER = {"role": "user", "content": "q"}
LEAST: Mapping[str, Body] = {
    "chat": {"model": "m", "messages": [USER]},
    "completions": {"model": "m", "prompt": "q"},
    "responses": {"model": "m", "input": "q"},
    "messages": {"model": "m", "max_tokens": 32, "messages": [USER]},
}
PUBLISHED = [*DIALECTS, "beta messages"]
RULES = AdmissionRules({"temperature": 1.0, "top_p": 1.0, "top_k": 0})


# ---- Schemas


@cache
def book(use: str) -> Schema:
    """The description that has a use: `chat`, `chat event`, `chat request` …"""
    name = "anthropic" if "messages" in use else "openai"
    found: Schema = json.loads(gzip.decompress((Path(__file__).parent / "published" / f"{name}.json.gz").read_bytes()))
    return found


def followed(schema: Schema, known: Schema) -> Schema:
    """The schema that a reference stands for."""
    while "$ref" in schema:
        schema = known[schema["$ref"].removeprefix("#/$defs/")]
    return schema


def alternatives(schema: Schema) -> list[Schema]:
    return [*schema.get("anyOf", ()), *schema.get("oneOf", ())]


@cache
def validators(use: str, root: str) -> Mapping[str | None, Draft202012Validator]:
    """One for each `type` of an event; one, for None, of what has no type."""
    known = book(use)["$defs"]
    whole = followed(book(use)["roots"][root], known)
    found: dict[str | None, Draft202012Validator] = {}
    for schema in alternatives(whole) if root.endswith("event") and alternatives(whole) else [whole]:
        kind = followed(schema, known)["properties"].get("type", {}) if len(alternatives(whole)) > 1 else {}
        for name in kind.get("enum", [kind.get("const")]):
            found[name] = Draft202012Validator({**schema, "$defs": known})
    return found


def faults(use: str, body: Body, root: str = "") -> Iterator[str]:
    """The places of a body that aren't as the description has them."""
    known = validators(use, root or use)
    checked = known.get(None) or known.get(body.get("type"))
    if checked is None:
        yield f"{root or use}: no event is of type {body.get('type')}"
        return
    for error in checked.iter_errors(body):
        inner = sorted({f"{one.json_path} {one.message[:80]}" for one in error.context or ()})
        yield f"{root or use} {error.json_path}: {'; '.join(inner) or error.message[:120]}"


# ---- Answers

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"name": "add", "parameters": PARAMETERS}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
SAID = [
    "the",
    "",
    "an END more",
    f"<think>hm</think>So:\n{CALL}",
    f"{CALL}\n{CALL}",
    "<think>hm",
    "<tool_call>no</tool_call>",
]
WANTED: Mapping[str, list[Body]] = {
    "chat": [
        {"stream_options": {"include_usage": True}},
        {"n": 2, "logprobs": True, "tools": [{"type": "function", "function": TOOL}]},
        {"stop": ["END"], "return_token_ids": True},
    ],
    "completions": [
        {"logprobs": 1, "n": 2},
        {"stop": ["END"], "echo": True},
        {"prompt": ["a", [5]], "stream_options": {}},
    ],
    "responses": [
        {"tools": [{"type": "function", **TOOL}], "instructions": "short", "tool_choice": "auto"},
        {"tools": [{"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "function", **TOOL}]}]},
        {"temperature": 0.5, "top_p": 1, "metadata": {"a": "b"}, "tools": [{"type": "web_search"}]},
    ],
    "messages": [
        {"tools": [{"name": "add", "input_schema": PARAMETERS}], "system": "short"},
        {"stop_sequences": ["END"], "context_management": {"edits": []}},
    ],
}
# The description's own example of a streamed completion says null, too.
OWN_FAULT = "completions event $.choices[0].finish_reason: "


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_dir(write_chat_tokenizer(tmp_path_factory.mktemp("published"), HERMES))


async def events_of(scene: Scene, path: str, body: Body) -> list[Body]:
    told = await scene.ask({**body, "stream": True}, url=scene.access.base_url + path)
    return [json.loads(line[6:]) for line in told.text.splitlines() if line.startswith("data: {")]


@pytest.mark.component
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_answer_and_event_is_as_published(hermes: Tokenizer, dialect: str) -> None:
    path, _ = DIALECTS[dialect]
    found: set[str] = set()
    kinds: set[str] = set()
    async with scene_of(hermes, "worker", SessionLimits(64, 1 << 20, 1000)) as scene:
        for said in SAID:
            for scene.engine.finish_reason in ("stop", "length"):
                scene.engine.says(said)
                for wanted in WANTED[dialect]:
                    body = {**LEAST[dialect], **wanted}
                    whole = (await scene.ask(body, url=scene.access.base_url + path)).json()
                    events = await events_of(scene, path, body)
                    kinds.update(str(event.get("type")) for event in events)
                    for use in (dialect, f"beta {dialect}") if dialect == "messages" else (dialect,):
                        found.update(faults(use, whole))
                        for event in events:
                            found.update(faults(f"{use} event", event))
    assert {fault for fault in found if not fault.startswith(OWN_FAULT)} == set()
    assert len(kinds) == {"responses": 14, "messages": 6}.get(dialect, 1)


@pytest.mark.component
async def test_models_and_counts_are_as_published(hermes: Tokenizer) -> None:
    async with scene_of(hermes, "worker", SessionLimits(64, 4096, 4)) as scene:
        root, key = scene.access.base_url, {"authorization": f"Bearer {scene.access.api_key}"}
        listed = (await scene.client.get(f"{root}/models", headers=key)).json()
        one = (await scene.client.get(f"{root}/models/m", headers=key)).json()
        count = (await scene.ask(LEAST["messages"], url=f"{root}/messages/count_tokens")).json()
    assert [*faults("chat", listed, "models"), *faults("chat", one, "model")] == []
    assert [*faults("messages", one, "model"), *faults("messages", count, "count")] == []


@pytest.mark.component
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_error_is_as_published(hermes: Tokenizer, dialect: str) -> None:
    path, _ = DIALECTS[dialect]
    told: list[Any] = []
    async with scene_of(hermes, "worker", SessionLimits(64, 4096, 99)) as scene:
        url, root = scene.access.base_url + path, scene.access.base_url
        told.append(await scene.ask({**LEAST[dialect], "stream": "yes"}, url=url))
        told.append(await scene.ask(LEAST[dialect], url=url, key="sk-other"))
        told.append(await scene.ask(LEAST[dialect], url=url.replace("/s/3.1/", "/s/3.2/")))
        told.append(await scene.ask(LEAST[dialect], url=f"{root}{path}/batches"))
        told.append(await scene.client.get(url))
        told.append(await scene.ask({**LEAST[dialect], "user": "x" * MAX_BODY}, url=url))
        for fault in (InfraError("the engine is gone", fix="wait"), RuntimeError("a bug")):
            scene.engine.fault = fault
            told.append(await scene.ask({**LEAST[dialect], "user": str(fault)}, url=url))
        scene.server.close("3.1", "done")
        told.append(await scene.ask(LEAST[dialect], url=url))
    assert [answer.status_code for answer in told] == [400, 401, 403, 404, 405, 413, 503, 500, 410]
    # Anthropic's documentation of errors has `request_too_large`, its client's types have not.
    typed = [answer.json() for answer in told if dialect != "messages" or answer.status_code != 413]
    assert [fault for body in typed for fault in faults(dialect, body, "error")] == []
    if dialect == "messages":
        kinds = [body["error"]["type"] for body in typed[1:4]]
        assert kinds == ["authentication_error", "permission_error", "not_found_error"]


@pytest.mark.component
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_error_within_a_stream_is_as_published(hermes: Tokenizer, dialect: str) -> None:
    path, _ = DIALECTS[dialect]
    async with scene_of(hermes, "worker", SessionLimits(64, 4096, 99)) as scene:
        scene.engine.rest.clear()
        body = {**LEAST[dialect], "stream": True}
        head = {"authorization": f"Bearer {scene.access.api_key}"}
        lines: list[str] = []
        async with scene.client.stream("POST", scene.access.base_url + path, json=body, headers=head) as stream:
            async for line in stream.aiter_lines():
                if not lines:
                    scene.server.close("3.1", "done")
                lines.append(line)
    last = [json.loads(line[6:]) for line in lines if line.startswith("data: {")][-1]
    assert "this episode is over" in json.dumps(last)
    use = "responses event" if dialect == "responses" else "error"
    assert list(faults(dialect, last, use)) == []


@pytest.mark.component
async def test_a_token_is_told_as_the_text_that_it_adds(hermes: Tokenizer) -> None:
    text = "an answer: é…😀 the"
    asked = {**LEAST["chat"], "logprobs": True}
    async with scene_of(hermes, "worker", SessionLimits(64, 4096, 99)) as scene:
        scene.engine.says(text)
        (choice,) = (await scene.ask(asked)).json()["choices"]
        body, url = {**LEAST["completions"], "logprobs": 1}, f"{scene.access.base_url}/completions"
        (whole,) = (await scene.ask(body, url=url)).json()["choices"]
        parts = [event["choices"][0]["logprobs"] for event in await events_of(scene, "/completions", body)]
    content = choice["logprobs"]["content"]
    assert bytes(byte for token in content[:-1] for byte in token["bytes"]).decode() == text
    assert [token["token"] for token in content] == whole["logprobs"]["tokens"]
    assert "".join(token["token"] for token in content).startswith("an answer: ")
    for name in ("tokens", "text_offset", "top_logprobs"):
        assert [one for part in parts if part for one in part[name]] == whole["logprobs"][name]
    assert whole["logprobs"]["text_offset"][:3] == [0, *(len(whole["logprobs"]["tokens"][0]) + more for more in (0, 1))]


@pytest.mark.component
async def test_the_item_that_the_budget_cut_is_incomplete(hermes: Tokenizer) -> None:
    async with scene_of(hermes, "worker", SessionLimits(64, 4096, 99)) as scene:
        scene.engine.finish_reason = "length"
        whole = (await scene.ask(LEAST["responses"], url=f"{scene.access.base_url}/responses")).json()
        events = await events_of(scene, "/responses", LEAST["responses"])
    assert [(item["status"], item["content"][0]["text"]) for item in whole["output"]] == [("incomplete", "the")]
    (done,) = [event["item"]["status"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"][0]["status"] == "incomplete"


@pytest.mark.component
async def test_a_response_tells_no_temperature_that_was_overridden(hermes: Tokenizer) -> None:
    async with scene_of(hermes, "worker", SessionLimits(64, 4096, 99)) as scene:
        body = {**LEAST["responses"], "temperature": 0.5, "top_p": 1}
        answer = await scene.ask(body, url=f"{scene.access.base_url}/responses")
    assert answer.headers["x-areal-overridden"] == "temperature"
    assert (answer.json()["temperature"], answer.json()["top_p"]) == (None, 1)


# ---- Requests


def properties(schema: Schema, known: Schema) -> Schema:
    """Of an object and of its alternatives."""
    schema = followed(schema, known)
    found = dict(schema.get("properties", {}))
    for inner in (*schema.get("allOf", ()), *alternatives(schema)):
        found |= properties(inner, known)
    return found


def least(schema: Schema, known: Schema) -> Any:
    """A value of a schema with nothing that may be left out."""
    schema = followed(schema, known)
    if several := alternatives(schema):
        return least(several[0], known)
    if "const" in schema or "enum" in schema:
        return schema.get("const", next(iter(schema.get("enum", ())), None))
    if "allOf" in schema:
        parts = [least(inner, known) for inner in schema["allOf"]]
        return {name: value for part in parts for name, value in part.items()}
    if schema.get("type") == "array":
        return [least(schema.get("items", {}), known)] * max(1, schema.get("minItems", 1))
    if "properties" in schema or schema.get("type") == "object":
        wanted = schema.get("required", ())
        return {name: least(inner, known) for name, inner in schema.get("properties", {}).items() if name in wanted}
    simple = {"null": None, "boolean": True, "integer": schema.get("minimum", 1), "number": schema.get("maximum", 1)}
    return simple.get(schema.get("type", "string"), "x")


def values(schema: Schema, known: Schema, within: tuple[str, ...] = ()) -> Iterator[Any]:
    """Values of a schema: each alternative, and each property of an object once, whatever stands beside it."""
    if (name := schema.get("$ref", "")) and name in within:
        return
    within, schema = (*within, name), followed(schema, known)
    if several := alternatives(schema):
        for inner in several:
            yield from values(inner, known, within)
    elif "enum" in schema:
        yield from schema["enum"][:8]
    elif schema.get("type") == "boolean":
        yield from (True, False)
    elif schema.get("type") == "array":
        yield from ([value] for value in values(schema.get("items", {}), known, within))
    elif "properties" in schema and len(within) < 12:
        base = least(schema, known)
        yield base
        for name, inner in schema["properties"].items():
            yield from ({**base, name: value} for value in values(inner, known, within))
    else:
        yield least(schema, known)


def asked_of(dialect: str) -> Iterator[tuple[str, Any]]:
    """Every property that a description has of a request, with its values."""
    known = book(dialect)["$defs"]
    for name, schema in properties(book(dialect)["roots"][f"{dialect} request"], known).items():
        yield from ((name, value) for value in values(schema, known))


def parsed(dialect: str, fields: Body) -> tuple[set[str], CallRefusal | None]:
    """The names of a request's fields that do nothing, or its refusal."""
    name = dialect.removeprefix("beta ")
    body = fields if LEAST[name].keys() <= fields.keys() else {**LEAST[name], **fields}
    try:
        asked = DIALECTS[name][1].parse(json.dumps(body).encode(), RULES)
    except CallRefusal as refused:
        return set(), refused
    return {*asked.ignored, *asked.question.overridden}, None


@pytest.mark.parametrize("dialect", PUBLISHED)
def test_every_published_value_is_served_named_or_refused_by_its_name(dialect: str) -> None:
    known = fields_of(dialect.removeprefix("beta "))
    silent, nameless, tried = [], [], 0
    for name, value in asked_of(dialect):
        tried += 1
        unserved, refused = parsed(dialect, {name: value})
        if refused is not None:
            if not (refused.field or "").startswith((name, "disable_parallel_tool_use")):
                nameless.append((name, value, refused.field))
            continue
        read = name in known and known[name].treatment in (Treatment.READ, Treatment.OVERRIDDEN)
        harmless = value in (known[name].harmless if name in known else (None,))
        parts = {f"{name}.{inner}": given for inner, given in value.items()} if isinstance(value, Mapping) else {}
        spread = any(part.startswith(f"{name}.") for part in known) or name in ("text", "output_config")
        told = {part for part in parts if part not in unserved and parts[part] not in (None, {"type": "text"})}
        if not (read or harmless or name in unserved or (spread and not told)):
            choice = dialect.endswith("messages") and name == "tool_choice"  # its type is judged, see `messages.parse`
            silent += [] if choice else [(name, value)]
    assert (silent, nameless) == ([], [])
    assert tried > {"completions": 25, "chat": 150}.get(dialect, 400)


# What the descriptions have and fields.yaml hasn't: ignored and named in the answer's header, for what is sampled and
# what the client may rely on is the same without it. A name that a newer description adds is to be judged.
WITHOUT_CONSEQUENCE = {
    "chat": """metadata moderation prediction prompt_cache_key prompt_cache_options prompt_cache_retention
        reasoning_effort safety_identifier service_tier store user verbosity web_search_options""",
    "completions": "user",
    "responses": """context_management include max_tool_calls metadata moderation prompt_cache_key
        prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier store stream_options text
        user""",
    "messages": "cache_control container inference_geo metadata output_config service_tier thinking user_profile_id",
    "beta messages": """betas cache_control container context_management diagnostics fallback_credit_token fallbacks
        inference_geo metadata output_config service_tier speed thinking user_profile_id""",
}


@pytest.mark.parametrize("dialect", PUBLISHED)
def test_every_published_field_was_judged(dialect: str) -> None:
    published = set(properties(book(dialect)["roots"][f"{dialect} request"], book(dialect)["$defs"]))
    assert published - set(fields_of(dialect.removeprefix("beta "))) == set(WITHOUT_CONSEQUENCE[dialect].split())


@pytest.mark.parametrize("dialect", ["chat", "completions", "responses"])
def test_every_published_example_is_served_or_refused_by_the_part_that_is_no_text(dialect: str) -> None:
    examples = book(dialect)["examples"][dialect]
    refusals = [refused for body in examples if (refused := parsed(dialect, body)[1]) is not None]
    places = {"chat": ["messages[0].content[1]"], "responses": ["input[0].content[1]"] * 2}.get(dialect, [])
    assert [refused.field for refused in refusals] == places
    assert len(examples) - len(refusals) >= 2


@pytest.mark.parametrize(
    ("dialect", "fields", "named"),
    [
        ("chat", {"max_completion_tokens": 0, "max_tokens": 5}, "max_completion_tokens"),
        ("chat", {"messages": [USER, {"role": "assistant", "refusal": "no"}]}, "messages[1].refusal"),
        ("chat", {"messages": [USER, {"role": "assistant", "audio": {"id": "a"}}]}, "messages[1].audio"),
        ("completions", {"echo": True, "logprobs": 1}, "echo"),
        ("responses", {"instructions": [USER]}, "instructions.content[0]"),
        ("responses", {"input": [{"type": "web_search_call", "id": "w"}]}, "input[0]"),
    ],
)
def test_a_refusal_names_the_very_field(dialect: str, fields: Body, named: str) -> None:
    _, refused = parsed(dialect, fields)
    assert refused is not None
    assert (refused.status, refused.field) == (400, named)


@pytest.mark.parametrize(("wanted", "ignored"), [(0, set()), (1, set()), (5, {"logprobs"})])
def test_log_probabilities_of_tokens_that_were_not_sampled_are_not_told(wanted: int, ignored: set[str]) -> None:
    assert parsed("completions", {"logprobs": wanted}) == (ignored, None)
