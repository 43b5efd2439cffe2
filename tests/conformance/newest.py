"""Driver of a client at its newest version: what it does with a policy, as one JSON object by name of the scene.

Run by `uv run --with PACKAGES python newest.py CLIENT BASE_URL KEY`, apart from the project: it has no code of ours.
Each scene returns what the client made of the answer; an exception is told as such.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import tempfile
from functools import cache
from typing import Any

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_AGENTS_DISABLE_TRACING="1", LITELLM_LOG="ERROR")
os.environ.update(
    MSWEA_SILENT_STARTUP="1", MSWEA_COST_TRACKING="ignore_errors", MSWEA_GLOBAL_CONFIG_DIR=tempfile.mkdtemp()
)

PLAIN, TOOLS, SHAPED, SHELL = "one", "2 and 3", "json of 2 and 3", "use the shell"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
FUNCTION = {"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": SCHEMA}}


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


@cache
def _sum() -> Any:
    from pydantic import BaseModel

    class Sum(BaseModel):
        """A sum."""

        sum: int

    return Sum


class OpenAI:
    def __init__(self, url: str, key: str) -> None:
        import openai

        self.client = openai.OpenAI(base_url=url, api_key=key)

    def plain(self) -> Any:
        assert self.client.models.retrieve("gpt-5").id
        done = self.client.chat.completions.create(model="m", messages=[{"role": "user", "content": PLAIN}])
        return done.choices[0].message.content

    def stream(self) -> Any:
        with self.client.responses.stream(model="m", input=PLAIN) as events:
            for _ in events:
                pass
            return events.get_final_response().output_text

    def tools(self) -> Any:
        messages: list[Any] = [{"role": "user", "content": TOOLS}]
        with self.client.chat.completions.stream(model="m", messages=messages, tools=[FUNCTION]) as events:
            for _ in events:
                pass
            said = events.get_final_completion().choices[0].message
        (call,) = said.tool_calls or ()
        result = str(add(**json.loads(call.function.arguments)))
        messages += [said, {"role": "tool", "tool_call_id": call.id, "content": result}]
        return (
            self.client.chat.completions.create(model="m", messages=messages, tools=[FUNCTION])
            .choices[0]
            .message.content
        )

    def shaped(self) -> Any:
        asked: list[Any] = [{"role": "user", "content": SHAPED}]
        done = self.client.chat.completions.parse(model="m", messages=asked, response_format=_sum())
        told = self.client.responses.parse(model="m", input=SHAPED, text_format=_sum())
        assert told.output_parsed == done.choices[0].message.parsed
        return told.output_parsed.sum


class Anthropic:
    def __init__(self, url: str, key: str) -> None:
        import anthropic

        self.client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=key)
        self.fields: dict[str, Any] = {"model": "m", "max_tokens": 256}

    def plain(self) -> Any:
        assert self.client.models.retrieve("claude-x").id
        done = self.client.messages.create(messages=[{"role": "user", "content": PLAIN}], **self.fields)
        begun = [{"role": "user", "content": PLAIN}, {"role": "assistant", "content": "I "}]
        assert self.client.messages.create(messages=begun, **self.fields).content[0].text
        return done.content[0].text

    def stream(self) -> Any:
        with self.client.messages.stream(messages=[{"role": "user", "content": PLAIN}], **self.fields) as events:
            return events.get_final_message().content[0].text

    def tools(self) -> Any:
        from anthropic import beta_tool

        tool = beta_tool(lambda a, b: str(add(a, b)), name="add", description="Adds.", input_schema=SCHEMA)
        runner = self.client.beta.messages.tool_runner(
            messages=[{"role": "user", "content": TOOLS}], tools=[tool], **self.fields
        )
        return runner.until_done().content[0].text

    def shaped(self) -> Any:
        asked: list[Any] = [{"role": "user", "content": SHAPED}]
        return self.client.messages.parse(messages=asked, output_format=_sum(), **self.fields).parsed_output.sum


class OpenAIAgents:
    def __init__(self, url: str, key: str) -> None:
        import openai
        from agents import OpenAIChatCompletionsModel, OpenAIResponsesModel

        client = openai.AsyncOpenAI(base_url=url, api_key=key)
        self.chat = OpenAIChatCompletionsModel(model="m", openai_client=client)
        self.responses = OpenAIResponsesModel(model="m", openai_client=client)

    async def ask(self, text: str, model: Any, **fields: Any) -> Any:
        from agents import Agent, Runner

        return (await Runner.run(Agent(name="a", model=model, **fields), text)).final_output

    async def plain(self) -> Any:
        return await self.ask(PLAIN, self.chat)

    async def stream(self) -> Any:
        from agents import Agent, Runner

        result = Runner.run_streamed(Agent(name="a", model=self.responses), PLAIN)
        async for _ in result.stream_events():
            pass
        return result.final_output

    async def tools(self) -> Any:
        from agents import function_tool

        told = await self.ask(TOOLS, self.chat, tools=[function_tool(add)])
        assert told == await self.ask(TOOLS, self.responses, tools=[function_tool(add)])
        return told

    async def shaped(self) -> Any:
        return (await self.ask(SHAPED, self.responses, output_type=_sum())).sum


class LangChain:
    def __init__(self, url: str, key: str) -> None:
        from langchain_anthropic import ChatAnthropic
        from langchain_openai import ChatOpenAI

        self.openai = ChatOpenAI(model="m", base_url=url, api_key=key)
        self.anthropic = ChatAnthropic(model="m", base_url=url.removesuffix("/v1"), api_key=key, max_tokens=256)

    def plain(self) -> Any:
        told = self.openai.invoke(PLAIN).content
        assert told == self.anthropic.invoke(PLAIN).content
        return told

    def stream(self) -> Any:
        return "".join(str(chunk.content) for chunk in self.openai.stream(PLAIN))

    def tools(self) -> Any:
        from langchain.agents import create_agent

        for model in (self.anthropic, self.openai):
            said = create_agent(model, tools=[add]).invoke({"messages": [{"role": "user", "content": TOOLS}]})
        return said["messages"][-1].content

    def shaped(self) -> Any:
        from langchain.agents import create_agent

        for method in ("function_calling", "json_schema", "json_mode"):
            assert self.openai.with_structured_output(_sum(), method=method).invoke(SHAPED).sum == 5, method
        assert self.anthropic.with_structured_output(_sum()).invoke(SHAPED).sum == 5
        agent = create_agent(self.openai, tools=[], response_format=_sum())
        return agent.invoke({"messages": [{"role": "user", "content": SHAPED}]})["structured_response"].sum


class LangGraph:
    def __init__(self, url: str, key: str) -> None:
        from langchain_openai import ChatOpenAI
        from langgraph.prebuilt import create_react_agent

        self.model = ChatOpenAI(model="m", base_url=url, api_key=key)
        self.make = create_react_agent

    def _ask(self, text: str, tools: list[Any], **fields: Any) -> Any:
        return self.make(self.model, tools=tools, **fields).invoke({"messages": [{"role": "user", "content": text}]})

    def plain(self) -> Any:
        return self._ask(PLAIN, [])["messages"][-1].content

    def stream(self) -> Any:
        graph = self.make(self.model, tools=[])
        told = graph.stream({"messages": [{"role": "user", "content": PLAIN}]}, stream_mode="messages")
        return "".join(str(chunk.content) for chunk, _ in told)

    def tools(self) -> Any:
        return self._ask(TOOLS, [add])["messages"][-1].content

    def shaped(self) -> Any:
        return self._ask(SHAPED, [], response_format=_sum())["structured_response"].sum


class PydanticAI:
    def __init__(self, url: str, key: str) -> None:
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
        from pydantic_ai.providers.openai import OpenAIProvider

        provider = OpenAIProvider(base_url=url, api_key=key)
        claude = AnthropicProvider(base_url=url.removesuffix("/v1"), api_key=key)
        self.chat = OpenAIChatModel("m", provider=provider)
        self.models = (self.chat, OpenAIResponsesModel("m", provider=provider), AnthropicModel("m", provider=claude))

    async def _ask(self, text: str, model: Any, **fields: Any) -> Any:
        from pydantic_ai import Agent

        return (await Agent(model, **fields).run(text)).output

    async def plain(self) -> Any:
        (told,) = {await self._ask(PLAIN, model) for model in self.models}
        return told

    async def stream(self) -> Any:
        from pydantic_ai import Agent

        async with Agent(self.chat).run_stream(PLAIN) as result:
            return await result.get_output()

    async def tools(self) -> Any:
        (told,) = {await self._ask(TOOLS, model, tools=[add]) for model in self.models}
        return told

    async def shaped(self) -> Any:
        from pydantic_ai import NativeOutput, PromptedOutput

        for kind in (NativeOutput, PromptedOutput):
            assert (await self._ask(SHAPED, self.chat, output_type=kind(_sum()))).sum == 5, kind.__name__
        (told,) = {(await self._ask(SHAPED, model, output_type=_sum())).sum for model in self.models}
        return told


class Instructor:
    def __init__(self, url: str, key: str) -> None:
        import instructor
        import openai

        self.instructor, self.client = instructor, openai.OpenAI(base_url=url, api_key=key)

    def shaped(self) -> Any:
        told = []
        for mode in ("TOOLS", "JSON", "JSON_SCHEMA", "MD_JSON"):
            client = self.instructor.from_openai(self.client, mode=getattr(self.instructor.Mode, mode))
            asked = [{"role": "user", "content": SHAPED}]
            told.append(client.chat.completions.create(model="m", messages=asked, response_model=_sum()).sum)
        (one,) = set(told)
        return one


class Smolagents:
    def __init__(self, url: str, key: str) -> None:
        from smolagents import OpenAIModel

        self.model = OpenAIModel(model_id="m", api_base=url, api_key=key)

    def plain(self) -> Any:
        from smolagents import ChatMessage, MessageRole

        return self.model.generate([ChatMessage(MessageRole.USER, [{"type": "text", "text": PLAIN}])]).content

    def tools(self) -> Any:
        from smolagents import ToolCallingAgent, tool

        return ToolCallingAgent(tools=[tool(add)], model=self.model, verbosity_level=0, max_steps=4).run(TOOLS)


class LiteLLM:
    def __init__(self, url: str, key: str) -> None:
        import litellm

        self.complete = litellm.completion
        self.fields = {"model": "openai/m", "api_base": url, "api_key": key}
        self.claude = {"model": "anthropic/m", "api_base": url.removesuffix("/v1"), "api_key": key}

    def plain(self) -> Any:
        asked = [{"role": "user", "content": PLAIN}]
        told = self.complete(messages=asked, **self.fields).choices[0].message.content
        assert told == self.complete(messages=asked, **self.claude).choices[0].message.content
        return told

    def stream(self) -> Any:
        chunks = self.complete(messages=[{"role": "user", "content": PLAIN}], stream=True, **self.fields)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    def tools(self) -> Any:
        for fields in (self.claude, self.fields):
            messages: list[Any] = [{"role": "user", "content": TOOLS}]
            said = self.complete(messages=messages, tools=[FUNCTION], **fields).choices[0].message
            (call,) = said.tool_calls
            result = str(add(**json.loads(call.function.arguments)))
            messages += [said, {"role": "tool", "tool_call_id": call.id, "content": result}]
            told = self.complete(messages=messages, tools=[FUNCTION], **fields).choices[0].message.content
        return told

    def shaped(self) -> Any:
        asked = [{"role": "user", "content": SHAPED}]
        told = self.complete(messages=asked, response_format=_sum(), **self.fields).choices[0].message.content
        return json.loads(told)["sum"]


class MiniSWEAgent:
    def __init__(self, url: str, key: str) -> None:
        from minisweagent.models.litellm_model import LitellmModel

        self.model = LitellmModel(
            model_name="openai/m", model_kwargs={"api_base": url, "api_key": key}, cost_tracking="ignore_errors"
        )

    def shell(self) -> Any:
        from minisweagent.agents.default import DefaultAgent
        from minisweagent.environments.local import LocalEnvironment

        agent = DefaultAgent(
            self.model, LocalEnvironment(), system_template="s", instance_template="{{task}}", step_limit=5
        )
        told = agent.run(SHELL)
        return told.get("exit_status") if isinstance(told, dict) else told


class LmEval:
    """Against a server whose engine tells a prompt's log-probabilities."""

    def __init__(self, url: str, key: str) -> None:
        from lm_eval.models.openai_completions import LocalCompletionsAPI

        os.environ["OPENAI_API_KEY"] = key
        self.model = LocalCompletionsAPI(
            base_url=f"{url}/completions",
            model="m",
            tokenizer_backend="huggingface",
            tokenizer=sys.argv[4],
            batch_size=2,
        )

    def loglikelihood(self) -> Any:
        from lm_eval.api.instance import Instance

        pairs = [("ab", "c"), ("ab", "d"), ("b", "aa")]
        asked = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
        return [[value, bool(greedy)] for value, greedy in self.model.loglikelihood(asked)]

    def generation(self) -> Any:
        from lm_eval.api.instance import Instance

        asked = Instance("generate_until", {}, ("ab", {"until": ["\n"], "max_gen_toks": 4, "temperature": 0}), 0)
        return self.model.generate_until([asked])[0]


CLIENTS: dict[str, Any] = {
    "openai": OpenAI,
    "anthropic": Anthropic,
    "openai-agents": OpenAIAgents,
    "langchain": LangChain,
    "langgraph": LangGraph,
    "pydantic-ai": PydanticAI,
    "instructor": Instructor,
    "smolagents": Smolagents,
    "litellm": LiteLLM,
    "mini-swe-agent": MiniSWEAgent,
    "lm-eval": LmEval,
}
SCENES = ("plain", "stream", "tools", "shaped", "shell", "loglikelihood", "generation")


def main() -> None:
    """Play every scene that the client has."""
    name, url, key, *_ = sys.argv[1:]
    out, sys.stdout = sys.stdout, sys.stderr
    client, told = CLIENTS[name](url, key), {}
    loop = asyncio.new_event_loop()
    for scene in SCENES:
        play = getattr(client, scene, None)
        if play is None:
            continue
        try:
            done = play()
            told[scene] = loop.run_until_complete(done) if inspect.isawaitable(done) else done
        except Exception as error:
            told[scene] = f"{type(error).__name__}: {error}"[:500]
    print(json.dumps(told, default=str), file=out)


if __name__ == "__main__":
    main()
