"""T10: streams of real tokens over real HTTP, clients that leave one, and faults in it. The engine is scripted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from areal.errors import InfraError
from areal.gateway import streams
from areal.workflow.tokenizer import Tokenizer
from support.gateway_scene import ASK, Body, Scene

pytestmark = pytest.mark.component

STREAM: Body = {**ASK, "stream": True, "stream_options": {"include_usage": True}}


@asynccontextmanager
async def opened(scene: Scene, body: Body, retry: int = 0) -> AsyncIterator[httpx.Response]:
    headers = {"authorization": f"Bearer {scene.access.api_key}", "x-stainless-retry-count": str(retry)}
    url = f"{scene.access.base_url}/chat/completions"
    async with scene.client.stream("POST", url, json=body, headers=headers) as response:
        yield response


async def chunks(response: httpx.Response) -> AsyncIterator[Any]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield line[6:] if line[6:] == "[DONE]" else json.loads(line[6:])


async def whole(scene: Scene, body: Body, retry: int = 0) -> list[Any]:
    async with opened(scene, body, retry) as response:
        return [chunk async for chunk in chunks(response)]


def text_of(told: list[Any]) -> str:
    choices = [choice for chunk in told if isinstance(chunk, dict) for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_t10_a_stream_tells_text_ids_log_probabilities_and_usage_of_the_answer(
    scene: Scene, tokenizer: Tokenizer
) -> None:
    told = await whole(scene, {**STREAM, "logprobs": True, "return_token_ids": True})
    *_, last, usage, end = told
    choices = [chunk["choices"][0] for chunk in told[:-2]]
    ids = [token for choice in choices for token in choice.get("token_ids", [])]
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert (text_of(told), ids) == ("the", scene.engine.ids.tolist())
    assert [(entry["token"], entry["logprob"]) for entry in entries] == [
        (tokenizer.piece(one).decode(), -0.25) for one in ids
    ]
    assert told[0]["prompt_token_ids"] == scene.engine.asked[0][0].tolist()
    assert (last["choices"][0]["finish_reason"], usage["usage"]["completion_tokens"], end) == (
        "stop",
        len(ids),
        "[DONE]",
    )


async def test_tokens_come_while_others_are_sampled(scene: Scene) -> None:
    scene.engine.rest.clear()
    async with opened(scene, STREAM) as response:
        told = chunks(response)
        while not text_of([await anext(told)]):
            pass
        scene.engine.rest.set()
        assert [chunk async for chunk in told][-1] == "[DONE]"


@pytest.mark.parametrize("retry", [0, 1])
async def test_t10_a_client_that_leaves_a_stream_and_asks_again_is_one_generation(scene: Scene, retry: int) -> None:
    scene.engine.rest.clear()
    async with opened(scene, STREAM) as response:
        told = chunks(response)
        while not text_of([await anext(told)]):
            pass
    again = asyncio.create_task(whole(scene, STREAM, 1))
    await asyncio.sleep(0)
    scene.engine.rest.set()
    assert text_of(await again) == "the"
    assert text_of(await whole(scene, STREAM, retry + 1)) == "the"
    assert len(scene.engine.asked) == 1
    (node,) = scene.server.close("3.1", "its agent ended").nodes
    assert node.result.output_ids.tolist() == scene.engine.ids.tolist(), "the answer is whole"


async def test_a_stream_that_stands_still_is_kept_open(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.05)
    scene.engine.let.clear()
    async with opened(scene, STREAM) as response:
        lines = response.aiter_lines()
        while await anext(lines) != ": waiting":
            pass
        scene.engine.let.set()
        left = [line async for line in lines]
    assert left[-2:] == ["data: [DONE]", ""]


async def test_a_fault_before_the_first_token_has_its_status(scene: Scene) -> None:
    scene.engine.fault = InfraError("no server")
    async with opened(scene, STREAM) as response:
        assert (response.status_code, "retry-after-ms" in response.headers) == (503, True)


async def test_a_session_that_ends_in_a_stream_is_told_in_it(scene: Scene) -> None:
    scene.engine.rest.clear()
    async with opened(scene, STREAM) as response:
        told = chunks(response)
        while not text_of([await anext(told)]):
            pass
        scene.server.close("3.1", "its group was revoked")
        left = [chunk async for chunk in told]
    assert [chunk["error"]["code"] for chunk in left] == ["episode_over"]


CALLS = "So:\n" + "\n".join(f'<tool_call>\n{{"name": "add", "arguments": {{"a": {n}}}}}\n</tool_call>' for n in (1, 2))
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


async def test_calls_of_tools_come_whole_and_streamed_as_openai_tells_them(tool_scene: Scene) -> None:
    tool_scene.engine.says(CALLS)
    (choice,) = (await tool_scene.ask({**ASK, "tools": TOOLS})).json()["choices"]
    told = await whole(tool_scene, {**STREAM, "tools": TOOLS})
    deltas = [one["delta"] for chunk in told[:-2] for one in chunk["choices"]]
    streamed = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["function"] for call in streamed] == [call["function"] for call in choice["message"]["tool_calls"]]
    assert [(call["index"], json.loads(call["function"]["arguments"])) for call in streamed] == [
        (0, {"a": 1}),
        (1, {"a": 2}),
    ]
    assert (text_of(told), choice["message"]["content"]) == ("So:\n", "So:\n")
    assert choice["finish_reason"] == told[-3]["choices"][0]["finish_reason"] == "tool_calls"


async def test_choices_are_streamed_side_by_side(scene: Scene) -> None:
    told = await whole(scene, {**STREAM, "n": 2})
    texts = {0: "", 1: ""}
    for chunk in told[:-2]:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == {0: "the", 1: "the"}
    assert len({draw for _, _, draw in scene.engine.asked}) == 2
