"""Dialects over real HTTP: one conversation, the same ids whatever API it is led by. The engine is scripted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.gateway_scene import ASK, Body, Scene

pytestmark = pytest.mark.component

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
CALL = 'So:\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ASK_MESSAGES: Body = {**ASK, "max_tokens": 64, "tools": [{"name": "add", "input_schema": SCHEMA}]}


async def post(scene: Scene, path: str, body: Body, *, anthropic: bool = False) -> Any:
    root = scene.access.base_url.removesuffix("/v1")
    named = {"x-api-key": scene.access.api_key} if anthropic else {"authorization": f"Bearer {scene.access.api_key}"}
    answered = await scene.client.post(f"{root}{path}", json=body, headers=named)
    if body.get("stream"):
        return [json.loads(line[6:]) for line in answered.text.splitlines() if line.startswith("data: {")]
    return answered.json()


async def test_a_tool_loop_by_messages_gives_the_engine_the_ids_of_chat(tool_scene: Scene) -> None:
    scene = tool_scene
    scene.engine.says(CALL)
    (choice,) = (await post(scene, "/v1/chat/completions", {**ASK, "tools": TOOLS}))["choices"]
    result = {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "2"}
    said = [*ASK["messages"], choice["message"], result]
    await post(scene, "/v1/chat/completions", {"model": "m", "messages": said, "tools": TOOLS})

    first = await post(scene, "/v1/messages", ASK_MESSAGES, anthropic=True)
    assert (first["stop_reason"], [block["type"] for block in first["content"]]) == ("tool_use", ["text", "tool_use"])
    assert first["content"][1]["input"] == {"a": 1}
    result = {"type": "tool_result", "tool_use_id": first["content"][1]["id"], "content": "2"}
    said = [*ASK["messages"], {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    second = await post(scene, "/v1/v1/messages", {**ASK_MESSAGES, "messages": said}, anthropic=True)
    assert second["usage"]["output_tokens"] == len(scene.engine.ids)
    by_chat, by_messages = scene.engine.asked[:2], scene.engine.asked[2:]
    assert [ids.tolist() for ids, _, _ in by_chat] == [ids.tolist() for ids, _, _ in by_messages]
    count = await post(scene, "/v1/messages/count_tokens", {**ASK_MESSAGES, "messages": said}, anthropic=True)
    assert count == {"input_tokens": len(by_messages[1][0])}


async def test_a_streamed_message_is_the_whole_one_in_anthropics_order(tool_scene: Scene) -> None:
    tool_scene.engine.says(f"<think>hm</think>{CALL}")
    whole = await post(tool_scene, "/v1/messages", ASK_MESSAGES)
    told = await post(tool_scene, "/v1/messages", {**ASK_MESSAGES, "stream": True})
    blocks: list[dict[str, Any]] = []
    for event in told:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
        if event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                blocks[-1]["input"] = json.loads(delta["partial_json"])
            else:
                blocks[-1][delta["type"].removesuffix("_delta")] += delta[delta["type"].removesuffix("_delta")]
    assert [block | {"id": ""} for block in blocks] == [block | {"id": ""} for block in whole["content"]]
    kinds = [event["type"] for event in told]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    assert told[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, "disable_parallel_tool_use"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"tools": [{"type": "custom", "input_schema": {}}]}, "tools[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
    ],
)
async def test_messages_refuses_by_name_in_anthropics_shape(tool_scene: Scene, fields: Body, named: str) -> None:
    told = await post(tool_scene, "/v1/messages", {**ASK_MESSAGES, **fields})
    assert (told["type"], told["error"]["type"], told["error"]["param"]) == ("error", "invalid_request_error", named)
    assert not tool_scene.engine.asked


async def test_ids_go_in_and_out_and_continue_what_they_begin_with(scene: Scene) -> None:
    prompt = [5, 6, 7]
    wanted = {"max_tokens": 4, "temperature": 1.0, "logprobs": 1, "skip_special_tokens": False, "stop_token_ids": [9]}
    body: Body = {"model": "m", "token_ids": prompt, "sampling_params": wanted}
    first = await post(scene, "/inference/v1/generate", body)
    (choice,) = first["choices"]
    made = scene.engine.ids.tolist()
    assert (first["prompt_token_ids"], choice["token_ids"], choice["finish_reason"]) == (prompt, made, "stop")
    told = [(entry["token"], entry["logprob"]) for entry in choice["logprobs"]["content"]]
    assert told == [(f"token_id:{token}", -0.25) for token in made]
    assert scene.engine.asked[0][1].stop_token_ids == (9,)
    await post(scene, "/inference/v1/generate", {**body, "token_ids": [*prompt, *made, 8]})
    await post(scene, "/inference/v1/generate", {**body, "token_ids": [*prompt, 8]})
    parents = [(node.parent, node.given.tolist()) for node in scene.server.close("3.1", "done").nodes]
    assert parents == [(None, prompt), (0, [8]), (None, [*prompt, 8])]


@pytest.mark.parametrize("ids", [[], [-1], ["a"], "text", None, [2**31]])
async def test_what_are_no_ids_is_refused(scene: Scene, ids: Any) -> None:
    told = await post(scene, "/inference/v1/generate", {"token_ids": ids})
    assert told["error"]["param"] == "token_ids"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_text_is_completed(scene: Scene, stream: bool) -> None:
    body: Body = {"model": "m", "prompt": "1+1=", "logprobs": 0, "max_tokens": 5, "stream": stream}
    told = await post(scene, "/v1/completions", body)
    chunks = told if stream else [told]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "the"
    logprobs = [one for chunk in chunks for one in (chunk["choices"][0]["logprobs"] or {}).get("token_logprobs", [])]
    assert logprobs == [-0.25] * len(scene.engine.ids)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert scene.engine.tokenizer.decode(scene.engine.asked[0][0]) == "1+1="


RESPONSE: Body = {"model": "m", "input": "q", "tools": [{"type": "function", "name": "add", "parameters": SCHEMA}]}


@pytest.mark.parametrize("named", [False, True], ids=["items echoed", "by previous_response_id"])
async def test_a_tool_loop_by_responses_continues_the_ids(tool_scene: Scene, named: bool) -> None:
    tool_scene.engine.says(f"<think>hm</think>{CALL}")
    first = await post(tool_scene, "/v1/responses", {**RESPONSE, "instructions": "be short"})
    assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
    result = {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "2"}
    more = {"input": [result], "previous_response_id": first["id"]}
    echoed = {"input": [{"role": "user", "content": "q"}, *first["output"], result]}
    body = {**RESPONSE, "instructions": "be short", **(more if named else echoed)}
    second = await post(tool_scene, "/v1/responses", body)
    assert (second["status"], second["usage"]["output_tokens"]) == ("completed", len(tool_scene.engine.ids))
    (before, _, _), (after, _, _) = tool_scene.engine.asked
    known = [*before.tolist(), *tool_scene.engine.ids.tolist()]
    assert after.tolist()[: len(known)] == known


async def test_a_streamed_response_is_the_whole_one(tool_scene: Scene) -> None:
    tool_scene.engine.says(f"<think>hm</think>{CALL}")
    told = await post(tool_scene, "/v1/responses", {**RESPONSE, "stream": True})
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    last = told[-1]
    assert (last["type"], last["response"]["output"]) == ("response.completed", done)
    added = [event["item"]["id"] for event in told if event["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in done]
    text = "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")
    assert text == done[1]["content"][0]["text"] == "So:\n"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"previous_response_id": "resp_other_0"}, "previous_response_id"),
        ({"previous_response_id": 0}, "previous_response_id"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ],
)
async def test_responses_refuses_by_name(tool_scene: Scene, fields: Body, named: str) -> None:
    told = await post(tool_scene, "/v1/responses", {**RESPONSE, **fields})
    assert told["error"]["param"] == named
    assert not tool_scene.engine.asked
