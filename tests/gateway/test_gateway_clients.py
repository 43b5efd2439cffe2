"""Requests as today's clients send them: unknown fields and tools, begun answers, several prompts, probes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from areal.gateway.admission import AdmissionRules
from areal.gateway.dialects import messages, responses
from areal.gateway.messages import parse_tools
from areal.gateway.session import SessionLimits
from support.gateway_scene import ASK, Body, Scene

pytestmark = pytest.mark.component

ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
ASK_MESSAGES: Body = {**ASK, "max_tokens": 64}
PREFILL = [*ASK["messages"], {"role": "assistant", "content": "So "}]


@pytest.fixture
def through() -> str:
    """By the gateway role, and so by the worker behind it."""
    return "gateway"


async def post(scene: Scene, path: str, body: Body) -> httpx.Response:
    return await scene.ask(body, url=f"{scene.access.base_url}{path}")


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/chat/completions", {**ASK, "thread": "t", "verbosity": "low", "user": None}, "thread, verbosity"),
        ("/chat/completions", {**ASK, "tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0](custom)"),
        ("/messages", {**ASK_MESSAGES, "thinking": {"type": "adaptive"}, "metadata": {}}, "thinking, metadata"),
        ("/messages", {**ASK_MESSAGES, "tools": [{"type": "bash_20250124"}]}, "tools[0](bash_20250124)"),
        ("/messages", {**ASK_MESSAGES, "output_config": {"effort": "high"}}, "output_config.effort"),
        ("/responses", {"input": "q", "tools": [{"type": "web_search"}]}, "tools[0](web_search)"),
        ("/responses", {"input": "q", "text": {"format": {"type": "text"}, "verbosity": "low"}}, "text.verbosity"),
        ("/completions", {"prompt": "q", "x\r\ny: \u00e4": 1}, "x??y???"),
    ],
)
async def test_what_is_not_known_is_ignored_and_named(scene: Scene, path: str, body: Body, told: str) -> None:
    answered = await post(scene, path, body)
    assert (answered.status_code, answered.headers["x-areal-ignored"]) == (200, told)


async def test_a_request_of_known_fields_has_no_such_header(scene: Scene) -> None:
    assert "x-areal-ignored" not in (await scene.ask()).headers


async def test_a_namespace_of_tools_is_flattened_and_its_calls_are_told_in_it(tool_scene: Scene) -> None:
    tool_scene.engine.says(CALL % ("fs__add", "{}"))
    space = {"type": "namespace", "name": "fs", "tools": [ADD, {"type": "web_search"}]}
    answered = await post(tool_scene, "/responses", {"input": "q", "tools": [ADD, space]})
    (call,) = answered.json()["output"]
    assert (call["name"], call["namespace"]) == ("add", "fs")
    assert answered.headers["x-areal-ignored"] == "tools[1].tools[1](web_search)"
    echoed = {"input": [{"role": "user", "content": "q"}, call], "tools": [ADD, space]}
    (_, again) = responses.parse(json.dumps(echoed).encode(), AdmissionRules()).question.messages
    assert [(it.name, it.id) for it in again.tool_calls] == [("fs__add", call["call_id"])]


def test_tools_of_one_name_get_names_of_their_own() -> None:
    spaces = [{"type": "namespace", "name": name, "tools": [ADD]} for name in ("a", "b")]
    listed = parse_tools([*spaces, ADD])
    assert [tool["function"]["name"] for tool in listed.tools] == ["add", "b__add", "add__2"]
    assert listed.named == {"add": ("a", "add"), "b__add": ("b", "add")}


async def test_clients_that_probe_find_somebody_without_a_key(scene: Scene) -> None:
    root = scene.access.base_url.removesuffix("/v1")
    for path in ("", "/", "/health", "/v1", "/v1/health"):
        for method in ("HEAD", "GET"):
            assert (await scene.client.request(method, root + path)).status_code == 200, path
    assert (await scene.client.get(f"{root}/v1/models")).status_code == 401


async def test_any_models_name_is_the_one_model(scene: Scene) -> None:
    headers = {"authorization": f"Bearer {scene.access.api_key}"}
    for name in ("gpt-5", "meta-llama/Llama-3.1-8B", "claude-sonnet-4-5"):
        told = (await scene.client.get(f"{scene.access.base_url}/models/{name}", headers=headers)).json()
        assert (told["id"], told["object"], told["type"], told["max_model_len"]) == ("policy", "model", "model", 4096)


async def test_a_path_that_is_not_served_is_told_in_json(scene: Scene) -> None:
    answered = await post(scene, "/embeddings", {"input": "q"})
    assert (answered.status_code, answered.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/chat/completions", "/messages"])
async def test_an_answer_that_its_client_began_goes_on_and_is_one_with_it_later(scene: Scene, path: str) -> None:
    told = (await post(scene, path, {**ASK_MESSAGES, "messages": PREFILL})).json()
    new = told["content"][0]["text"] if "content" in told else told["choices"][0]["message"]["content"]
    assert new == "the"
    prompt = scene.engine.tokenizer.decode(scene.engine.asked[0][0], skip_special=False)
    assert prompt.endswith("assistant\nSo "), "its turn is left open"
    whole = [*ASK["messages"], {"role": "assistant", "content": "So the"}, {"role": "user", "content": "and"}]
    await post(scene, path, {**ASK_MESSAGES, "messages": whole})
    first, second = (ids.tolist() for ids, _, _ in scene.engine.asked)
    known = [*first, *scene.engine.ids.tolist()]
    assert second[: len(known)] == known


async def test_an_answer_begun_behind_sampled_ones_continues_their_ids(scene: Scene) -> None:
    await post(scene, "/messages", ASK_MESSAGES)
    more = [*ASK["messages"], {"role": "assistant", "content": "the"}, {"role": "user", "content": "and"}]
    await post(scene, "/messages", {**ASK_MESSAGES, "messages": [*more, {"role": "assistant", "content": "I say "}]})
    first, second = (ids.tolist() for ids, _, _ in scene.engine.asked)
    known = [*first, *scene.engine.ids.tolist()]
    assert second[: len(known)] == known
    assert scene.engine.tokenizer.decode(second, skip_special=False).endswith(
        "and<|im_end|>\n<|im_start|>assistant\nI say "
    )


async def test_an_answer_that_was_cut_goes_on_by_its_sampled_ids(scene: Scene) -> None:
    scene.engine.finish_reason = "length"
    await post(scene, "/messages", ASK_MESSAGES)
    cut = [*ASK["messages"], {"role": "assistant", "content": "the"}]
    await post(scene, "/messages", {**ASK_MESSAGES, "messages": cut})
    first, second = (ids.tolist() for ids, _, _ in scene.engine.asked)
    assert second == [*first, *scene.engine.ids.tolist()]
    nodes = scene.server.close("3.1", "done").nodes
    assert [(node.parent, len(node.given)) for node in nodes] == [(None, len(first)), (0, 0)]


async def test_a_call_without_its_result_is_not_gone_on_with(tool_scene: Scene) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"name": "add"}}]}
    await tool_scene.ask({**ASK, "messages": [*ASK["messages"], call]})
    prompt = tool_scene.engine.tokenizer.decode(tool_scene.engine.asked[0][0], skip_special=False)
    assert prompt.endswith("<|im_start|>assistant\n")


async def test_a_system_message_may_stand_among_messages_and_parts_are_texts(scene: Scene) -> None:
    said = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "system", "content": "obey"},
        {"role": "user", "content": "c"},
    ]
    system = [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]
    await post(scene, "/messages", {**ASK_MESSAGES, "system": system, "messages": said})
    by_chat = [{"role": "developer", "content": "s"}, {"role": "user", "content": "ab"}, *said[1:]]
    await scene.ask({**ASK, "messages": by_chat})
    first, second = (ids.tolist() for ids, _, _ in scene.engine.asked)
    assert first == second
    assert "system\nobey" in scene.engine.tokenizer.decode(scene.engine.asked[0][0])


async def test_a_stop_string_is_named(scene: Scene) -> None:
    scene.engine.says("the end")
    told = (await post(scene, "/messages", {**ASK_MESSAGES, "stop_sequences": ["END", " e"]})).json()
    assert (told["stop_reason"], told["stop_sequence"], told["content"][0]["text"]) == ("stop_sequence", " e", "the")


async def test_edits_of_the_context_are_answered_by_none(scene: Scene) -> None:
    body = {**ASK_MESSAGES, "context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}
    assert (await post(scene, "/messages", body)).json()["context_management"] == {"applied_edits": []}


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_are_several_choices_each_behind_its_echo(scene: Scene, stream: bool) -> None:
    ids = scene.engine.tokenizer.encode("three", special=False).tolist()
    body = {"prompt": ["one", "two"], "n": 2, "echo": True, "max_tokens": 4, "stream": stream}
    answered = await post(scene, "/completions", body)
    lines = [line[6:] for line in answered.text.splitlines() if line.startswith("data: {")] or [answered.text]
    texts: dict[int, str] = {}
    for choice in (choice for line in lines for choice in json.loads(line)["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: "onethe", 1: "onethe", 2: "twothe", 3: "twothe"}
    assert len({draw for _, _, draw in scene.engine.asked}) == 4
    again = (await post(scene, "/completions", {"prompt": [ids], "echo": True, "max_tokens": 0})).json()
    assert again["choices"][0]["text"] == "three"
    refused = await post(scene, "/completions", {"prompt": "one", "echo": True, "logprobs": 1})
    assert refused.status_code == 400


async def test_each_call_has_an_id_of_its_own(scene: Scene) -> None:
    other = scene.server.open("4.0", scene.engine, SessionLimits(16, 4096, 32), lives_s=60)
    names = [(await scene.ask({**ASK, "seed": seed})).json()["id"] for seed in (1, 2)]
    names.append((await scene.ask(url=f"{other.base_url}/chat/completions", key=other.api_key)).json()["id"])
    assert len(set(names)) == 3


@pytest.mark.parametrize("depth", [300, 2000], ids=["deeper than can be written", "deeper than can be read"])
async def test_a_body_too_deep_is_refused(scene: Scene, depth: int) -> None:
    deep = '{"messages": [{"role": "user", "content": "q"}], "metadata": ' + '{"a":' * depth + "1" + "}" * depth + "}"
    headers = {"authorization": f"Bearer {scene.access.api_key}"}
    answered = await scene.client.post(f"{scene.access.base_url}/chat/completions", content=deep, headers=headers)
    assert (answered.status_code, answered.headers["x-should-retry"]) == (400, "false")


def test_arguments_of_a_request_stay_the_text_that_they_are() -> None:
    text = '{"a": 18446744073709551616, "a" : 1}'
    call = {"type": "tool_use", "id": "c", "name": "add", "input": {"b": [1]}}
    body = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [call]}]}
    (_, said) = messages.parse(json.dumps(body).encode(), AdmissionRules()).question.messages
    assert json.loads(said.tool_calls[0].arguments) == {"b": [1]}
    echoed: list[Any] = [{"type": "function_call", "call_id": "c", "name": "add", "arguments": text}]
    (said,) = responses.parse(json.dumps({"input": echoed}).encode(), AdmissionRules()).question.messages
    assert said.tool_calls[0].arguments == text
