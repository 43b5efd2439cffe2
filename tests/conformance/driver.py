"""Driver of one real client: reads cells as JSON lines, runs each as its client would, writes what came of it.

Runs in the environment of `tools/venv`, apart from the project's: it imports no code of ours. `driver.py CLIENT`
with a name of CHATS.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import partial
from typing import Any

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_AGENTS_DISABLE_TRACING="1", LITELLM_LOG="ERROR")

SECONDS = 20.0  # a client's patience where a cell doesn't shorten it
TOOL = "add"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FUNCTION = {"type": "function", "function": {"name": TOOL, "description": "Add two numbers.", "parameters": SCHEMA}}


class OpenAIChat:
    """The openai package."""

    def __init__(self, base_url: str, api_key: str, seconds: float, retries: int) -> None:
        import openai

        self.client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=seconds, max_retries=retries)
        self.messages: list[Any] = []

    async def ask(self, text: str, *, tools: bool, stream: bool) -> str:
        self.messages.append({"role": "user", "content": text})
        fields = {"tools": [FUNCTION]} if tools else {}
        while True:
            message = await (self.streamed if stream else self.whole)(fields)
            self.messages.append(message)
            if not message.tool_calls:
                return message.content
            for call in message.tool_calls:
                result = add(**json.loads(call.function.arguments))
                self.messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})

    async def whole(self, fields: dict[str, Any]) -> Any:
        done = await self.client.chat.completions.create(model="policy", messages=self.messages, **fields)
        return done.choices[0].message

    async def streamed(self, fields: dict[str, Any]) -> Any:
        async with self.client.chat.completions.stream(model="policy", messages=self.messages, **fields) as events:
            async for _ in events:
                pass
            return (await events.get_final_completion()).choices[0].message


class AnthropicChat:
    """The anthropic package."""

    def __init__(self, base_url: str, api_key: str, seconds: float, retries: int) -> None:
        import anthropic

        root = base_url.removesuffix("/v1")
        self.client = anthropic.AsyncAnthropic(base_url=root, api_key=api_key, timeout=seconds, max_retries=retries)
        self.messages: list[Any] = []

    async def ask(self, text: str, *, tools: bool, stream: bool) -> str:
        self.messages.append({"role": "user", "content": text})
        fields: dict[str, Any] = {"model": "policy", "max_tokens": 512}
        if tools:
            fields["tools"] = [{"name": TOOL, "description": "Add two numbers.", "input_schema": SCHEMA}]
        while True:
            if stream:
                async with self.client.messages.stream(messages=self.messages, **fields) as events:
                    message = await events.get_final_message()
            else:
                message = await self.client.messages.create(messages=self.messages, **fields)
            self.messages.append({"role": "assistant", "content": message.content})
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in message.content)
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": str(add(**call.input))} for call in calls
            ]
            self.messages.append({"role": "user", "content": results})


class LangChainChat:
    """langchain-openai's ChatOpenAI."""

    def __init__(self, base_url: str, api_key: str, seconds: float, retries: int) -> None:
        from langchain_openai import ChatOpenAI

        self.model = ChatOpenAI(
            model="policy", base_url=base_url, api_key=api_key, timeout=seconds, max_retries=retries
        )
        self.messages: list[Any] = []

    async def ask(self, text: str, *, tools: bool, stream: bool) -> str:
        from langchain_core.messages import HumanMessage, ToolMessage

        self.messages.append(HumanMessage(text))
        model = self.model.bind_tools([FUNCTION]) if tools else self.model
        while True:
            if stream:
                message: Any = None
                async for chunk in model.astream(self.messages):
                    message = chunk if message is None else message + chunk
            else:
                message = await model.ainvoke(self.messages)
            self.messages.append(message)
            if not message.tool_calls:
                return message.content
            for call in message.tool_calls:
                self.messages.append(ToolMessage(str(add(**call["args"])), tool_call_id=call["id"]))


class LiteLLMChat:
    """litellm's acompletion, as a provider that speaks OpenAI's API."""

    def __init__(self, base_url: str, api_key: str, seconds: float, retries: int) -> None:
        import litellm

        self.complete, self.join = litellm.acompletion, litellm.stream_chunk_builder
        self.fields = {
            "model": "openai/policy", "api_base": base_url, "api_key": api_key, "timeout": seconds,
            "max_retries": retries,
        }  # fmt: skip
        self.messages: list[Any] = []

    async def ask(self, text: str, *, tools: bool, stream: bool) -> str:
        self.messages.append({"role": "user", "content": text})
        fields = {**self.fields, **({"tools": [FUNCTION]} if tools else {})}
        while True:
            done = await self.complete(messages=self.messages, stream=stream, **fields)
            if stream:
                done = self.join([chunk async for chunk in done], messages=self.messages)
            message = done.choices[0].message
            self.messages.append(message)
            if not message.tool_calls:
                return message.content
            for call in message.tool_calls:
                result = add(**json.loads(call.function.arguments))
                self.messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})


class OpenAIAgentsChat:
    """openai-agents' Runner over its model of the chat API."""

    def __init__(self, base_url: str, api_key: str, seconds: float, retries: int) -> None:
        import openai
        from agents import OpenAIChatCompletionsModel

        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=seconds, max_retries=retries)
        self.model = OpenAIChatCompletionsModel(model="policy", openai_client=client)
        self.items: list[Any] = []

    async def ask(self, text: str, *, tools: bool, stream: bool) -> str:
        from agents import Agent, Runner, function_tool

        agent = Agent(name="agent", model=self.model, tools=[function_tool(add)] if tools else [])
        self.items.append({"role": "user", "content": text})
        if stream:
            result: Any = Runner.run_streamed(agent, self.items)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, self.items)
        self.items = result.to_input_list()
        return result.final_output


class InspectChat:
    """inspect-ai's model of a provider that speaks OpenAI's API."""

    def __init__(self, base_url: str, api_key: str, seconds: float, retries: int) -> None:
        from inspect_ai import model

        config = model.GenerateConfig(max_retries=retries, attempt_timeout=int(seconds) or 1)
        self.model_of = partial(
            model.get_model, "openai-api/areal/policy", base_url=base_url, api_key=api_key, config=config, memoize=False
        )
        self.model_of(stream=False)
        self.messages: list[Any] = []

    async def ask(self, text: str, *, tools: bool, stream: bool) -> str:
        from inspect_ai.model import ChatMessageUser, execute_tools
        from inspect_ai.tool import ToolDef

        self.messages.append(ChatMessageUser(content=text))

        async def tool(a: int, b: int) -> int:
            return add(a, b)

        known = [ToolDef(tool, TOOL, "Add two numbers.", {"a": "a", "b": "b"})] if tools else []
        model = self.model_of(stream=stream)
        while True:
            output = await model.generate(self.messages, tools=known)
            self.messages.append(output.message)
            if not output.message.tool_calls:
                return output.message.text
            self.messages += (await execute_tools(self.messages, known))[0]


CHATS = {
    "openai": OpenAIChat,
    "anthropic": AnthropicChat,
    "openai-agents": OpenAIAgentsChat,
    "langchain-openai": LangChainChat,
    "litellm": LiteLLMChat,
    "inspect-ai": InspectChat,
}


async def run(make: Any, cell: dict[str, Any]) -> dict[str, Any]:
    """One conversation: its texts one after the other, each answered or failed.

    `forgets`: each text begins a conversation of its own; `at_once`: all of these together.
    """

    def begin() -> Any:
        return make(cell["base_url"], cell["api_key"], cell.get("seconds", SECONDS), cell.get("retries", 2))

    async def ask(chat: Any, text: str) -> Any:
        work = chat.ask(text, tools=cell.get("tools", False), stream=cell.get("stream", False))
        try:
            return await asyncio.wait_for(work, cell.get("leaves_after"))
        except Exception as error:
            return told(error)

    if cell.get("at_once"):
        return {"said": await asyncio.gather(*(ask(begin(), text) for text in cell["texts"]))}
    chat = begin()
    said = []
    for text in cell["texts"]:
        said.append(await ask(chat, text))
        chat = begin() if cell.get("forgets") else chat
    return {"said": said}


def told(error: Exception) -> dict[str, Any]:
    """An error as its client shows it."""
    return {"type": type(error).__name__, "status": getattr(error, "status_code", None), "message": str(error)[:2000]}


async def main() -> None:
    """Serve cells until standard input ends; each is answered by its number."""
    make = CHATS[sys.argv[1]]
    loop, tasks = asyncio.get_running_loop(), set()

    async def answer(line: str) -> None:
        cell = json.loads(line)
        done = await run(make, cell)
        print(json.dumps({"number": cell["number"], **done}), file=out, flush=True)

    make("http://127.0.0.1:9/v1", "none", 1.0, 0)  # what it imports is there before the first cell
    print(json.dumps({"number": -1}), file=out, flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        task = asyncio.create_task(answer(line))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    out, sys.stdout = sys.stdout, sys.stderr  # what packages print is no answer
    asyncio.run(main())
